"""The rate at the limit of simulated servers, each under the same arrivals."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loadgen.arrivals import schedule
from loadgen.plan import Arrivals, LoadPlan
from search.simulator import count_late, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from search.records import Slo
    from search.simulator import SimulatedServer

    Floats = NDArray[np.float64]

REQUESTS = 30_000
"""How many arrivals decide a rate; the error is sqrt(VIF / (0.01 x 30,000)) / elasticity, 1 to 3 % where it is
sharp."""

COARSE_REQUESTS = 5_000
COARSE_RESOLUTION = 0.08
"""A first look with few of them leaves the many a short way to go."""

WARMUP_SHARE = 0.05
RESOLUTION = 0.008
"""Of ln(rate), where the bisection ends: its middle is at most half of that away."""

_PROBE_RATE_PER_S = 1000.0  # at which arrivals are drawn; they are scaled to any other
_STEP_DOWN = 0.5
_LEAST_STEP = 0.95
_LEAST_SHARE = 1e-3  # of the saturation rate: below, a server is said to keep no rate
_ELASTICITY_STEP = 0.03
_LEAST_BLOCKS = 16
_LAG_1 = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The limit to predict for: at least `quantile` of all requests are answered within `limit_s`.

    `also` are limits that have to be kept besides.
    """

    limit_s: float
    quantile: float = 0.99
    also: tuple[Promise, ...] = ()

    @property
    def each(self) -> tuple[Promise, ...]:
        """Every limit on its own, the first one first."""
        return (replace(self, also=()), *self.also)


def promise_of(slo: Slo) -> Promise:
    """Every latency limit of a run."""
    first, *others = (Promise(limit_s=limit.limit_ms / 1e3, quantile=limit.quantile) for limit in slo.limits)
    return replace(first, also=tuple(others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """How well a run near the limit can tell the rate at it.

    `elasticity`: by how many percent violations grow when the rate grows by one. `vif`: how much more their number
    varies than that of independent ones would.
    """

    elasticity: float
    vif: float

    def relative_error(self, requests: float, quantile: float) -> float:
        """Standard error of ln(rate at the limit), from so many requests near it."""
        return math.sqrt(self.vif / ((1 - quantile) * requests)) / self.elasticity


def unit_arrivals(seed: int, *, requests: int = REQUESTS, arrivals: Arrivals | None = None) -> Floats:
    """Arrival times at one request per second, of whatever kind: divide them by a rate to have it."""
    duration_s = requests / _PROBE_RATE_PER_S
    plan = LoadPlan(
        rate_per_s=_PROBE_RATE_PER_S, duration_s=duration_s, seed=seed, arrivals=arrivals or Arrivals()
    )
    return schedule(plan) * (1e-9 * _PROBE_RATE_PER_S)


def rate_at_limit(server: SimulatedServer, promise: Promise, unit: Floats) -> float:
    """The highest rate that keeps the promise; 0 where none does. `unit`: see `unit_arrivals`."""
    first, *others = promise.each
    rate = _rate_below(server.saturation_per_s, server, first, unit)
    for other in others:
        if rate > 0 and not _Keeps(server, other, unit)(rate):
            rate = min(rate, _rate_below(rate, server, other, unit))
    return rate


def _rate_below(most_per_s: float, server: SimulatedServer, promise: Promise, unit: Floats) -> float:
    """The rate at a single limit, sought from a rate downwards."""
    few = _Keeps(server, promise, unit[:COARSE_REQUESTS])
    low, high = _bracket(few, _STEP_DOWN * most_per_s, most_per_s, COARSE_RESOLUTION)
    if not low > 0:
        return 0.0
    low, high = _bracket(_Keeps(server, promise, unit), low, high, RESOLUTION)
    return math.sqrt(low * high)


def binding_limit(server: SimulatedServer, promise: Promise, rate_per_s: float, unit: Floats) -> Promise:
    """Of several limits, the one that is used up most at a rate."""
    if not promise.also:
        return promise
    latency_s = simulate(server, unit / rate_per_s).latency_s
    return max(promise.each, key=lambda one: float(np.quantile(latency_s, one.quantile)) / one.limit_s)


@dataclass(frozen=True, slots=True)
class _Keeps:
    """Whether a simulated server keeps the promise at a rate."""

    server: SimulatedServer
    promise: Promise
    unit: Floats

    def __call__(self, rate_per_s: float) -> bool:
        first = round(WARMUP_SHARE * len(self.unit))
        allowed = math.floor((1 - self.promise.quantile) * (len(self.unit) - first))
        return allowed >= count_late(
            self.server,
            self.unit / rate_per_s,
            limit_s=self.promise.limit_s,
            counted_from=first,
            at_most=allowed,
        )


def _bracket(keeps: _Keeps, low: float, high: float, resolution: float) -> tuple[float, float]:
    """Rates near each other, between which the promise breaks, starting from a guess; (0, 0): no rate keeps it.

    Beyond saturation nothing is kept for long, and nothing is tried.
    """
    saturation_per_s = keeps.server.saturation_per_s
    step = min(low / high, _LEAST_STEP)
    while not keeps(low):
        high, low = low, step * low
        if low < _LEAST_SHARE * saturation_per_s:
            return 0.0, 0.0
    while high < saturation_per_s and keeps(high):
        low, high = high, min(high / step, saturation_per_s)
    while math.log(high / low) > resolution:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low, high


def rates_at_limit(
    servers: Sequence[SimulatedServer], promise: Promise, unit: Floats, *, threads: int = 1
) -> list[float]:
    """`rate_at_limit` of each, in order, under the same arrivals, on so many cores."""
    if threads == 1:
        return [rate_at_limit(server, promise, unit) for server in servers]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda server: rate_at_limit(server, promise, unit), servers))


def sharpness(server: SimulatedServer, promise: Promise, rate_per_s: float, unit: Floats) -> Sharpness:
    """Elasticity and variance inflation of the violations at a rate near the limit."""
    late = [
        max(1, count_late(server, unit / rate, limit_s=promise.limit_s))
        for rate in (rate_per_s * math.exp(-_ELASTICITY_STEP), rate_per_s * math.exp(_ELASTICITY_STEP))
    ]
    elasticity = max(1.0, math.log(late[1] / late[0]) / (2 * _ELASTICITY_STEP))
    over = simulate(server, unit / rate_per_s).latency_s > promise.limit_s
    return Sharpness(elasticity=elasticity, vif=variance_inflation(over))


def variance_inflation(over: NDArray[np.bool_]) -> float:
    """Variance of the number of violations over what it would be if they were independent, by batch means.

    Blocks of equal numbers of requests, doubled until neighbours hardly correlate; at least 1.
    """
    share = float(over.mean())
    if not 0 < share < 1:
        return 1.0
    size = max(1, len(over) // 4096)
    blocks = over[: len(over) // size * size].reshape(-1, size).sum(axis=1).astype(float)
    while len(blocks) >= 2 * _LEAST_BLOCKS:
        excess = blocks - blocks.mean()
        if float(excess[1:] @ excess[:-1]) < _LAG_1 * float(excess @ excess):
            break
        even = len(blocks) // 2 * 2
        blocks, size = blocks[:even].reshape(-1, 2).sum(axis=1), 2 * size
    return max(1.0, float(blocks.var(ddof=1)) / (size * share * (1 - share)))
