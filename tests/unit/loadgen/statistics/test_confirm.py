import dataclasses
from typing import Any

import numpy as np
import pytest
from load_records import no_rows
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import Probe
from loadgen.statistics.confirm import FIRST_SHARE, MAX_UNTRUSTED, UNTRUSTED_FOR_S, Confirmation, confirm
from loadgen.statistics.slo_test import certify

KNEE = BATCHING_GPU.rate_at_limit_per_s


def confirmed(load: SimulatedLoad, rate: float, **options: Any) -> Confirmation:
    limits = (LatencyLimit(limit_ms=load.queue.limit_ms),)
    return confirm(load, rate, **{"limits": limits, "budget_s": 60.0, "seed": 1, **options})


def test_a_rate_below_the_limit_is_met_and_the_run_stops_itself() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 0.88 * KNEE)
    assert confirmation.met.rate_per_s == pytest.approx(FIRST_SHARE * 0.88 * KNEE)
    assert confirmation.met.verdict.answer == "met"
    assert len(confirmation.attempts) == 1
    assert load.load_s < 40
    assert confirmation.load_s == pytest.approx(load.load_s, abs=0.5)


def test_a_rate_above_the_limit_is_lowered() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    ended: list[Any] = []
    confirmation = confirmed(load, 1.3 * KNEE, on_attempt=ended.append)
    assert confirmation.met.rate_per_s < KNEE
    assert tuple(ended) == confirmation.attempts
    assert load.rates == sorted(load.rates, reverse=True)
    assert not confirmation.attempts[0].met


def test_nothing_is_promised_on_too_few_seconds() -> None:
    confirmation = confirmed(SimulatedLoad(LONG_BURSTS), LONG_BURSTS.rate_at_limit_per_s, budget_s=6)
    assert confirmation.met is None
    assert "ran out" in confirmation.reason


@dataclasses.dataclass
class Overloaded(SimulatedLoad):
    """Every run ends because requests pile up, whatever its log says."""

    def __call__(self, *arguments: Any, **options: Any) -> Probe:
        return dataclasses.replace(super().__call__(*arguments, **options), overloaded=True)


@pytest.mark.parametrize("late", [False, True])
def test_a_rate_that_overloads_the_server_is_violated_whatever_its_latencies(late: bool) -> None:
    load = Overloaded(BATCHING_GPU, problems_in=frozenset(range(100) if late else ()))
    confirmation = confirmed(load, 0.5 * KNEE, floor_per_s=0.45 * KNEE)
    assert confirmation.met is None
    for attempt in confirmation.attempts:
        assert attempt.verdict.answer == "met"
        assert not attempt.met
        assert attempt.violated is not late


def test_a_run_that_sent_nothing_counts_against_the_budget_too() -> None:
    runs: list[Any] = []

    def nothing(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        assert len(runs) < 31, "it goes on for ever"
        runs.append(rate_per_s)
        return Probe(log=no_rows(), overloaded=False, problems=())

    assert confirm(nothing, 1000.0, limits=(LatencyLimit(limit_ms=50),), budget_s=60.0, seed=1).met is None


@pytest.mark.parametrize("confidence", [0.8, 0.999])
def test_a_rate_is_met_with_the_confidence_that_was_asked_for(confidence: float) -> None:
    confirmation = confirmed(SimulatedLoad(BATCHING_GPU), 0.7 * KNEE, confidence=confidence)
    assert confirmation.met.verdict.confidence == confidence


def test_only_two_looks_in_a_row_end_a_run_as_met() -> None:
    """The first comes before any request has ended; one in between sees a second of requests that were late."""
    good = next(BATCHING_GPU.logs(0.7 * KNEE, 20, seed=3, runs=1))
    late = dataclasses.replace(good, done_ns=good.done_ns + np.where(good.scheduled_ns > 19.5e9, 10**9, 0))
    assert [certify(log, LatencyLimit(limit_ms=50)).answer for log in (good, late)] == ["met", "inconclusive"]
    answers: list[Any] = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        answers.extend(watch(log) for log in (no_rows(), good, late, good, good))
        return Probe(log=good, overloaded=False, problems=())

    assert confirm(measure, 0.7 * KNEE, limits=(LatencyLimit(limit_ms=50),), budget_s=60.0, seed=1).met is not None  # type: ignore[arg-type]
    assert answers == [False, False, False, False, True]


def test_the_answer_that_ended_a_run_is_that_of_its_last_look() -> None:
    """What came in while the run ended, a second of late requests, would leave it inconclusive."""
    good = next(BATCHING_GPU.logs(0.7 * KNEE, 20, seed=3, runs=1))
    late = dataclasses.replace(good, done_ns=good.done_ns + np.where(good.scheduled_ns > 19.5e9, 10**9, 0))

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        assert [watch(good), watch(good)] == [False, True]
        return Probe(log=late, overloaded=False, problems=())

    limit = LatencyLimit(limit_ms=50)
    confirmation = confirm(measure, 0.7 * KNEE, limits=(limit,), budget_s=60.0, seed=1)  # type: ignore[arg-type]
    assert confirmation.met.verdict == certify(good, limit)


def test_the_floor_is_kept_to() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 2 * KNEE, floor_per_s=1.7 * KNEE)
    assert confirmation.met is None
    assert "met the SLO" in confirmation.reason
    assert min(load.rates) >= 1.7 * KNEE


def test_the_floor_itself_is_tried() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 0.7 * KNEE, floor_per_s=FIRST_SHARE * 0.7 * KNEE)
    assert confirmation.met is not None
    assert load.rates == [FIRST_SHARE * 0.7 * KNEE]


def test_runs_with_problems_are_repeated_at_the_same_rate() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset({0, 1}))
    confirmation = confirmed(load, 0.88 * KNEE)
    assert load.rates[0] == load.rates[1] == load.rates[2]
    assert confirmation.met is not None
    assert not confirmation.attempts[0].met


def test_problems_that_go_on_end_it() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(100)))
    confirmation = confirmed(load, 0.8 * KNEE, budget_s=600.0)
    assert confirmation.met is None
    assert confirmation.reason == "the client sent late"
    assert len(load.rates) >= MAX_UNTRUSTED
    assert UNTRUSTED_FOR_S <= load.load_s < 2 * UNTRUSTED_FOR_S


def test_short_runs_with_problems_are_repeated_until_what_disturbs_them_is_gone() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(MAX_UNTRUSTED)))
    confirmation = confirmed(load, 0.8 * KNEE)
    assert sum(attempt.load_s for attempt in confirmation.attempts[:-1]) < UNTRUSTED_FOR_S
    assert confirmation.met is not None
    assert len(load.rates) == MAX_UNTRUSTED + 1


def test_stop_is_asked_before_and_within_runs() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    assert confirmed(load, KNEE, stop=lambda: True).attempts == ()
    asked = []
    confirmed(load, 0.9 * KNEE, stop=lambda: asked.append(1) or len(asked) > 3)
    assert load.load_s < 3


def test_a_rate_that_takes_many_times_the_seconds_of_a_lower_one_is_given_up() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 1.01 * KNEE / FIRST_SHARE, budget_s=200.0)
    assert confirmation.met is not None
    assert len(load.rates) > 1
    assert max(attempt.load_s for attempt in confirmation.attempts) < 100.0


@pytest.mark.parametrize("slower", [2.0, 3.0, 10.0])
def test_a_server_that_became_slower_shows_in_one_run_what_it_can_do(slower: float) -> None:
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, slower * KNEE)
    assert confirmation.met.rate_per_s > 0.7 * KNEE
    assert load.rates[1] < 1.2 * KNEE
    assert len(load.rates) < 6
    assert confirmation.attempts[0].served_per_s < 1.5 * KNEE


def test_every_attempt_has_fresh_arrivals() -> None:
    seeds = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any) -> Probe:
        seeds.append(seed)
        return SimulatedLoad(BATCHING_GPU)(rate_per_s, duration_s, seed, watch)

    confirm(measure, 1.3 * KNEE, limits=(LatencyLimit(limit_ms=50),), budget_s=60.0, seed=5)  # type: ignore[arg-type]
    assert seeds[0] == 5
    assert len(set(seeds)) == len(seeds) > 1
