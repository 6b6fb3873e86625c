"""A pytest plugin for `make measure` and `make long`: one line per test at the end.

A line says passed, failed, skipped or disturbed. A test marked `measure` that failed counts as disturbed if the
machine was seen to disturb it meanwhile; its line says how. Only failed tests fail the session.
"""

from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from disturbance import Watch

DISTURBED = "disturbed: "


class Verdicts:
    """The verdict on each test of a session. `watch` returns a watcher of the machine for one test."""

    def __init__(self, watch: Any = Watch) -> None:
        self.watch = watch
        self.lines: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run one test that measures, and watch the machine meanwhile."""
        if item.get_closest_marker("measure") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with self.watch() as watch:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            if report.failed and watch.seen.reason is not None:
                text = f"{DISTURBED}{watch.seen.reason}; {message_of(report)}"
                report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1] or 0, text)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of setup, call and teardown."""
        if report.failed:
            self.lines[report.nodeid] = f"failed     {report.nodeid}: {message_of(report)}"
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            reason = reason.removeprefix("Skipped: ")
            verdict = "disturbed" if reason.startswith(DISTURBED) else "skipped"
            line = f"{verdict:10} {report.nodeid}: {reason.removeprefix(DISTURBED)}"
            self.lines.setdefault(report.nodeid, line)
        elif report.when == "call":
            self.lines[report.nodeid] = f"passed     {report.nodeid}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lines, what is not passed last."""
        terminalreporter.section("one line per test")
        for line in sorted(self.lines.values(), key=lambda line: (not line.startswith("passed"), line)):
            terminalreporter.write_line(line)


def message_of(report: pytest.TestReport) -> str:
    """Return the first line of the failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longreprtext)).partition("\n")[0][:300]
