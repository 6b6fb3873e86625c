import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from load_records import no_rows
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS, Queue, constant_servers, log_of

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import CapacityEstimate, _Search, find_capacity
from loadgen.statistics.capacity_fit import HeadroomEstimate, Probe, ProbeResult, fit_capacity
from loadgen.statistics.slo_test import certify

SLOW = Queue(
    name="60 ms a request",
    completions=partial(constant_servers, service_s=0.06, servers=1),
    limit_ms=50,
    rate_at_limit_per_s=math.nan,
)


def found(
    load: SimulatedLoad, **options: float | Callable[[], bool] | Callable[[Any], None] | None
) -> CapacityEstimate:
    limits = (LatencyLimit(limit_ms=load.queue.limit_ms),)
    given: dict[str, Any] = {"limits": limits, "budget_s": 30.0, "seed": 1, **options}
    return find_capacity(load, **given)


@pytest.mark.parametrize("start", [None, 0.5, 1.4, 4.0])
def test_any_start_leads_to_the_limit(start: float | None) -> None:
    rate = BATCHING_GPU.rate_at_limit_per_s
    estimate = found(SimulatedLoad(BATCHING_GPU), start_rate_per_s=None if start is None else start * rate)
    assert estimate.outcome == "found"
    assert 0.85 * rate < estimate.rate_per_s < 1.1 * rate
    assert estimate.lower_per_s <= estimate.rate_per_s <= estimate.upper_per_s


def test_the_budget_is_met() -> None:
    load = SimulatedLoad(LONG_BURSTS)
    estimate = found(load, budget_s=12)
    assert estimate.load_s == pytest.approx(load.load_s, abs=0.5)
    assert load.load_s < 14
    assert len(estimate.probes) == len(load.rates)


def test_the_same_seed_probes_the_same_rates_and_another_seed_others() -> None:
    loads = [SimulatedLoad(LONG_BURSTS) for _ in range(3)]
    first, second, other = (
        found(load, budget_s=10, seed=seed) for load, seed in zip(loads, (1, 1, 2), strict=True)
    )
    assert first.rate_per_s == second.rate_per_s != other.rate_per_s
    assert loads[0].rates == loads[1].rates != loads[2].rates


def test_a_server_too_slow_for_a_lone_request_says_so() -> None:
    estimate = found(SimulatedLoad(SLOW), start_rate_per_s=20.0)
    assert estimate.outcome == "too_slow"
    assert estimate.rate_per_s is None
    assert estimate.lone_latency_ms == pytest.approx(60, rel=0.2)


def test_a_server_that_answers_nothing_is_too_slow() -> None:
    def refuse(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        times = np.arange(0, duration_s, 1 / rate_per_s)
        log = log_of(times, times + 0.001)
        log.outcome[:] = 2
        return Probe(log=log, overloaded=False, problems=())

    estimate = find_capacity(refuse, limits=(LatencyLimit(limit_ms=50),), budget_s=30, seed=1)
    assert estimate.outcome == "too_slow"
    assert estimate.lone_latency_ms is None  # no request was answered


def test_where_nothing_breaks_the_limit_there_is_no_upper_bound() -> None:
    """Latencies are far below it wherever there were seconds to try: the line through them says nothing."""

    def answer_at_once(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        times = np.arange(0, duration_s, 1 / rate_per_s)
        return Probe(log=log_of(times, times + 0.002), overloaded=False, problems=())

    estimate = find_capacity(answer_at_once, limits=(LatencyLimit(limit_ms=200),), budget_s=15, seed=1)
    assert estimate.outcome == "found"
    assert estimate.rate_per_s == max(seen.rate_per_s for seen in estimate.probes)
    assert estimate.upper_per_s is None


def test_empty_runs_come_to_an_end() -> None:
    nothing = Probe(log=log_of(np.empty(0), np.empty(0)), overloaded=False, problems=())
    estimate = find_capacity(lambda *_: nothing, limits=(LatencyLimit(limit_ms=50),), budget_s=5, seed=1)
    assert estimate.rate_per_s is None
    assert estimate.outcome == "untrusted"
    assert "no request" in estimate.reason


@pytest.mark.parametrize("share", [1.3, 2.0])
def test_a_rate_out_of_reach_is_given_up_within_one_probe_or_two(share: float) -> None:
    load = SimulatedLoad(BATCHING_GPU)
    estimate = found(load, give_up_below_per_s=share * BATCHING_GPU.rate_at_limit_per_s)
    assert estimate.outcome == "gave_up"
    assert estimate.rate_per_s is None
    assert len(load.rates) <= 2


def test_a_rate_within_reach_is_beaten() -> None:
    rate = 0.7 * BATCHING_GPU.rate_at_limit_per_s
    estimate = found(SimulatedLoad(BATCHING_GPU), give_up_below_per_s=rate)
    assert estimate.outcome == "found"
    assert estimate.rate_per_s > 1.1 * rate


def test_a_probe_with_problems_is_repeated() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset({1}))
    estimate = found(load)
    assert load.rates[1] == load.rates[2]
    assert estimate.outcome == "found"


def test_two_in_a_row_end_the_search() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset({2, 3}))
    estimate = found(load)
    assert estimate.outcome == "untrusted"
    assert estimate.reason == "the client sent late"
    assert estimate.rate_per_s is None
    assert estimate.lower_per_s == max(load.rates[:2])
    assert len(load.rates) == 4


def test_no_seconds_no_rate() -> None:
    assert found(SimulatedLoad(BATCHING_GPU), start_rate_per_s=5000.0, budget_s=1).outcome == "out_of_budget"


def test_what_was_never_tried_is_not_estimated() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    estimate = found(load, budget_s=4)
    assert estimate.outcome == "found"
    assert estimate.rate_per_s <= max(load.rates)


def test_stop_ends_it_with_what_is_known() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    estimate = found(load, stop=lambda: len(load.rates) >= 3)
    assert len(load.rates) == 3
    assert estimate.outcome == "found"


def test_probes_are_told_as_they_end() -> None:
    told: list[Any] = []
    estimate = found(SimulatedLoad(BATCHING_GPU), on_probe=told.append, budget_s=8)
    assert tuple(told) == estimate.probes


VERDICT = certify(next(BATCHING_GPU.logs(1000, 5, seed=3, runs=1)), LatencyLimit(limit_ms=50))
LIMIT = LatencyLimit(quantile=0.99, limit_ms=50.0)


def seen(
    rate_per_s: float, headroom: float, *, error: float = 0.01, p99_ms: float = 30.0, **changes: Any
) -> ProbeResult:
    """A probe that showed this headroom; 0 is an overload."""
    verdict = dataclasses.replace(VERDICT, latency_ms=p99_ms)
    known: dict[str, Any] = {
        "overloaded": headroom == 0,
        "median_ms": 40.0,
        "answered_per_s": 0.0,
        "load_s": 3.0,
        "problems": (),
    }
    reading = HeadroomEstimate(rate_per_s=rate_per_s, headroom=headroom, error=error)
    return ProbeResult(reading=reading, verdict=verdict, first=verdict, **{**known, **changes})


def search(
    *probes: ProbeResult,
    measure: Any = None,
    **changes: Any,
) -> _Search:
    known: dict[str, Any] = {
        "limits": (LIMIT,),
        "budget_s": 60.0,
        "seed": 1,
        "to_beat": None,
        "resolution": 0.02,
        "stop": lambda: False,
        "on_probe": id,
    }
    return _Search(measure=measure, **{**known, **changes}, seen=list(probes))


def test_a_probe_with_problems_says_nothing_and_its_rate_is_tried_again() -> None:
    late = seen(100.0, 3.0, problems=("late",))
    assert search(seen(50.0, 3.0), late).next_rate() == 100.0
    assert search(late).readings == []
    assert search(seen(50.0, 3.0), late, seen(70.0, 2.0)).answer() is None
    ended = search(seen(50.0, 3.0), late, dataclasses.replace(late, problems=("late again",))).answer()
    assert (ended.outcome, ended.reason, ended.rate_per_s, ended.lower_per_s) == (
        "untrusted",
        "late again",
        None,
        50.0,
    )


def test_seconds_are_left_until_the_budget_is_spent_and_an_empty_probe_counts_half_a_second() -> None:
    assert search(seen(50.0, 3.0), seen(60.0, 3.0, load_s=0.0)).left_s() == 60.0 - 3.0 - 0.5


@pytest.mark.parametrize(("headroom", "times"), [(3.1, 4.0), (3.0, 2.0), (1.6, 2.0), (1.5, 1.25), (1.05, 1.25)])
def test_steps_up_are_the_larger_the_further_the_limit_is(headroom: float, times: float) -> None:
    assert search(seen(100.0, headroom)).next_rate() == pytest.approx(100.0 * times)


@pytest.mark.parametrize(("median_ms", "rate"), [(2.0, 350.0), (0.1, 3000.0), (40.0, 400.0)])
def test_one_request_at_a_time_makes_a_rate_that_is_not_doubted(median_ms: float, rate: float) -> None:
    """Seven tenths of 1 / latency, and at most thirty times the rate before; four times it where that is more."""
    found = search(seen(100.0, 4.0, median_ms=median_ms)).next_rate()
    assert found == pytest.approx(max(rate, 400.0))


def test_a_line_through_the_headrooms_says_where_to_go_within_the_step() -> None:
    probes = (seen(100.0, 2.0), seen(120.0, 1.4))
    aim = 1.02 * fit_capacity([each.reading for each in probes]).rate_per_s
    assert 1.1 * 120 < aim < 1.25 * 120
    assert search(*probes).next_rate() == pytest.approx(aim)
    assert search(seen(100.0, 1.41), seen(120.0, 1.4)).next_rate() == pytest.approx(1.25 * 120)
    assert search(seen(100.0, 1.5), seen(120.0, 1.01)).next_rate() == pytest.approx(1.1 * 120)


@pytest.mark.parametrize(
    ("rate", "answered", "following"),
    [
        (1000.0, 800.0, 720.0),
        (5000.0, 800.0, 1250.0),
        (750.0, 800.0, 750.0 / 1.1),
        (10.0, 5.0, 5.0),
        (6.0, 1.0, 5.0),
    ],
)
def test_below_an_overload_comes_nine_tenths_of_what_was_answered(
    rate: float, answered: float, following: float
) -> None:
    """A quarter of the rate at the least, and no less than a rate so low that requests hardly meet."""
    assert search(seen(rate, 0, answered_per_s=answered)).next_rate() == pytest.approx(following)


def test_below_a_violated_rate_comes_what_the_line_says() -> None:
    probe = seen(100.0, 0.9)
    aim = 0.98 * fit_capacity([probe.reading]).rate_per_s
    assert aim > 25.0
    assert search(probe).next_rate() == pytest.approx(min(aim, 100.0 / 1.1))
    assert search(seen(100.0, 0.2)).next_rate() == pytest.approx(
        max(25.0, 0.98 * fit_capacity([seen(100.0, 0.2).reading]).rate_per_s)
    )


def test_after_three_violated_rates_the_rate_is_halved_at_the_least() -> None:
    violated = [seen(rate, 0, answered_per_s=1e4) for rate in (1000.0, 900.0, 800.0)]
    assert search(*violated[:2]).next_rate() == pytest.approx(900.0 / 1.1)
    assert search(*violated).next_rate() == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("answered", "following"), [(500.0, 450.0), (150.0, 100.0 * 10**0.15), (900.0, 100.0 * 10**0.85)]
)
def test_between_a_met_and_an_overloaded_rate_far_apart_it_goes_below_what_was_answered(
    answered: float, following: float
) -> None:
    """Not nearer to either than 15 % of their distance, in logarithms."""
    given = search(seen(100.0, 3.0), seen(1000.0, 0, answered_per_s=answered))
    assert given.next_rate() == pytest.approx(min(following, answered))


def test_between_rates_near_each_other_the_line_decides() -> None:
    probes = (seen(100.0, 1.3), seen(115.0, 0.8))
    knee = fit_capacity([each.reading for each in probes])
    assert search(*probes).next_rate() == pytest.approx(knee.rate_per_s)
    assert 100.0 < knee.rate_per_s < 115.0


def test_no_more_is_tried_than_an_overloaded_server_answered() -> None:
    probes = (seen(100.0, 1.5), seen(105.0, 1.4), seen(119.0, 0, answered_per_s=107.0))
    assert search(*probes).next_rate() <= 107.0


def test_the_rate_at_the_limit_is_found_when_its_error_is_small_and_two_probes_were_near() -> None:
    near = [seen(100.0, 1.1), seen(103.0, 1.02), seen(106.0, 0.93)]
    ended = search(*near).answer()
    knee = fit_capacity([each.reading for each in near])
    assert knee.error <= 0.02
    assert (ended.outcome, ended.upper_per_s, ended.lower_per_s) == ("found", knee.upper_per_s, knee.lower_per_s)
    assert ended.rate_per_s == pytest.approx(knee.rate_per_s * math.exp(-0.5 * knee.error))
    assert ended.load_s == 9.0
    assert search(*near, resolution=0.9 * knee.error).answer() is None
    assert search(seen(70.0, 2.0), seen(103.0, 0.98), resolution=1.0).answer() is None  # only one was near
    assert search(*near[:2], resolution=1.0).answer() is None  # none broke it


def test_one_unlucky_run_of_lone_requests_proves_nothing_but_two_do_and_so_do_most_requests() -> None:
    """5/s are so rare that they hardly meet, at a limit of 50 ms."""
    unlucky = seen(5.0, 0.9, p99_ms=55.0)
    assert search(unlucky).answer() is None
    assert search(unlucky, unlucky).answer().outcome == "too_slow"
    just_within = seen(5.0, 0.99, p99_ms=50.0)
    assert search(just_within, just_within).answer() is None
    slow = search(seen(5.0, 0.5, p99_ms=100.0, median_ms=60.0)).answer()
    assert (slow.outcome, slow.rate_per_s, slow.lone_latency_ms) == ("too_slow", None, 60.0)
    assert "over 50 ms" in slow.reason
    assert search(seen(5.1, 0.5, p99_ms=100.0, median_ms=60.0)).answer() is None


def test_a_rate_to_beat_is_given_up_when_it_surely_breaks_the_limit_or_lies_beyond_the_knee() -> None:
    assert search(seen(100.0, 0.9, error=0.06), to_beat=100.0).answer() is None
    gave_up = search(seen(100.0, 0.9, error=0.04), to_beat=100.0).answer()
    assert (gave_up.outcome, gave_up.rate_per_s, gave_up.lower_per_s) == ("gave_up", None, None)
    assert gave_up.upper_per_s is not None
    assert search(seen(101.0, 0.9, error=0.04), to_beat=100.0).answer() is None  # of another rate
    line = (seen(100.0, 1.2), seen(103.0, 1.1))
    upper = fit_capacity([each.reading for each in line]).upper_per_s
    assert search(*line, to_beat=1.01 * upper).answer().outcome == "gave_up"
    assert search(*line, to_beat=0.99 * upper).answer() is None
    assert search(line[0], to_beat=1e6).answer() is None


@pytest.mark.parametrize(
    ("probes", "outcome", "said"),
    [
        ((seen(100.0, 0.7),), "out_of_budget", "no rate that met"),
        ((seen(100.0, 1.3),), "found", "no rate that violated"),
        ((seen(100.0, 1.5), seen(200.0, 0.7)), "found", "ran out"),
    ],
)
def test_where_the_seconds_run_out_it_is_said_what_was_not_seen(
    probes: tuple[ProbeResult] | tuple[ProbeResult, ProbeResult], outcome: str, said: str
) -> None:
    for changes in ({"budget_s": 3.0 * len(probes) + 1.9}, {"stop": lambda: True}):
        ended = search(*probes, **changes).answer()
        assert ended.outcome == outcome
        assert said in ended.reason
    assert search(*probes, budget_s=3.0 * len(probes) + 2.1).answer() is None


def test_what_was_not_violated_is_not_estimated_above_the_highest_rate_met() -> None:
    probes = (seen(100.0, 3.0), seen(150.0, 2.5))
    knee = fit_capacity([each.reading for each in probes])
    ended = search(*probes, budget_s=6.0).answer()
    assert knee.rate_per_s > ended.rate_per_s == 150.0
    assert ended.lower_per_s == min(150.0, knee.lower_per_s)
    assert ended.upper_per_s == knee.upper_per_s


def test_where_the_headroom_falls_off_a_cliff_the_estimate_is_in_the_middle_of_it() -> None:
    """At 400/s there is room for more than the 420/s that surely break it."""
    probes = (seen(380.0, 3.1), seen(400.0, 3.0), seen(420.0, 0.5, error=0.24))
    assert fit_capacity([each.reading for each in probes]).rate_per_s > 420.0
    ended = search(*probes, budget_s=9.0).answer()
    assert ended.rate_per_s == pytest.approx(math.sqrt(400.0 * 420.0))
    assert ended.upper_per_s == 420.0
    assert ended.lower_per_s <= ended.rate_per_s


@pytest.mark.parametrize(
    ("rate", "probes", "seconds"),
    [
        (1000.0, (), 1.5),
        (50.0, (), 2.0),
        (20.0, (), 3.0),
        (2.0, (), 4.0),  # eight lone requests
        (1000.0, (seen(690.0, 2.0), seen(1100.0, 0.5)), 1.5),
        (1000.0, (seen(710.0, 2.0), seen(1100.0, 0.5)), 3.0),
        (200.0, (seen(190.0, 2.0), seen(220.0, 0.5)), 4.0),
        (50.0, (seen(49.0, 2.0), seen(60.0, 0.5)), 10.0),
    ],
)
def test_a_probe_is_longer_near_the_limit_and_at_low_rates(
    rate: float, probes: tuple[()] | tuple[ProbeResult, ProbeResult], seconds: float
) -> None:
    """Besides its warm-up of a second."""
    runs = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        runs.append((rate_per_s, duration_s, seed))
        return Probe(log=no_rows(), overloaded=False, problems=())

    given = search(*probes, measure=measure)
    given.probe(rate)
    ((sent, duration_s, seed),) = runs
    assert (sent, duration_s) == (rate, pytest.approx(1.0 + seconds))
    assert (seed != 1) is bool(probes), "every probe has fresh arrivals"
    assert given.seen[-1].rate_per_s == rate


def test_a_probe_takes_no_more_than_is_left_but_half_a_second_after_its_warm_up() -> None:
    durations = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        durations.append(duration_s)
        return Probe(log=no_rows(), overloaded=False, problems=())

    for budget_s in (3.5, 1.2):
        search(measure=measure, budget_s=budget_s).probe(2.0)
    assert durations == [3.5, 1.5]
    slow = LatencyLimit(quantile=0.5, limit_ms=600.0)
    assert search(limits=(LIMIT, slow)).warmup_s == pytest.approx(1.8)
    assert search(limits=(LIMIT, slow)).lone_rate_per_s == pytest.approx(250 / 600)


def test_a_probe_near_a_long_limit_lasts_for_forty_of_it() -> None:
    """Besides its warm-up of a second."""
    durations = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        durations.append(duration_s)
        return Probe(log=no_rows(), overloaded=False, problems=())

    near = (seen(710.0, 2.0), seen(1100.0, 0.5))
    search(*near, measure=measure, limits=(LatencyLimit(quantile=0.99, limit_ms=200.0),)).probe(1000.0)
    assert durations == [pytest.approx(1.0 + 8.0)]


def test_rates_a_factor_of_two_apart_are_no_line_yet() -> None:
    assert search(seen(100.0, 3.0), seen(200.0, 0, answered_per_s=150.0)).next_rate() == pytest.approx(135.0)


def test_an_overload_of_which_it_is_not_known_what_was_answered_is_no_saturation() -> None:
    probes = (seen(100.0, 3.0), seen(1000.0, 0, answered_per_s=0.0))
    knee = fit_capacity([each.reading for each in probes])
    assert search(*probes).next_rate() == pytest.approx(knee.rate_per_s)
    assert search(probes[1]).next_rate() == pytest.approx(1000.0 / 1.1)
