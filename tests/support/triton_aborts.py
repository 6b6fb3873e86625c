"""Run a test again if Triton itself aborted: while it unloads a Python model, its own lock may fail.

https://github.com/triton-inference-server/server/issues/8882. No code of ours can catch that, and it was not seen
in 800 loads in a row; what ours does about a dead server has tests of its own.
"""

from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ABORT = b"boost::interprocess::lock_exception"
MOST = 2


def aborts(basetemp: Path) -> dict[Path, int]:
    """Return how often each server of this test process ended by this fault, by log."""
    counts = {path: path.read_bytes().count(ABORT) for path in basetemp.rglob("server.log") if path.is_file()}
    return {path: count for path, count in counts.items() if count}


class TritonAborts:
    """A plugin that repeats a failed system test, with new fixtures of its module too, if a Triton aborted.

    That may have been after the last request of an earlier test, which passed.
    """

    def __init__(self) -> None:
        self._known: dict[Path, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run the test, and again at most twice. Returns None, which leaves it to pytest, for other tests."""
        if item.get_closest_marker("system") is None or not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for left in reversed(range(MOST + 1)):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            if not (left and any(report.failed for report in reports) and self._has_aborted(item)):
                break
            with suppress(Exception):  # of fixtures that miss their server
                item.session._setupstate.teardown_exact(item.session)  # type: ignore[arg-type]
            item._initrequest()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _has_aborted(self, item: pytest.Item) -> bool:
        """True if a server has aborted since the last time that this was asked."""
        before, self._known = self._known, aborts(item.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        return any(count > before.get(path, 0) for path, count in self._known.items())
