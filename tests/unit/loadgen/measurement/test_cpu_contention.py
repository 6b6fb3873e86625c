"""What counts as taken by others, from the kernel's counters."""

import os
import subprocess
import sys
import time

import pytest

from loadgen.measurement.cpu_contention import (
    CpuContention,
    NeighbourSampler,
    Reading,
    contention_between,
    counters_of_family,
    mark_of,
    none_if_not_watched,
    processor_ticks,
)

START = Reading(at_s=100.0, busy_s=5000.0, idle_s=3000.0, stolen_s=7.0, ours_s=40.0)


def after(seconds: float, *, busy_s: float, idle_s: float, ours_s: float, stolen_s: float = 0.0) -> CpuContention:
    now = Reading(
        at_s=START.at_s + seconds,
        busy_s=START.busy_s + busy_s,
        idle_s=START.idle_s + idle_s,
        stolen_s=START.stolen_s + stolen_s,
        ours_s=START.ours_s + ours_s,
    )
    return contention_between(START, now)


def test_what_others_took_is_what_was_busy_without_ours() -> None:
    seen = after(2.0, busy_s=3.9, idle_s=0.1, ours_s=2.1)
    assert seen.watched_s == seen.disturbed_s == 2.0
    assert seen.others_cpu_s == pytest.approx(1.8)
    assert seen.stolen_cpu_s == 0.0


def test_a_machine_of_our_own_is_not_disturbed() -> None:
    assert after(2.0, busy_s=3.9, idle_s=0.1, ours_s=3.8) == CpuContention(watched_s=2.0)


def test_a_process_may_be_charged_more_than_the_processors_were_seen_busy() -> None:
    """The kernel counts the two in different ways."""
    assert after(1.0, busy_s=1.7, idle_s=0.0, ours_s=1.9) == CpuContention(watched_s=1.0)


def test_others_on_a_machine_with_more_to_spare_than_they_take_do_not_count() -> None:
    assert after(1.0, busy_s=4.0, idle_s=60.0, ours_s=3.0).disturbed_s == 0.0
    assert after(1.0, busy_s=7.7, idle_s=0.3, ours_s=6.7).disturbed_s == 1.0


def test_what_the_host_gave_to_other_guests_counts_however_idle_the_rest_is() -> None:
    seen = after(1.0, busy_s=0.4, idle_s=1.0, ours_s=0.4, stolen_s=0.6)
    assert seen.disturbed_s == 1.0
    assert seen.stolen_cpu_s == pytest.approx(0.6)
    assert seen.others_cpu_s == 0.0


def test_parts_add_up_and_can_be_taken_away() -> None:
    one = after(2.0, busy_s=3.9, idle_s=0.1, ours_s=2.1)
    other = after(1.0, busy_s=2.0, idle_s=0.0, ours_s=2.0)
    assert (one + other).watched_s == 3.0
    assert (one + other).disturbed_s == 2.0
    assert one + other - one == other


def test_only_our_processors_are_read_and_interrupts_are_nobodys() -> None:
    stat = "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 1 2 4 8 16 32 64 128 0 0\ncpu1 9 9 9 9 9 9 9 9 9 9\nintr 5 0 1\n"
    assert processor_ticks(stat, {0}) == (7, 24, 128)
    assert processor_ticks(stat, {0, 1}) == (34, 42, 137)
    assert processor_ticks(stat, {7}) == (0, 0, 0)


def test_the_counters_of_this_machine_know_what_we_and_our_children_took() -> None:
    spin = "import time\ninput()\nend = time.process_time() + 0.15\nwhile time.process_time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as child:
        read = counters_of_family()
        before = read()
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass
        child.stdin.write(b"\n")
        child.stdin.close()
        child.wait()
        now = read()
    assert now.ours_s - before.ours_s >= 0.2  # of 0.3 s of processor time, in ticks of 10 ms
    assert now.at_s > before.at_s
    processors = len(os.sched_getaffinity(0))
    assert now.busy_s - before.busy_s <= 1.1 * processors * (now.at_s - before.at_s) + 0.1


def test_a_sampler_sees_all_of_its_block() -> None:
    readings = iter(
        Reading(at_s=float(at), busy_s=2.0 * at, idle_s=0.0, stolen_s=0.0, ours_s=float(at)) for at in (0, 1)
    )
    with NeighbourSampler(lambda: next(readings)) as sampler:
        pass
    assert sampler.seen == CpuContention(watched_s=1.0, disturbed_s=1.0, others_cpu_s=1.0)


def test_where_nobody_can_look_nothing_is_said() -> None:
    def missing() -> Reading:
        raise FileNotFoundError("/proc/stat")

    for read in (None, missing):
        with NeighbourSampler(read) as sampler:
            pass
        assert sampler.seen == CpuContention()


def seen(disturbed_s: float, of_s: float, *, others: float = 0.0, stolen: float = 0.0) -> CpuContention:
    return CpuContention(
        watched_s=of_s,
        disturbed_s=disturbed_s,
        others_cpu_s=others * disturbed_s,
        stolen_cpu_s=stolen * disturbed_s,
    )


@pytest.mark.parametrize(
    ("record", "mark"),
    [
        (
            seen(34, 120, others=0.9, stolen=0.5),
            "other processes took 0.9 cores and other guests of the host took 0.5 cores for 34 of 120 s of load",
        ),
        (seen(2, 120, others=0.9), None),  # too small a share
        (seen(0.5, 1, others=0.9), None),  # too short
        (seen(0, 0), None),
        (None, None),
    ],
)
def test_what_is_worth_a_word_is_said_in_a_sentence(record: CpuContention | None, mark: str | None) -> None:
    assert mark_of(record) == mark


def test_what_nobody_looked_at_is_unknown_and_not_nothing() -> None:
    assert none_if_not_watched(CpuContention()) is None
    assert none_if_not_watched(CpuContention(watched_s=3.0)) == seen(0, 3)
