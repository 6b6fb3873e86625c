"""Rates at the limit with few simulations, against a bisection that simulates everything."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import WARMUP_SHARE, rate_at_limit, rates_at_limit
from search.simulator.server import SimulatedServer, simulate
from search.workload import unit_arrivals


def server(
    *, fixed_s: float, each_s: float, max_batch: int, instances: int, noise: float = 0.05
) -> SimulatedServer:
    """Two busy instances are 1.6 times as fast as one."""
    sizes, busy = np.arange(max_batch + 1), np.arange(instances + 1)
    factors = np.exp(np.random.default_rng(1).normal(0, 0.05, 48))
    return SimulatedServer(
        service_s=(fixed_s + each_s * sizes)[:, None] * np.maximum(busy, 1)[None, :] ** 0.32,
        noise=tuple(factors),
        overhead_s=4e-4,
    )


SERVERS = [
    server(fixed_s=fixed_s, each_s=each_s, max_batch=max_batch, instances=instances)
    for fixed_s, each_s in ((0.0012, 0.00012), (0.004, 0.0011), (0.0006, 0.003))
    for max_batch, instances in ((1, 1), (1, 4), (4, 2), (16, 1), (64, 4))
]


def by_bisection(one: SimulatedServer, limit: LatencyLimit, unit: NDArray[Any]) -> float:
    first = round(WARMUP_SHARE * len(unit))
    high = one.saturation_per_s
    low = high / 1000
    while math.log(high / low) > 0.0005:
        rate = math.sqrt(low * high)
        late = np.sum(simulate(one, unit / rate)[first:] > limit.limit_s)
        low, high = (rate, high) if late <= (1 - limit.quantile) * (len(unit) - first) else (low, rate)
    return low


@pytest.mark.parametrize("limit_s", [0.009, 0.02, 0.1])
def test_few_simulations_find_what_a_full_bisection_finds(limit_s: float) -> None:
    limit, unit = LatencyLimit(limit_ms=1e3 * limit_s), unit_arrivals(11)
    full = [by_bisection(one, limit, unit) for one in SERVERS]
    off = np.log(np.array(rates_at_limit(SERVERS, (limit,), unit)) / full)
    assert np.median(np.abs(off)) < 0.003
    assert abs(off.mean()) < 0.004
    # Late requests come in bursts, so their number crosses what is allowed more than once in places, by a few
    # percent of the rate; two searches may then end at different crossings.
    assert np.abs(off).max() < 0.05


def test_the_guess_hardly_matters() -> None:
    limit, unit, one = LatencyLimit(limit_ms=20.0), unit_arrivals(12), SERVERS[2]
    rates = [
        rate_at_limit(one, (limit,), unit, guess_per_s=share * one.saturation_per_s) for share in (0.05, 0.5, 0.95)
    ]
    assert rates == pytest.approx([rates[0]] * 3, rel=0.01)


def test_servers_that_differ_in_their_delay_alone_are_told_apart_from_others() -> None:
    one = SERVERS[2]
    assert one.without_delay() == replace(one, max_queue_delay_s=0.004).without_delay()
    assert one.without_delay() != one.slowed(1.01).without_delay()
    assert one.without_delay() != replace(one, overhead_s=0.0).without_delay()
