import os
import subprocess
import sys

import pytest

from optimizer.stalls import measure_stalls

HOG = """
import os, time
os.sched_setaffinity(0, {%d})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
print("ready", flush=True)
for _ in range(20):
    time.sleep(0.2)
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
"""


def test_a_processor_that_somebody_takes_is_seen():
    processor = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", HOG % processor], stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout is not None
        if hog.stdout.readline() != "ready\n":
            pytest.skip("this user may not go before others")
        seen = measure_stalls(0.5)
        hog.kill()
    assert seen.worst_ms > 80
    assert seen.share > 0.15


def test_all_processors_may_still_be_used_afterwards():
    before = os.sched_getaffinity(0)
    measure_stalls(0.01)
    assert os.sched_getaffinity(0) == before
