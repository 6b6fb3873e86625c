import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS, Queue, constant_servers, log_of

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.find_capacity import CapacityEstimate, find_capacity
from loadgen.statistics.probe import Probe

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
    ended: list[Any] = []
    estimate = found(load, budget_s=12, on_probe=ended.append)
    assert tuple(ended) == estimate.probes
    assert estimate.load_s == pytest.approx(load.load_s, abs=1.0)
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


@pytest.mark.parametrize("start_per_s", [None, 100.0, 300.0, 5000.0])
def test_a_server_that_is_slower_when_idle_has_a_capacity(start_per_s: float | None) -> None:
    """It takes 12 ms after 20 ms of silence, else 1 ms; its queue ends at 2,500/s."""

    def sleepy(rate_per_s: float, duration_s: float, seed: int, watch: object = None) -> Probe:
        del watch
        gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, round(2 * rate_per_s * duration_s) + 10)
        times = np.cumsum(gaps)
        times = times[times < duration_s]
        taken = constant_servers(np.random.default_rng(0), times[None, :], service_s=0.0004, servers=1)[0]
        slow = np.diff(times, prepend=-1.0) > 0.02
        return Probe(log=log_of(times, taken + np.where(slow, 0.012, 0.001)), overloaded=False, problems=())

    limits = (LatencyLimit(limit_ms=5),)
    estimate = find_capacity(sleepy, limits=limits, budget_s=60, seed=1, start_rate_per_s=start_per_s)
    assert estimate.outcome == "found"
    assert 1500 < estimate.rate_per_s < 2500


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


def test_where_latencies_are_flat_until_requests_pile_up_the_estimate_is_at_that_cliff() -> None:
    def saturating(rate_per_s: float, duration_s: float, seed: int, watch: Any = None) -> Probe:
        times = np.arange(0, duration_s, 1 / rate_per_s)
        return Probe(log=log_of(times, times + 0.002), overloaded=rate_per_s > 1000, problems=())

    estimate = find_capacity(saturating, limits=(LatencyLimit(limit_ms=50),), budget_s=30, seed=1)
    assert estimate.rate_per_s == pytest.approx(1000, rel=0.1)
