"""The simulator against queues whose answer is known in closed form, and against an independent simulation."""

import math
from typing import Any

import numpy as np
import pytest
from batchers import mean_batch_size
from numpy.typing import NDArray
from plain_queue import batched_queue, shaped_queue

from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import rate_at_limit, rates_at_limit, sharpness, variance_inflation
from search.simulator.server import SimulatedServer, simulate
from search.workload import unit_arrivals

LONG = 400_000


def constant(seconds: float, *, instances: int = 1, max_batch: int = 1) -> NDArray[Any]:
    return np.full((max_batch + 1, instances + 1), seconds)


def exponential_noise(n: int = 100_003) -> tuple[float, ...]:
    return tuple(np.random.default_rng(5).exponential(1.0, n) + 1e-12)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_at_a_time_with_constant_service_is_m_d_1(load: float) -> None:
    """Mean wait of M/D/1: rho / (2 mu (1 - rho))."""
    seen = simulate(SimulatedServer(service_s=constant(1.0)), unit_arrivals(1, requests=LONG) / load)
    assert seen.mean() == pytest.approx(1 + load / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (2, 0.7), (4, 0.8)])
def test_one_at_a_time_with_exponential_service_is_m_m_c(servers: int, load: float) -> None:
    """P(wait) by Erlang's C formula; the mean wait follows."""
    offered = servers * load
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    last = offered**servers / math.factorial(servers) / (1 - load)
    wait = last / (below + last) / (servers * (1 - load))
    server = SimulatedServer(service_s=constant(1.0, instances=servers), noise=exponential_noise())
    seen = simulate(server, unit_arrivals(2, requests=LONG) / offered)
    assert seen.mean() == pytest.approx(1 + wait, rel=0.04)


def test_the_m_m_1_rate_at_the_limit() -> None:
    """Time in the system is exponential with rate mu - lambda: p99 = ln(100) / (mu - lambda)."""
    server = SimulatedServer(service_s=constant(1.0), noise=exponential_noise())
    rate = rate_at_limit(server, (LatencyLimit(limit_ms=20000.0),), unit_arrivals(3, requests=LONG))
    assert rate == pytest.approx(1 - math.log(100) / 20, rel=0.02)


def test_a_batch_of_all_that_wait_is_the_bulk_queue() -> None:
    """With batches of any size in constant time, a request waits for the rest of one execution and then its own.

    When the server never idles the wait is uniform over an execution: the mean is 1.5 executions.
    """
    server = SimulatedServer(service_s=constant(1.0, max_batch=400))
    arrivals_s = unit_arrivals(4, requests=LONG) / 40
    seen = simulate(server, arrivals_s)
    assert seen.mean() == pytest.approx(1.5, rel=0.01)
    assert mean_batch_size(server, arrivals_s) == pytest.approx(40, rel=0.02)


@pytest.mark.parametrize(
    ("max_batch", "instances", "rate_per_s"), [(4, 1, 300), (8, 2, 900), (16, 1, 600), (64, 3, 2000)]
)
def test_without_delay_it_is_the_plain_pull_of_what_waits(max_batch: int, instances: int, rate_per_s: int) -> None:
    arrivals_s = unit_arrivals(5, requests=20_000) / rate_per_s
    column = 0.006 + 0.0007 * np.arange(max_batch + 1)
    service_s = np.repeat(column[:, None], instances + 1, axis=1)
    pulled = batched_queue(arrivals_s, service_s=service_s)
    assert np.allclose(simulate(SimulatedServer(service_s=service_s), arrivals_s), pulled - arrivals_s, atol=1e-9)


@pytest.mark.parametrize(
    ("turn", "max_batch", "instances", "rate_per_s"),
    [("aab", 8, 1, 150), ("abcb", 4, 2, 180), ("aaaaaac", 8, 1, 250), ("aaaaaaaac", 4, 3, 750)],
)
def test_without_delay_only_neighbours_of_one_shape_are_pulled(
    turn: str, max_batch: int, instances: int, rate_per_s: int
) -> None:
    arrivals_s = unit_arrivals(5, requests=20_000) / rate_per_s
    shapes = ["abc".index(letter) for letter in turn]
    times_s = 0.004 + 0.0006 * np.arange(max_batch + 1)[None, :] * np.array([1, 4, 9])[:, None]
    server = SimulatedServer(
        service_s=np.repeat(times_s[:, :, None], instances + 1, axis=2),
        turns=np.array([shapes, shapes]),
        variable_shapes=True,
    )
    pulled = shaped_queue(arrivals_s, shapes=shapes, service_s=times_s, instances=instances)
    assert np.allclose(simulate(server, arrivals_s), pulled - arrivals_s, atol=1e-9)


def test_a_higher_rate_breaks_the_limit_more_often() -> None:
    column = 0.006 + 0.0007 * np.arange(9)
    unit = unit_arrivals(6)
    server = SimulatedServer(service_s=np.repeat(column[:, None], 3, axis=1), max_queue_delay_s=0.002)
    rate = rate_at_limit(server, (LatencyLimit(limit_ms=30.0),), unit)
    shares = [(simulate(server, unit / (rate * step)) > 0.03).mean() for step in (0.9, 0.97, 1.03, 1.1)]
    assert shares == sorted(shares)
    assert shares[1] < 0.01 < shares[2]


def test_what_is_too_slow_alone_keeps_no_rate() -> None:
    assert (
        rate_at_limit(SimulatedServer(service_s=constant(0.1)), (LatencyLimit(limit_ms=50.0),), unit_arrivals(7))
        == 0.0
    )


def test_threads_change_nothing() -> None:
    servers = [SimulatedServer(service_s=constant(0.001 * k, max_batch=8)) for k in (1, 2, 3)]
    limits, unit = (LatencyLimit(limit_ms=20.0),), unit_arrivals(8, requests=10_000)
    assert rates_at_limit(servers, limits, unit, threads=2) == rates_at_limit(servers, limits, unit)


def test_independent_violations_are_not_inflated_and_bursts_are() -> None:
    rng = np.random.default_rng(9)
    assert variance_inflation(rng.random(200_000) < 0.01) == pytest.approx(1, abs=0.25)
    bursts = np.repeat(rng.random(20_000) < 0.01, 10)
    assert variance_inflation(bursts) == pytest.approx(10, rel=0.3)


def test_sharpness_tells_how_far_estimates_of_the_rate_scatter() -> None:
    """The error it foretells is that of rates found from independent arrivals, within a factor of two."""
    column = 0.006 + 0.0007 * np.arange(9)
    server = SimulatedServer(service_s=np.repeat(column[:, None], 2, axis=1))
    limit, requests = LatencyLimit(limit_ms=30.0), 20_000
    rates = [rate_at_limit(server, (limit,), unit_arrivals(100 + seed, requests=requests)) for seed in range(24)]
    foretold = sharpness(server, limit, float(np.mean(rates)), unit_arrivals(10, requests=LONG))
    seen = float(np.std(np.log(rates)))
    assert 0.5 < foretold.relative_error(requests, limit.quantile) / seen < 2
