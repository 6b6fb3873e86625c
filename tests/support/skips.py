"""A pytest plugin: in CI, a skip that is not on the list fails the session.

`tests/skips.txt` has a line for each kind of skip that is expected in CI: the beginning of its reason, and why.
Elsewhere skips are only counted: a machine may lack programs that CI has.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "skips.txt"


class Skips:
    """The skips of one session."""

    def __init__(self, expected: tuple[str, ...], *, strict: bool) -> None:
        self.expected = expected
        self.strict = strict
        self.unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skip whose reason is not on the list."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self._note(report.nodeid, report.longrepr[2])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """The same for whole modules."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self._note(report.nodeid, report.longrepr[2])

    def _note(self, nodeid: str, reason: str) -> None:
        if not reason.removeprefix("Skipped: ").startswith(self.expected):
            self.unexpected.append(f"{nodeid}: {reason}")

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Unexpected skips fail a strict session."""
        yield
        if self.strict and self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Every unexpected skip."""
        if self.unexpected:
            terminalreporter.section(f"{len(self.unexpected)} skipped that are not in {LIST.name}")
            for line in self.unexpected:
                terminalreporter.write_line(line)


def expected_skips(text: str) -> tuple[str, ...]:
    """Return the beginnings of reasons in the list: the text before ` # `, without empty lines and comments."""
    lines = (line.split(" # ")[0].strip() for line in text.splitlines() if not line.startswith("#"))
    return tuple(line for line in lines if line)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() == "true"
