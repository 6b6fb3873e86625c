"""The rate at which late requests become too many, in as few simulations as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

LEAST_SHARE = 1e-3
"""Of the highest rate: below, no rate is said to keep the limit."""

TYPICAL_ELASTICITY = 30.0
"""By how many percent late requests become more when the rate grows by one, before anything was seen."""

COUNTED_UP_TO = 4
"""Times as many late ones as are allowed: beyond, a simulation is given up, and only its side is known."""

_STRAIGHT = 3.0
"""Between points with so different ln(late requests) at most, these are a straight line over ln(rate)."""

_LARGEST_STEP = 0.35
_AWAY_FROM_THE_ENDS = 0.1


class Late(Protocol):
    """Counts late requests at a rate; the count may stop beyond `at_most`."""

    def __call__(self, rate_per_s: float, *, at_most: int) -> int:
        """How many were late, or any number above `at_most`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The rate at which exactly as many are late as may be, 0 where none is low enough; the elasticity there."""

    rate_per_s: float
    elasticity: float


@dataclass(frozen=True, slots=True)
class _Point:
    """ln(rate), and ln(late / allowed) there: above 0 where they are too many, inf where they were not counted."""

    x: float
    y: float


def find_edge(
    late: Late, *, allowed: int, most_per_s: float, guess_per_s: float, elasticity: float, width: float
) -> Edge:
    """Where the count of late requests crosses `allowed`, below `most_per_s`, which is taken to be too much.

    The answer is interpolated once it lies between two rates that differ by `width`, in ln(rate), or less. The
    better `guess_per_s` and `elasticity`, the fewer rates are tried; the answer hardly depends on them.
    """
    search = _Crossing(low=None, high=_Point(math.log(most_per_s), math.inf), elasticity=elasticity, width=width)
    x = min(math.log(guess_per_s), search.high.x - width / 2)
    while not search.ended():
        counted = late(math.exp(x), at_most=COUNTED_UP_TO * allowed)
        y = math.log((counted + 0.5) / (allowed + 0.5)) if counted <= COUNTED_UP_TO * allowed else math.inf
        search = search.after(_Point(x, y))
        x = search.next()
        if search.low is None and x < math.log(LEAST_SHARE * most_per_s):
            return Edge(rate_per_s=0.0, elasticity=elasticity)
    return Edge(rate_per_s=math.exp(search.root()), elasticity=search.elasticity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossing:
    """The highest rate that is known to be low enough, and the lowest that is known to be too high."""

    low: _Point | None
    high: _Point
    elasticity: float
    width: float
    step: float = 0.05  # of the last move while only too high rates were seen

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
        """Where the line between the two crosses 0; their middle where there is none."""
        assert self.low is not None
        apart = self.high.x - self.low.x
        rise = self.high.y - self.low.y
        return self.low.x + apart * (-self.low.y / rise if rise <= _STRAIGHT else 0.5)

    def next(self) -> float:
        """A rate just beyond where the edge should be, so that the next two lie on either side of it."""
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
