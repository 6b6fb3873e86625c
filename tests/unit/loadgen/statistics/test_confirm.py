import dataclasses
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from load_records import no_rows
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import Capacity
from loadgen.statistics.confirm import MAX_UNTRUSTED, UNTRUSTED_FOR_S, Confirmation, confirm
from loadgen.statistics.probe import Measure, Probe, evaluate_probe
from loadgen.statistics.slo_test import certify

KNEE = BATCHING_GPU.rate_at_limit_per_s


def seen_at(*shares: float) -> Capacity:
    """What runs at these shares of the capacity taught."""
    load, limits = SimulatedLoad(BATCHING_GPU), (LatencyLimit(limit_ms=50),)
    known = Capacity.guessed(shares[0] * KNEE, 0.05)
    for seed, share in enumerate(shares):
        known = known.updated(evaluate_probe(load(share * KNEE, 5.0, seed), share * KNEE, limits))
    return known


NEAR = seen_at(0.6, 1.5, 0.9, 0.97, 1.02)


def confirmed(measure: Measure, known: Capacity = NEAR, **options: Any) -> Confirmation:
    return confirm(measure, known, **{"limit": LatencyLimit(limit_ms=50), "budget_s": 60.0, "seed": 1, **options})


def test_a_rate_below_the_limit_is_met_and_then_a_higher_one_in_the_seconds_left() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    ended: list[Any] = []
    confirmation = confirmed(load, on_attempt=ended.append)
    met = [attempt.rate_per_s for attempt in confirmation.attempts if attempt.met]
    assert 0.85 * KNEE < confirmation.met.rate_per_s == max(met) < KNEE
    assert confirmation.met.verdict.answer == "met"
    assert tuple(ended) == confirmation.attempts
    assert confirmation.load_s == pytest.approx(load.load_s, abs=0.5)
    assert load.load_s < 61


def test_more_seconds_certify_more() -> None:
    rates = [confirmed(SimulatedLoad(BATCHING_GPU), budget_s=seconds).met.rate_per_s for seconds in (12, 40, 150)]
    assert rates == sorted(rates)
    assert rates[-1] > 0.93 * KNEE


def test_nothing_is_promised_on_too_few_seconds() -> None:
    known = Capacity.guessed(LONG_BURSTS.rate_at_limit_per_s, 0.05)
    confirmation = confirmed(SimulatedLoad(LONG_BURSTS), known, budget_s=4)
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
    confirmation = confirmed(load)
    assert confirmation.met is None
    assert confirmation.attempts
    for attempt in confirmation.attempts:
        assert not attempt.met
        assert attempt.violated is not late


def test_a_run_that_sent_nothing_counts_against_the_budget_too() -> None:
    runs: list[Any] = []

    def nothing(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        assert len(runs) < 31, "it goes on for ever"
        runs.append(rate_per_s)
        return Probe(log=no_rows(), overloaded=False, problems=())

    assert confirmed(nothing).met is None


@pytest.mark.parametrize("confidence", [0.8, 0.999])
def test_a_rate_is_met_with_the_confidence_that_was_asked_for(confidence: float) -> None:
    confirmation = confirmed(SimulatedLoad(BATCHING_GPU), confidence=confidence)
    assert confirmation.met.verdict.confidence == confidence


def test_only_two_looks_in_a_row_end_a_run_as_met() -> None:
    """The first comes before any request has ended; one in between sees a second of requests that were late."""
    good = next(BATCHING_GPU.logs(0.7 * KNEE, 20, seed=3, runs=1))
    late = dataclasses.replace(good, done_ns=good.done_ns + np.where(good.scheduled_ns > 19.5e9, 10**9, 0))
    assert [certify(log, LatencyLimit(limit_ms=50)).answer for log in (good, late)] == ["met", "inconclusive"]
    answers: list[Any] = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        answers.extend(watch(log) for log in (no_rows(), good, late, good, good))
        return Probe(log=good, overloaded=False, problems=())

    assert confirmed(measure).met is not None
    assert answers[:5] == [False, False, False, False, True]


def test_the_answer_that_ended_a_run_is_that_of_its_last_look() -> None:
    """What came in while the run ended, a second of late requests, would leave it inconclusive."""
    good = next(BATCHING_GPU.logs(0.7 * KNEE, 20, seed=3, runs=1))
    late = dataclasses.replace(good, done_ns=good.done_ns + np.where(good.scheduled_ns > 19.5e9, 10**9, 0))

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        assert [watch(good), watch(good)] == [False, True]
        return Probe(log=late, overloaded=False, problems=())

    limit = LatencyLimit(limit_ms=50)
    confirmation = confirmed(measure)
    assert confirmation.met.verdict == certify(good, limit)


def test_runs_with_problems_are_repeated_at_the_same_rate() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset({0, 1}))
    confirmation = confirmed(load)
    assert load.rates[0] == load.rates[1] == load.rates[2]
    assert confirmation.met is not None
    assert not confirmation.attempts[0].met


def test_problems_that_go_on_end_it() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(100)))
    confirmation = confirmed(load, budget_s=600.0)
    assert confirmation.met is None
    assert confirmation.reason == "the client sent late"
    assert len(load.rates) >= MAX_UNTRUSTED
    assert UNTRUSTED_FOR_S <= load.load_s < 2 * UNTRUSTED_FOR_S


def test_short_runs_with_problems_are_repeated_until_what_disturbs_them_is_gone() -> None:
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(MAX_UNTRUSTED)))
    confirmation = confirmed(load)
    assert sum(attempt.load_s for attempt in confirmation.attempts[:MAX_UNTRUSTED]) < UNTRUSTED_FOR_S
    assert confirmation.met is not None
    assert len(set(load.rates[: MAX_UNTRUSTED + 1])) == 1


def test_stop_is_asked_before_and_within_runs() -> None:
    load = SimulatedLoad(BATCHING_GPU)
    assert confirmed(load, stop=lambda: True).attempts == ()
    asked = []
    confirmed(load, stop=lambda: asked.append(1) or len(asked) > 3)
    assert load.load_s < 3


@pytest.mark.parametrize("slower", [2.0, 3.0])
def test_a_server_that_became_slower_shows_in_two_runs_what_it_can_do(slower: float) -> None:
    load = SimulatedLoad(BATCHING_GPU)
    known = replace(NEAR, ln_rates=NEAR.ln_rates + math.log(slower))
    confirmation = confirmed(load, known, budget_s=90.0)
    assert confirmation.met.rate_per_s > 0.7 * KNEE
    assert load.rates[2] < 1.5 * KNEE


def test_every_attempt_has_fresh_arrivals() -> None:
    seeds = []

    def measure(rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        seeds.append(seed)
        return SimulatedLoad(BATCHING_GPU)(rate_per_s, duration_s, seed, watch)

    confirmed(measure, seed=5)
    assert seeds[0] == 5
    assert len(set(seeds)) == len(seeds) > 1
