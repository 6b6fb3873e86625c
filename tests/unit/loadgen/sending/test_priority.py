"""A load process goes before others only where it leaves them processors."""

import subprocess
import sys

import pytest

CHILD = """
import os, sys
from loadgen.sending.worker import go_first
few, all_of_them = sorted(os.sched_getaffinity(0))[:2], os.sched_getaffinity(0)
for processors, alone in ((all_of_them, True), (all_of_them, False), (few, True)):
    os.sched_setaffinity(0, processors)
    found = go_first(alone=alone)
    real_time = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
    assert real_time == (found == "real-time"), found
    print(real_time)
"""


@pytest.mark.system
def test_nothing_has_real_time_priority_beside_another_run_or_on_two_processors() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == ["False", "False"]
