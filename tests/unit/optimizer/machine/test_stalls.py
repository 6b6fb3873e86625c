import os
import subprocess
import sys

import pytest

from loadgen.measurement.other_runs import other_runs
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.limits import LatencyLimit
from optimizer.machine.stalls import MachineStalls, SchedulingStalls, check_quiet, measure_stalls
from search.trials import events

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


@pytest.mark.measure
def test_a_processor_that_somebody_takes_is_seen() -> None:
    processor = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", HOG % processor], stdout=subprocess.PIPE, text=True) as hog:
        if hog.stdout.readline() != "ready\n":
            pytest.skip("this user may not go before others")
        seen = measure_stalls(0.5)
        hog.kill()
    assert seen.worst_ms > 80
    assert seen.share() > 0.15
    assert 0 < seen.share(90.0) <= seen.share()
    assert seen.share(1000.0) == 0.0


def test_all_processors_may_still_be_used_afterwards() -> None:
    before = os.sched_getaffinity(0)
    measure_stalls(0.01)
    assert os.sched_getaffinity(0) == before


LIMIT = LatencyLimit(limit_ms=50.0)


def checked(
    *delays_ms: tuple[float, ...], despite_noise: bool = False, limit: LatencyLimit = LIMIT
) -> list[events.Event]:
    """Return the notes of a check in which the processors had these delays."""
    seen: list[events.Event] = []
    check_quiet(
        limit,
        despite_noise=despite_noise,
        on_event=seen.append,
        measure=lambda seconds: SchedulingStalls(seconds=seconds, delays_ms=delays_ms),
    )
    return seen


def test_a_quiet_machine_is_passed_without_a_word() -> None:
    assert checked((0.1, 4.9) * 100, (0.2, 12.0)) == []


def test_stalls_below_the_limit_are_reported_and_the_run_goes_on() -> None:
    (note,) = checked((0.1,), (30.0, 49.0, 0.2))
    assert isinstance(note, events.Note)
    assert note.warning
    assert "49.0 ms" in note.text


def test_stalls_over_the_limit_for_over_one_per_cent_are_refused() -> None:
    """20 ms are 1 % of 2 s, so any stall of 50 ms is more; those of several processors do not add up."""
    with pytest.raises(MachineStalls) as refused:
        checked((0.1,), (60.0, 55.0, 0.2))
    assert refused.value.exit_code == 98
    assert "60.0 ms" in refused.value.what
    assert "5.8 %" in refused.value.what
    assert "--despite-noise" in refused.value.fix
    assert len(checked((60.0, 55.0), despite_noise=True)) == 1


OF_ANOTHER = """
import sys
from loadgen.measurement.other_runs import other_runs
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.limits import LatencyLimit
from optimizer.machine.doctor import Check, diagnose
from optimizer.machine.stalls import MachineStalls, SchedulingStalls, check_quiet
try:
    stalls = SchedulingStalls(seconds=2.0, delays_ms=((900.0,),))
    check_quiet(LatencyLimit(limit_ms=50.0), despite_noise=False, measure=lambda seconds: stalls)
except MachineStalls as refused:
    print(refused.what)
embedded = Check(name="Triton, embedded", state="ok", found="")
print(next(f"{check.found} {check.state}" for check in diagnose(lambda: embedded) if check.name == "quiet"))
"""


@pytest.mark.system
def test_a_run_that_sends_load_is_named_to_another_and_not_to_itself() -> None:
    me = f"(process {os.getpid()})"
    with LoadGenerator():
        done = subprocess.run([sys.executable, "-c", OF_ANOTHER], capture_output=True, text=True, check=True)
        assert not any(me in run for run in other_runs(os.getpid()))
    refusal, diagnosis = done.stdout.splitlines()
    assert me in refusal
    assert me in diagnosis
    assert diagnosis.endswith("poor")


def test_a_limit_below_five_milliseconds_is_not_refused_for_what_every_timer_does() -> None:
    tiny = LatencyLimit(limit_ms=0.05)
    assert checked((0.1, 2.2, 4.9) * 400, limit=tiny) == []
    with pytest.raises(MachineStalls, match=r"delays over 5 ms took 3 % of 2 s"):
        checked((6.0,) * 10, limit=tiny)


def test_the_share_is_that_of_the_worst_processor() -> None:
    seen = SchedulingStalls(seconds=2.0, delays_ms=((9.0, 9.0, 4.9), (10.0,)))
    assert seen.share(5.0) == pytest.approx(0.009)
    assert seen.share(9.5) == pytest.approx(0.005)
    assert seen.worst_ms == 10.0
