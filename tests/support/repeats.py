"""A pytest plugin: a test that measures and failed is run once more if the machine was seen to disturb it.

Only tests marked `alone` or `system` are, once each, and only with a reason that was measured while they failed:
the load of parallel tests is such a reason. Every repeat is listed at the end and kept in
`build/test-repeats.jsonl`; more than `MOST_REPEATS` in a session fail it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from disturbance import Watch

MOST_REPEATS = 2
ARTEFACT = Path("build") / "test-repeats.jsonl"


class Repeats:
    """The repeats of one session. `watch` returns a watcher of the machine for a test."""

    def __init__(self, root: Path, watch: Any = Watch) -> None:
        self.watch = watch
        self.artefact = root / ARTEFACT
        self._known = len(self._kept())

    @property
    def made(self) -> list[dict[str, str]]:
        """Return the repeats since the session began, of all its processes."""
        return [json.loads(line) for line in self._kept()[self._known :]]

    def _kept(self) -> list[str]:
        return self.artefact.read_text().splitlines() if self.artefact.exists() else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run one test that measures, and once more if its failure has a reason outside of it."""
        if item.get_closest_marker("alone") is None and item.get_closest_marker("system") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with self.watch() as watch:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = next((report for report in reports if report.failed), None)
        if failed is not None and watch.seen.reason is not None:
            self._note(item.nodeid, watch.seen.reason, failed)
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _note(self, nodeid: str, reason: str, failed: pytest.TestReport) -> None:
        crash = getattr(failed.longrepr, "reprcrash", None)
        line = {"test": nodeid, "reason": reason, "failure": str(getattr(crash, "message", ""))[:500]}
        self.artefact.parent.mkdir(exist_ok=True)
        with self.artefact.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Fail the session if there were too many repeats, even if they passed."""
        yield
        if len(self.made) > MOST_REPEATS and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print every repeat with its reason."""
        if not self.made:
            return
        terminalreporter.section(f"{len(self.made)} repeated, {MOST_REPEATS} at the most")
        for repeat in self.made:
            terminalreporter.write_line(f"REPEATED {repeat['test']}: {repeat['reason']}")
