"""When a process counts as stopped, in virtual time."""

import os
import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from loadgen.processes import LONGEST_S, Silence, runs


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.runs = True

    def silence(self) -> Silence:
        return Silence(lambda: self.runs, lambda: self.now_s)


@given(every_s=st.floats(0.001, 1.0))
def test_a_stopped_process_is_noticed_within_six_seconds_however_often_one_looks(every_s: float) -> None:
    clock = Clock()
    silence = clock.silence()
    clock.runs = False
    stopped_s = clock.now_s
    while not silence.too_long():
        clock.now_s += every_s
    assert LONGEST_S - 1e-6 <= clock.now_s - stopped_s <= LONGEST_S + 1.0 + 1e-6


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.booleans()), max_size=200))
def test_a_process_that_runs_now_and_then_is_not_given_up(looks: list[tuple[float, bool]]) -> None:
    clock = Clock()
    silence = clock.silence()
    silent_s = 0.0
    for after_s, is_running in looks:
        clock.now_s, clock.runs = clock.now_s + after_s, is_running
        silent_s = 0.0 if is_running else silent_s + after_s
        if silence.too_long():
            assert silent_s >= LONGEST_S - 1e-6
            return
    assert silent_s <= LONGEST_S + 1e-6


def test_a_pause_of_the_one_who_looks_is_not_the_others_silence() -> None:
    clock = Clock()
    silence = clock.silence()
    clock.runs = False
    for _ in range(4):
        clock.now_s += 3600
        assert not silence.too_long()
    clock.runs = True
    assert not silence.too_long()


def test_the_kernel_tells_whether_a_process_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert runs(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not runs(process.pid))
        process.kill()
    assert runs(os.getpid())
    assert runs(process.pid)  # gone: its end says so in another way
