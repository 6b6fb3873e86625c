"""What disturbs a test from outside is seen by its watcher, and what the test does itself is not."""

import os
import subprocess
import sys
import time

import pytest
from disturbance import Watch, ticks

pytestmark = [pytest.mark.system, pytest.mark.measure]

BURN = "import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
FREEZE = """
import os, time
os.sched_setaffinity(0, {%d})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
end = time.monotonic() + 0.4
while time.monotonic() < end: pass
"""


def test_processes_of_others_are_seen() -> None:
    """Two that have left the test's family take both processors."""
    script = f"import os\nif os.fork(): os._exit(0)\n{BURN.format(seconds=4)}"
    with Watch() as watch:
        for _ in os.sched_getaffinity(0):
            subprocess.run([sys.executable, "-S", "-c", script], check=True)
        time.sleep(4.2)
    assert watch.seen.others_s > 1.0
    assert "other processes" in str(watch.seen.reason)


def test_what_the_test_starts_itself_counts_as_its_own() -> None:
    """By the kernel's account of the same processes, so that it holds beside others.

    A watcher of this test, which runs still, is in the one and not yet in the other.
    """
    processors = sorted(os.sched_getaffinity(0))
    before, used = ticks(processors, os.getpid()).ours, os.times()
    for _ in range(2):
        subprocess.run([sys.executable, "-S", "-c", BURN.format(seconds=1)], check=True)
    after, now = ticks(processors, os.getpid()).ours, os.times()
    burned_s = sum(now[:4]) - sum(used[:4])
    assert burned_s > 0.5
    assert -0.1 < (after - before) / os.sysconf("SC_CLK_TCK") - burned_s < 0.2 * burned_s + 0.1


def test_a_processor_that_stands_still_is_seen() -> None:
    """A process of the highest priority keeps one to itself for 0.4 s."""
    processor = min(os.sched_getaffinity(0))
    with Watch() as watch:
        time.sleep(0.5)
        frozen = subprocess.run([sys.executable, "-S", "-c", FREEZE % processor], capture_output=True, check=False)
        time.sleep(0.3)
    if b"PermissionError" in frozen.stderr:
        pytest.skip("needs the right to real-time priorities")
    assert frozen.returncode == 0, frozen.stderr
    assert watch.seen.worst_stall_ms > 200
    assert "stood still" in str(watch.seen.reason)
