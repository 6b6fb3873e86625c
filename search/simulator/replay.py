"""Replay a short load run of a predicted configuration in the simulator, which corrects its predicted capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.capacity import Sharpness, binding_limit, rate_at_limit, sharpness
from search.simulator.server import SimulatedServer, simulate
from search.workload import REQUESTS, Workload

MATCHED = (0.8, 0.9, 0.95, 0.98, 0.99)
"""The quantiles of latency that a replay matches: those that determine the capacity."""

SLOWEST, FASTEST = 3.0, 0.4
"""Bounds of the factor between real and profiled execution times; a replay within 1 % of them has no result."""

LEAST_REQUESTS = 50
LEAST_ERROR = 0.015
WANTED_ERROR = 0.025
LEAST_REPLAY_S, MOST_REPLAY_S = 3.0, 8.0
ANY = Workload()
"""Single requests in Poisson arrivals."""

_STEPS = 14
_REQUESTS_FOR_SHARPNESS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The capacity after a replay, the standard error of its logarithm, and the factor by which executions took
    longer than profiled."""

    rate_per_s: float
    error: float
    slowdown: float


def seconds_for(sharp: Sharpness, rate_per_s: float, limit: LatencyLimit) -> float:
    """Return the seconds that a run near the capacity takes for the wanted error: 3 at least, 8 at most."""
    needed = sharp.relative_error(1.0, limit.quantile) ** 2 / WANTED_ERROR**2
    return min(max(LEAST_REPLAY_S, needed / rate_per_s), MOST_REPLAY_S)


def binding_of(
    server: SimulatedServer, limits: Sequence[LatencyLimit], rate_per_s: float, seed: int, workload: Workload = ANY
) -> LatencyLimit:
    """Return `search.simulator.capacity.binding_limit` with as few requests as `sharpness_of`."""
    return binding_limit(server, limits, rate_per_s, workload.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def sharpness_of(
    server: SimulatedServer, limit: LatencyLimit, rate_per_s: float, seed: int, workload: Workload = ANY
) -> Sharpness:
    """Return `search.simulator.capacity.sharpness` with so few requests that it takes hardly any time."""
    return sharpness(server, limit, rate_per_s, workload.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def replay_run(
    server: SimulatedServer,
    log: RequestLog,
    limits: Sequence[LatencyLimit],
    *,
    seed: int,
    workload: Workload = ANY,
) -> ReplayResult | None:
    """Return the server's capacity as estimated from a run.

    None if that is not possible: too few requests, failures, or executions far from the profile.
    """
    strictest = max(one.quantile for one in limits)
    if len(log) < LEAST_REQUESTS or log.failed.mean() > 1 - strictest:
        return None
    matched = {*MATCHED, *(one.quantile for one in limits if one.quantile < MATCHED[0])}
    slowdown = replayed_slowdown(server, log.scheduled_ns / 1e9, log.latency_ns / 1e9, sorted(matched))
    if not 1.01 * FASTEST < slowdown < 0.99 * SLOWEST:
        return None
    slower = server.slowed(slowdown)
    rate = rate_at_limit(slower, limits, workload.unit(seed, requests=REQUESTS))
    if not rate > 0:
        return ReplayResult(rate_per_s=0.0, error=math.inf, slowdown=slowdown)
    binding = binding_of(slower, limits, rate, seed, workload)
    sharp = sharpness_of(slower, binding, rate, seed, workload)
    error = math.hypot(LEAST_ERROR, sharp.relative_error(len(log), binding.quantile))
    return ReplayResult(rate_per_s=rate, error=error, slowdown=slowdown)


def replayed_slowdown(
    server: SimulatedServer, arrivals_s: Floats, latency_s: Floats, quantiles: Sequence[float] = MATCHED
) -> float:
    """Return the factor on execution times with which the same arrivals have the same quantiles of latency."""
    wanted = np.quantile(latency_s, quantiles, method="inverted_cdf")

    def too_slow(factor: float) -> bool:
        simulated_s = simulate(server.slowed(factor), arrivals_s).latency_s
        simulated = np.quantile(simulated_s, quantiles, method="inverted_cdf")
        return float(np.mean(np.log(simulated / wanted))) > 0

    low, high = math.log(FASTEST), math.log(SLOWEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_slow(math.exp(middle)) else (middle, high)
    return math.exp((low + high) / 2)
