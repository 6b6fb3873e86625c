"""Rates found and rates promised, against the known rate at the limit."""

from functools import cache

import numpy as np
import pytest
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, FAST_EXPONENTIAL, LONG_BURSTS, SLOW_EXPONENTIAL, Queue

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import confirm
from loadgen.statistics.find_capacity import find_capacity

pytestmark = pytest.mark.long

RUNS = 16
SEARCH_S = {SLOW_EXPONENTIAL: 40, FAST_EXPONENTIAL: 20, LONG_BURSTS: 20, BATCHING_GPU: 20}
"""A server that answers 90 requests a second needs longer than one that answers 700 and more."""

QUEUES = tuple(SEARCH_S)


@cache
def rates(queue: Queue) -> tuple[list[float], list[float]]:
    """Estimated and promised rates over the true one, of independent searches; 0 where nothing was promised."""
    estimated, promised = [], []
    for seed in range(RUNS):
        load = SimulatedLoad(queue)
        estimate = find_capacity(
            load,
            limits=(LatencyLimit(limit_ms=queue.limit_ms),),
            budget_s=SEARCH_S[queue],
            seed=1_000_003 * seed,
            start_rate_per_s=1.3 * queue.rate_at_limit_per_s,
        )
        estimated.append(estimate.rate_per_s / queue.rate_at_limit_per_s)
        confirmation = confirm(
            load,
            estimate.known,
            estimate.steady,
            limit=LatencyLimit(limit_ms=queue.limit_ms),
            budget_s=3 * SEARCH_S[queue],
            seed=7 + 1_000_003 * seed,
        )
        met = confirmation.met
        promised.append(0.0 if met is None else met.rate_per_s / queue.rate_at_limit_per_s)
    return estimated, promised


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_promises_are_at_most_two_percent_too_high_and_not_far_too_low(queue: Queue) -> None:
    estimated, promised = rates(queue)
    assert 0.9 < np.mean(estimated) < 1.08
    assert np.std(estimated) < 0.15
    assert sum(rate > 1.02 for rate in promised) <= 2  # of 16; 0.8 are allowed on average
    met = [rate for rate in promised if rate]
    assert len(met) >= 0.6 * RUNS
    assert np.mean(met) > 0.7


def test_where_seconds_are_enough_the_promise_is_close() -> None:
    _, promised = rates(BATCHING_GPU)
    assert np.mean(promised) > 0.88
