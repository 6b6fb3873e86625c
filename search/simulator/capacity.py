"""Find the capacity of simulated servers in few simulations, all under the same arrivals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.dependence import LAG_1
from search.arrays import Floats
from search.simulator.server import Simulated, SimulatedServer, count_late, simulate

LEAST_OF_MOST = 1e-3
"""The search ends with a capacity of 0 once it would go below 0.1 % of the highest rate."""

PRIOR_ELASTICITY = 30.0
"""First guess, before anything was simulated: late requests grow by 30 % if the rate grows by 1 %."""

COUNTED_UP_TO = 4
"""A simulation ends once more than 4 times the allowed number is late: the rate is known to be too high."""

_STRAIGHT = 3.0
"""Between points whose ln(late requests) differ by at most 3, it is taken as a straight line over ln(rate)."""

_LARGEST_STEP = 0.35
_AWAY_FROM_THE_ENDS = 0.1


Late = Callable[[float, int], int]
"""Takes a rate and a number; returns how many requests are late at it, or any number above that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The rate at which exactly the allowed number is late, 0 if none is low enough; the elasticity there."""

    rate_per_s: float
    elasticity: float


@dataclass(frozen=True, slots=True)
class _Point:
    """ln(rate), and ln(late / allowed) at it: above 0 if too many are late, inf if they were not counted."""

    x: float
    y: float


def find_edge(
    late: Late, *, allowed: int, most_per_s: float, guess_per_s: float, elasticity: float, width: float
) -> Edge:
    """Return the rate at which `allowed` requests are late; `most_per_s` is assumed to be too high.

    It is interpolated once it lies between two rates that differ by `width` or less, in ln(rate). The better
    `guess_per_s` and `elasticity`, the fewer rates are simulated; the result hardly depends on them.
    """
    search = _Crossing(low=None, high=_Point(math.log(most_per_s), math.inf), elasticity=elasticity, width=width)
    x = min(math.log(guess_per_s), search.high.x - width / 2)
    while not search.ended():
        counted = late(math.exp(x), COUNTED_UP_TO * allowed)
        y = math.log((counted + 0.5) / (allowed + 0.5)) if counted <= COUNTED_UP_TO * allowed else math.inf
        search = search.after(_Point(x, y))
        x = search.next()
        if search.low is None and x < math.log(LEAST_OF_MOST * most_per_s):
            return Edge(rate_per_s=0.0, elasticity=elasticity)
    return Edge(rate_per_s=math.exp(search.root()), elasticity=search.elasticity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossing:
    """The highest rate that is known to be low enough, and the lowest that is known to be too high."""

    low: _Point | None
    high: _Point
    elasticity: float
    width: float
    step: float = 0.05  # size of the last step, while all rates were too high

    def after(self, seen: _Point) -> _Crossing:
        low, high = (seen, self.high) if seen.y <= 0 else (self.low, seen)
        elasticity = self.elasticity
        if low is not None and math.isfinite(high.y):
            elasticity = max(1.0, (high.y - low.y) / (high.x - low.x))
        step = min(2 * self.step, math.log(2)) if low is None else self.step
        return _Crossing(low=low, high=high, elasticity=elasticity, width=self.width, step=step)

    def ended(self) -> bool:
        if self.low is None or self.high.x - self.low.x > self.width:
            return False
        return self.high.y - self.low.y <= _STRAIGHT or self.high.x - self.low.x <= self.width / 4

    def root(self) -> float:
        """Return the ln(rate) at which the line between the two points is 0; their middle if it is too steep."""
        assert self.low is not None
        apart = self.high.x - self.low.x
        rise = self.high.y - self.low.y
        return self.low.x + apart * (-self.low.y / rise if rise <= _STRAIGHT else 0.5)

    def next(self) -> float:
        """Return a ln(rate) just beyond the expected crossing, so that the next two lie on either side of it."""
        beyond = self.width / 4
        if self.low is None:
            known = math.isfinite(self.high.y)
            return self.high.x - (self.high.y / self.elasticity + beyond if known else self.step)
        apart = self.high.x - self.low.x
        margin = _AWAY_FROM_THE_ENDS * apart
        if math.isfinite(self.high.y):
            root = self.low.x - self.low.y * apart / (self.high.y - self.low.y)
            x = root - beyond if root - self.low.x > self.high.x - root else root + beyond
        else:
            x = self.low.x + min(-self.low.y / self.elasticity + beyond, _LARGEST_STEP, apart / 2)
        return min(max(x, self.low.x + margin), self.high.x - margin)


COARSE_REQUESTS = 5_000
COARSE_WIDTH = 0.15
"""A first search with few requests gives the second one, with many, a good start."""

WARMUP_SHARE = 0.05
WIDTH = 0.025
"""The capacity is interpolated between two rates that differ by at most this, in ln(rate)."""

_FIRST_GUESS = 0.75  # of the saturation rate

_ELASTICITY_STEP = 0.03
_ENOUGH_BLOCKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """How precisely a run near the capacity determines it.

    `elasticity`: the growth of violations in percent if the rate grows by 1 %. `vif`: the variance of their number
    over that of independent violations.
    """

    elasticity: float
    vif: float

    def relative_error(self, requests: float, quantile: float) -> float:
        """Return the standard error of ln(capacity) from this many requests near it."""
        return math.sqrt(self.vif / ((1 - quantile) * requests)) / self.elasticity


def rate_at_limit(
    server: Simulated, limits: Sequence[LatencyLimit], unit: Floats, *, guess_per_s: float | None = None
) -> float:
    """Return the highest rate that meets all limits; 0 if none does. `unit`: see `unit_arrivals`.

    A good guess saves time and hardly changes the result.
    """
    first, *others = limits
    rate = _rate_below(server.saturation_per_s, server, first, unit, guess_per_s)
    for other in others:
        if rate > 0 and not keeps(server, (other,), unit, rate):
            rate = _rate_below(rate, server, other, unit, None)
    return rate


def keeps(server: Simulated, limits: Sequence[LatencyLimit], unit: Floats, rate_per_s: float) -> bool:
    """True if the server meets all limits at this rate, which takes a single simulation of each."""
    if rate_per_s >= server.saturation_per_s:
        return False
    # Most rates that are asked for are far too high, which few requests show.
    few, many = ([_Late(server, limit, part) for limit in limits] for part in (unit[:COARSE_REQUESTS], unit))
    if any(late(rate_per_s, most := 10 + 3 * late.allowed) > most for late in few):
        return False
    return all(late(rate_per_s, late.allowed) <= late.allowed for late in many)


def _rate_below(
    most_per_s: float, server: Simulated, limit: LatencyLimit, unit: Floats, guess_per_s: float | None
) -> float:
    """Return the capacity under a single limit; `most_per_s` is assumed to be too high."""
    few, many = (_Late(server, limit, arrivals) for arrivals in (unit[:COARSE_REQUESTS], unit))
    coarse = find_edge(
        few,
        allowed=few.allowed,
        most_per_s=most_per_s,
        guess_per_s=guess_per_s or _FIRST_GUESS * most_per_s,
        elasticity=PRIOR_ELASTICITY,
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


def binding_limit(
    server: Simulated, limits: Sequence[LatencyLimit], rate_per_s: float, unit: Floats
) -> LatencyLimit:
    """Return the limit with the highest ratio of latency to limit at this rate."""
    if len(limits) == 1:
        return limits[0]
    latency_s = simulate(server, unit / rate_per_s)
    return max(limits, key=lambda one: float(np.quantile(latency_s, one.quantile)) / one.limit_s)


@dataclass(frozen=True, slots=True)
class _Late:
    """Counts the requests of a simulated server that are over the limit, after a warm-up."""

    server: Simulated
    limit: LatencyLimit
    unit: Floats

    @property
    def counted_from(self) -> int:
        return round(WARMUP_SHARE * len(self.unit))

    @property
    def allowed(self) -> int:
        return math.floor((1 - self.limit.quantile) * (len(self.unit) - self.counted_from))

    def __call__(self, rate_per_s: float, at_most: int) -> int:
        return count_late(
            self.server,
            self.unit / rate_per_s,
            limit_s=self.limit.limit_s,
            counted_from=self.counted_from,
            at_most=at_most,
        )


def rates_at_limit(
    servers: Sequence[Simulated], limits: Sequence[LatencyLimit], unit: Floats, *, threads: int = 1
) -> list[float]:
    """Return `rate_at_limit` of each server, in order, under the same arrivals.

    Servers that differ only in their queue delay give each other the first guess.
    """
    alike: dict[object, list[int]] = defaultdict(list)
    for number, server in enumerate(servers):
        alike[server.without_delay()].append(number)
    rates = [0.0] * len(servers)

    def find(numbers: list[int]) -> None:
        guess_per_s = None
        for number in sorted(numbers, key=lambda number: servers[number].max_queue_delay_s):
            rates[number] = rate_at_limit(servers[number], limits, unit, guess_per_s=guess_per_s)
            guess_per_s = rates[number] or guess_per_s

    if threads == 1:
        for numbers in alike.values():
            find(numbers)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(find, alike.values()))
    return rates


def sharpness(server: Simulated, limit: LatencyLimit, rate_per_s: float, unit: Floats) -> Sharpness:
    """Return elasticity and variance inflation of the violations at a rate near the capacity."""
    late = [
        max(1, count_late(server, unit / rate, limit_s=limit.limit_s))
        for rate in (rate_per_s * math.exp(-_ELASTICITY_STEP), rate_per_s * math.exp(_ELASTICITY_STEP))
    ]
    elasticity = max(1.0, math.log(late[1] / late[0]) / (2 * _ELASTICITY_STEP))
    over = simulate(server, unit / rate_per_s) > limit.limit_s
    return Sharpness(elasticity=elasticity, vif=variance_inflation(over))


def variance_inflation(over: NDArray[np.bool_]) -> float:
    """Return the variance of the number of violations over that of independent ones, by batch means; at least 1.

    Blocks have equal numbers of requests, which are doubled until adjacent blocks hardly correlate.
    """
    share = float(over.mean())
    if not 0 < share < 1:
        return 1.0
    size = max(1, len(over) // 4096)
    blocks = over[: len(over) // size * size].reshape(-1, size).sum(axis=1).astype(float)
    while len(blocks) >= 2 * _ENOUGH_BLOCKS:
        excess = blocks - blocks.mean()
        if float(excess[1:] @ excess[:-1]) < LAG_1 * float(excess @ excess):
            break
        even = len(blocks) // 2 * 2
        blocks, size = blocks[:even].reshape(-1, 2).sum(axis=1), 2 * size
    return max(1.0, float(blocks.var(ddof=1)) / (size * share * (1 - share)))


STAND_IN_BATCH = 16


def stand_in(rate_per_s: float, limits: Sequence[LatencyLimit], unit: Floats) -> SimulatedServer:
    """Return a server of this capacity for a configuration whose execution times are not known."""
    limit_s = min(limit.limit_s for limit in limits)
    growth = 1 + np.arange(STAND_IN_BATCH + 1) / 4

    def server(each_s: float) -> SimulatedServer:
        return SimulatedServer(service_s=(each_s * growth)[:, None] * np.ones((1, 2)))

    low, high = math.log(1e-6 * limit_s), math.log(limit_s)
    for _ in range(14):
        middle = (low + high) / 2
        too_fast = rate_at_limit(server(math.exp(middle)), limits, unit) > rate_per_s
        low, high = (middle, high) if too_fast else (low, middle)
    return server(math.exp(low))
