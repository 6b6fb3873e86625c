"""What a run tells of the machine, and what of its configuration."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from certifications import DEFAULT, EXECUTION_S, PER_S, SLO, belief, tried
from unsteady_machine import Speed, UnsteadyBench

from search.records.run_files import SPEEDS_FILE, SpeedsRecord, read_records
from search.simulator.capacity import rate_at_limit, stand_in
from search.simulator.replay import GRAIN_S, SLOW
from search.study.belief import Belief, alike_seconds
from search.trials.trial import Trial
from search.workload import unit_arrivals

STEADY = [1.0] * 20
SLOW_PHASE = [1.0] * 8 + [0.5] * 3 + [1.0] * 9
"""The speed of the machine in each of 20 seconds."""


def bench(speeds: list[float]) -> UnsteadyBench:
    return UnsteadyBench(service_s=lambda config, size: EXECUTION_S, speed=Speed(np.array(speeds), 1.0))


def after(folder: Path, speeds: list[float], *runs: tuple[Trial, float], profiled: tuple[Trial, ...]) -> Belief:
    """Return the belief about these trials after runs of 10 s at these rates, on a machine of these speeds."""
    known = belief(folder, bench(speeds), *profiled)
    for seed, (trial, rate_per_s) in enumerate(runs):
        known.bench.bench.spent.loading_s = -1.0  # the first load ends as the speeds begin
        known.bench.load(trial.served)
        known.bench.measure(rate_per_s, 10.0, seed)
    return known


def test_before_any_run_a_trial_has_the_capacity_of_its_profile(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    known = belief(tmp_path, bench(STEADY), one)
    assert known.usual_per_s(one) == pytest.approx(PER_S[16], rel=0.05)
    assert known.speed.usual_slowdown(one.served) is None
    assert (len(known.speed.slowdowns), known.speed.seen_s, known.speed.slow_phases()) == (0, 0.0, 0)
    assert known.covers(one, 0.99 * known.usual_per_s(one))
    assert not known.covers(one, 1.01 * known.usual_per_s(one))


def test_a_slow_phase_lowers_the_covered_rate_and_not_the_usual_capacity(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    steady, unsteady = (
        after(tmp_path, speeds, (one, 600.0), (one, 600.0), profiled=(one,)) for speeds in (STEADY, SLOW_PHASE)
    )
    for known in (steady, unsteady):
        assert known.speed.usual_slowdown(one.served) == pytest.approx(1.0, rel=0.03)
        assert known.usual_per_s(one) == pytest.approx(PER_S[16], rel=0.06)
        assert known.speed.seen_s == pytest.approx(20.0, abs=1.0)
    assert (steady.speed.slow_phases(), unsteady.speed.slow_phases()) == (0, 1)
    slow = np.mean(unsteady.speed.slowdowns > math.log1p(SLOW))
    assert slow == pytest.approx(3 / 20, abs=0.03)
    assert steady.highest_covered(one) > 0.9 * PER_S[16]
    assert unsteady.highest_covered(one) < 0.6 * PER_S[16]
    assert unsteady.covers(one, unsteady.highest_covered(one))


def test_the_luck_of_few_arrivals_is_not_taken_for_the_machine(tmp_path: Path) -> None:
    """Some 1,100 requests arrive in what was seen: 11 of them may be late."""
    one = tried(tmp_path, 1, 1, rate_per_s=60.0)
    known = after(tmp_path, STEADY, (one, 55.0), (one, 55.0), profiled=(one,))
    assert known.usual_per_s(one) < 100
    assert known.highest_covered(one) > 0.95 * known.usual_per_s(one)


def test_of_much_that_was_seen_slow_seconds_count_in_full_and_usual_ones_by_some(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    speeds = [*STEADY, *SLOW_PHASE, *STEADY]
    known = after(tmp_path, speeds, *[(one, 600.0)] * 6, profiled=(one,))
    few = Belief(surrogate=known.surrogate, bench=known.bench, max_covered=9_000)
    assert few.highest_covered(one) == pytest.approx(known.highest_covered(one), rel=0.06)
    assert few.highest_covered(one) < 0.8 * PER_S[16], "three of 60 s are slow"

    machine = known.speed.slowdowns
    usual, simulated = alike_seconds(machine, most_s=15.0)
    slow = machine > math.log1p(SLOW)
    assert simulated[slow].all()
    assert not usual[slow].any()
    assert simulated.sum() * GRAIN_S == pytest.approx(15.0, abs=1.5)
    assert alike_seconds(machine, most_s=1e6)[1].all()


def test_what_a_later_run_shows_counts_whoever_asks_for_it_first(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    known = after(tmp_path, SLOW_PHASE[10:] + SLOW_PHASE[:10], (one, 600.0), profiled=(one,))
    rate_per_s = known.highest_covered(one)
    known.bench.measure(600.0, 10.0, 1)
    assert known.speed.slow_phases() == 2, "the phase was split in two"
    assert not known.covers(one, rate_per_s)
    afresh = Belief(surrogate=known.surrogate, bench=known.bench)
    assert known.highest_covered(one) == afresh.highest_covered(one) < rate_per_s


def test_the_speed_in_each_second_of_the_runs_is_kept_for_the_report(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    known = after(tmp_path, SLOW_PHASE, (one, 600.0), (one, 600.0), (one, 600.0), profiled=(one,))
    for number, began_s in enumerate((1e9, 1e9 + 20)):
        known.bench.runs[number] = replace(known.bench.runs[number], began_unix_s=began_s)
    known.speed.keep(tmp_path)
    first, second = read_records(
        tmp_path / SPEEDS_FILE, SpeedsRecord, what="speeds"
    )  # without the third, of which nobody knows when it was
    assert [(one.began_unix_s, len(one.speeds)) for one in (first, second)] == [(1e9, 10), (1e9 + 20, 10)]
    speeds = np.array(first.speeds + second.speeds)
    assert np.median(speeds) == pytest.approx(1.0, abs=0.1)
    slow = np.flatnonzero(speeds < 1 / (1 + SLOW))
    assert np.ptp(slow) == len(slow) - 1 in (2, 3), "the phase of 3 s is in one place"


def test_a_run_whose_requests_waited_outside_of_the_server_says_nothing_about_the_machine(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    known = after(tmp_path, SLOW_PHASE, (one, 600.0), profiled=(one,))
    assert known.speed.slow_phases() == 1
    run = known.bench.runs[0]
    for outside_s, seen in ((0.9 * run.taken_s.mean(), False), (0.1 * run.taken_s.mean(), True)):
        again = belief(tmp_path, bench(STEADY), one)
        again.bench.runs.append(replace(run, outside_s=outside_s))
        assert (again.speed.seen_s > 0) == seen


def test_a_kind_that_was_only_seen_in_slow_phases_is_not_taken_for_slow(tmp_path: Path) -> None:
    """The kind of two instances met nothing else; that of one met slow phases, too."""
    one, two = tried(tmp_path, 16, 1), tried(tmp_path, DEFAULT, 0)
    speeds = [1.0] * 5 + [0.5] * 8 + [1.0] * 7
    known = belief(tmp_path, bench(speeds), one, two)
    for trial, begins_s in ((one, 0.0), (two, 6.0)):
        known.bench.bench.spent.loading_s, known.bench.bench.spent.load_s = begins_s - 1.0, 0.0
        known.bench.load(trial.served)
        known.bench.measure(200.0, 10.0 if trial is one else 5.0, 1)
    assert known.speed.usual_slowdown(two.served) == pytest.approx(1.0, rel=0.05)
    alone = belief(tmp_path, bench([0.5] * 20), two)
    alone.bench.load(two.served)
    alone.bench.measure(200.0, 10.0, 1)
    assert alone.speed.usual_slowdown(two.served) == pytest.approx(2.0, rel=0.05), (
        "nothing else shows a slow machine"
    )


@pytest.mark.parametrize(("pause", "covered"), [(3, True), (12, False)])
def test_pauses_longer_than_the_limit_make_requests_late_at_any_rate(
    tmp_path: Path, pause: int, covered: bool
) -> None:
    """Every 2 s the machine stands still, for so many times 10 ms."""
    one = tried(tmp_path, 16, 1)
    speed = Speed(np.where(np.arange(400) % 200 // pause == 9, 0.02, 1.0), 0.01)
    known = belief(tmp_path, UnsteadyBench(service_s=lambda config, size: EXECUTION_S, speed=speed), one)
    known.bench.load(one.served)
    known.bench.measure(900.0, 20.0, 1)
    assert known.usual_per_s(one) == pytest.approx(PER_S[16], rel=0.1)
    for of_capacity in (0.2, 0.5):
        assert known.covers(one, of_capacity * PER_S[16]) == covered


def test_looks_at_a_trial_make_its_capacity_surer(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1, rate_low_per_s=1300.0, rate_high_per_s=1700.0)
    known = after(tmp_path, STEADY, profiled=(one,))
    before = known.error(one)
    for _ in range(2):
        known.bench.load(one.served)
        known.bench.measure(600.0, 10.0, 1)
    assert 0.015 <= known.error(one) < before


def test_the_outlook_is_better_for_lower_rates_and_more_time(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    known = belief(tmp_path, bench(STEADY), one)

    def share(of_capacity: float, left_s: float) -> float:
        rate_per_s = of_capacity * known.usual_per_s(one)
        return known.outlook(one, rate_per_s, left_s=left_s, confidence=0.95).share

    assert share(0.6, 30.0) == 1.0
    assert share(0.6, 30.0) > share(0.97, 30.0)
    assert share(0.9, 30.0) >= share(0.9, 5.0)
    assert share(0.6, 1.5) == 0.0


def test_what_was_not_profiled_has_a_stand_in_of_its_estimated_capacity(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1, 420.0)
    known = belief(tmp_path, bench(STEADY))
    assert known.usual_per_s(one) == 420.0
    server = stand_in(420.0, known.surrogate.limits, known.surrogate.workload.unit(0, requests=5000))
    assert rate_at_limit(server, SLO.limits, unit_arrivals(1)) == pytest.approx(420.0, rel=0.05)
    known.bench.load(one.served)
    known.bench.measure(300.0, 5.0, 1)
    assert known.speed.seen_s == 0.0, "without execution times a run says nothing of the machine"


def test_slow_phases_count_unless_they_are_ignored(tmp_path: Path) -> None:
    one = tried(tmp_path, 16, 1)
    slow = after(tmp_path, SLOW_PHASE, (one, 600.0), (one, 600.0), profiled=(one,))
    ignoring = Belief(surrogate=slow.surrogate, bench=slow.bench, ignore_slow_phases=True)
    assert slow.highest_covered(one) < 0.9 * slow.usual_per_s(one)
    assert ignoring.highest_covered(one) == ignoring.usual_per_s(one) == slow.usual_per_s(one)
    assert ignoring.covers(one, 0.95 * slow.usual_per_s(one))


def test_a_limit_has_to_be_kept_in_two_minutes_however_much_was_seen(tmp_path: Path) -> None:
    """Of ten minutes 0.2 % are slow, and 1 % of the two in which they are; 1 % of requests may be late."""
    one = tried(tmp_path, 16, 1)
    known = after(tmp_path, STEADY, (one, 600.0), profiled=(one,))
    few = np.zeros(round(600 / GRAIN_S))
    few[: round(1.2 / GRAIN_S)] = math.log(2)
    assert known.covers(one, 0.6 * PER_S[16])
    known = Belief(surrogate=known.surrogate, bench=known.bench)
    known.speed.look()
    known.speed._slowdowns = few
    assert not known.covers(one, 0.6 * PER_S[16])
