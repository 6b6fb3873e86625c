"""Run a test again if Triton itself aborted: while it unloads a Python model, its own lock may fail.

https://github.com/triton-inference-server/server/issues/8882. No code of ours can catch that, and it was not seen
in 800 loads in a row; what ours does about a dead server has tests of its own.
"""

import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ABORT = b"boost::interprocess::lock_exception"
MOST = 2


def aborted(basetemp: Path, since_s: float) -> bool:
    """True if a server of this test process, whose log was written since then, ended by this fault."""
    logs = (path for path in basetemp.rglob("server.log") if path.is_file() and path.stat().st_mtime >= since_s)
    return any(ABORT in path.read_bytes() for path in logs)


class TritonAborts:
    """A plugin that repeats a failed system test, with new fixtures, if its Triton aborted."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run the test, and again at most twice. Returns None, which leaves it to pytest, for other tests."""
        if item.get_closest_marker("system") is None or not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for left in reversed(range(MOST + 1)):
            began_s = time.time()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            failed = any(report.failed for report in reports)
            if not (left and failed and aborted(item.config._tmp_path_factory.getbasetemp(), began_s)):  # type: ignore[attr-defined]
                break
            item._initrequest()
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
