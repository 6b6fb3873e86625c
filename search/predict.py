"""The rate at the limit of simulated servers, each under the same arrivals."""

from __future__ import annotations

import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from loadgen.arrivals import schedule
from loadgen.plan import Arrivals, LoadPlan
from search.edge import TYPICAL_ELASTICITY, find_edge
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
COARSE_WIDTH = 0.15
"""A first look with few of them leaves the many a short way to go."""

WARMUP_SHARE = 0.05
WIDTH = 0.025
"""Of ln(rate), between the two rates from which the one at the limit is interpolated."""

_FIRST_GUESS = 0.75  # of the saturation rate

_PROBE_RATE_PER_S = 1000.0  # at which arrivals are drawn; they are scaled to any other
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


def rate_at_limit(
    server: SimulatedServer, promise: Promise, unit: Floats, *, guess_per_s: float | None = None
) -> float:
    """The highest rate that keeps the promise; 0 where none does. `unit`: see `unit_arrivals`.

    A good guess saves time and hardly changes the answer.
    """
    first, *others = promise.each
    rate = _rate_below(server.saturation_per_s, server, first, unit, guess_per_s)
    for other in others:
        late = _Late(server, other, unit)
        if rate > 0 and late(rate, at_most=late.allowed) > late.allowed:
            rate = _rate_below(rate, server, other, unit, None)
    return rate


def _rate_below(
    most_per_s: float, server: SimulatedServer, promise: Promise, unit: Floats, guess_per_s: float | None
) -> float:
    """The rate at a single limit, below one that is too much."""
    few, many = (_Late(server, promise, arrivals) for arrivals in (unit[:COARSE_REQUESTS], unit))
    coarse = find_edge(
        few,
        allowed=few.allowed,
        most_per_s=most_per_s,
        guess_per_s=guess_per_s or _FIRST_GUESS * most_per_s,
        elasticity=TYPICAL_ELASTICITY,
        width=COARSE_WIDTH,
    )
    if not coarse.rate_per_s > 0:
        return 0.0
    return find_edge(
        many,
        allowed=many.allowed,
        most_per_s=most_per_s,
        guess_per_s=coarse.rate_per_s,
        elasticity=coarse.elasticity,
        width=WIDTH,
    ).rate_per_s


def binding_limit(server: SimulatedServer, promise: Promise, rate_per_s: float, unit: Floats) -> Promise:
    """Of several limits, the one that is used up most at a rate."""
    if not promise.also:
        return promise
    latency_s = simulate(server, unit / rate_per_s).latency_s
    return max(promise.each, key=lambda one: float(np.quantile(latency_s, one.quantile)) / one.limit_s)


@dataclass(frozen=True, slots=True)
class _Late:
    """Counts the requests of a simulated server that are over the limit, after a warm-up."""

    server: SimulatedServer
    promise: Promise
    unit: Floats

    @property
    def counted_from(self) -> int:
        return round(WARMUP_SHARE * len(self.unit))

    @property
    def allowed(self) -> int:
        return math.floor((1 - self.promise.quantile) * (len(self.unit) - self.counted_from))

    def __call__(self, rate_per_s: float, *, at_most: int) -> int:
        return count_late(
            self.server,
            self.unit / rate_per_s,
            limit_s=self.promise.limit_s,
            counted_from=self.counted_from,
            at_most=at_most,
        )


def rates_at_limit(
    servers: Sequence[SimulatedServer], promise: Promise, unit: Floats, *, threads: int = 1
) -> list[float]:
    """`rate_at_limit` of each, in order, under the same arrivals, on so many cores.

    Servers that differ in nothing but their queue delay are a good guess for each other.
    """
    alike: dict[object, list[int]] = defaultdict(list)
    for number, server in enumerate(servers):
        alike[server.without_delay()].append(number)
    rates = [0.0] * len(servers)

    def find(numbers: list[int]) -> None:
        guess_per_s = None
        for number in sorted(numbers, key=lambda number: servers[number].max_queue_delay_s):
            rates[number] = rate_at_limit(servers[number], promise, unit, guess_per_s=guess_per_s)
            guess_per_s = rates[number] or guess_per_s

    if threads == 1:
        for numbers in alike.values():
            find(numbers)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(find, alike.values()))
    return rates


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
