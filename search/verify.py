"""One short load run of a predicted configuration, replayed in the simulator: how far the prediction was off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from search.demand import Demand
from search.predict import REQUESTS, binding_limit, rate_at_limit, sharpness
from search.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loadgen.measurement import RequestLog
    from search.predict import Promise, Sharpness
    from search.simulator import SimulatedServer

    Floats = NDArray[np.float64]

MATCHED = (0.8, 0.9, 0.95, 0.98, 0.99)
"""The quantiles of latency that a replay matches: those that make the rate at the limit."""

SLOWEST, FASTEST = 3.0, 0.4
"""Bounds of the factor between real and profiled execution times; nothing beyond is believed."""

LEAST_REQUESTS = 50
LEAST_ERROR = 0.015
WANTED_ERROR = 0.025
LEAST_S, MOST_S = 3.0, 8.0
ANY = Demand()
"""Single requests in Poisson arrivals."""

_STEPS = 14
_REQUESTS_FOR_SHARPNESS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The rate at the limit after a replay, the standard error of its logarithm, and by how much executions took
    longer than was profiled."""

    rate_per_s: float
    error: float
    slowdown: float


def seconds_for(sharp: Sharpness, rate_per_s: float, promise: Promise) -> float:
    """How long a run near the limit has to be for the error that is wanted, within reason."""
    needed = sharp.relative_error(1.0, promise.quantile) ** 2 / WANTED_ERROR**2
    return min(max(LEAST_S, needed / rate_per_s), MOST_S)


def binding_of(
    server: SimulatedServer, promise: Promise, rate_per_s: float, seed: int, demand: Demand = ANY
) -> Promise:
    """`search.predict.binding_limit` with as few requests."""
    return binding_limit(server, promise, rate_per_s, demand.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def sharpness_of(
    server: SimulatedServer, promise: Promise, rate_per_s: float, seed: int, demand: Demand = ANY
) -> Sharpness:
    """`search.predict.sharpness` with few enough requests to cost next to nothing."""
    return sharpness(server, promise, rate_per_s, demand.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def verified(
    server: SimulatedServer, log: RequestLog, promise: Promise, *, seed: int, demand: Demand = ANY
) -> Verified | None:
    """What a run says of the server's rate at the limit.

    None where it says nothing: few requests, failures, or executions unlike what was profiled by far.
    """
    strictest = max(one.quantile for one in promise.each)
    if len(log) < LEAST_REQUESTS or log.failed.mean() > 1 - strictest:
        return None
    matched = {*MATCHED, *(one.quantile for one in promise.each if one.quantile < MATCHED[0])}
    slowdown = replayed_slowdown(server, log.scheduled_ns / 1e9, log.latency_ns / 1e9, sorted(matched))
    if not 1.01 * FASTEST < slowdown < 0.99 * SLOWEST:
        return None
    slower = server.slowed(slowdown)
    rate = rate_at_limit(slower, promise, demand.unit(seed, requests=REQUESTS))
    if not rate > 0:
        return Verified(rate_per_s=0.0, error=math.inf, slowdown=slowdown)
    binding = binding_of(slower, promise, rate, seed, demand)
    sharp = sharpness_of(slower, binding, rate, seed, demand)
    error = math.hypot(LEAST_ERROR, sharp.relative_error(len(log), binding.quantile))
    return Verified(rate_per_s=rate, error=error, slowdown=slowdown)


def replayed_slowdown(
    server: SimulatedServer, arrivals_s: Floats, latency_s: Floats, quantiles: Sequence[float] = MATCHED
) -> float:
    """The factor on execution times with which the same arrivals have the same quantiles of latency."""
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
