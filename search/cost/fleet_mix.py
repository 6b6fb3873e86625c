"""The cheapest mix of machines for a rate: an exact search over whole numbers of replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLACK = 1e-9
"""Relative tolerance for sums of rates: 3 replicas of 1.1/s serve 3.3/s."""

MOST_REPLICAS = 10_000
"""Most replicas of one kind. If more are needed, the rates or the units are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A kind of machine that may be rented any number of times, up to `at_most` if that is given.

    One that is `committed` is paid around the clock, needed or not.
    """

    name: str
    rate_per_s: float  # that one replica serves
    usd_per_hour: float
    at_most: int | None = None
    committed: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an option without a price or a rate."""
        if not 0 < self.rate_per_s < math.inf or not 0 < self.usd_per_hour < math.inf:
            raise ValueError(f"{self.name}: {self.rate_per_s}/s for {self.usd_per_hour} USD an hour is no offer")

    @property
    def usd_per_rate(self) -> float:
        """USD per hour for each request/s: less is better."""
        return self.usd_per_hour / self.rate_per_s

    def enough_for(self, rate_per_s: float) -> int:
        """Return the number of replicas that serve the rate by themselves; not limited by `at_most`."""
        return max(0, math.ceil(rate_per_s / self.rate_per_s * (1 - SLACK)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Replicas of each option, in the options' order."""

    counts: tuple[int, ...]
    usd_per_hour: float
    rate_per_s: float


class RateTooHigh(ValueError):
    """The options cannot serve the rate, however many are taken; `most_per_s` is the most that they can serve."""

    def __init__(self, rate_per_s: float, most_per_s: float) -> None:
        super().__init__(f"{rate_per_s:g}/s is more than the {most_per_s:g}/s that all replicas together serve")
        self.rate_per_s = rate_per_s
        self.most_per_s = most_per_s


def cheapest_mix(options: Sequence[Option], rate_per_s: float) -> Mix:
    """Return the mix with the lowest price per hour that serves the rate. Raises RateTooHigh.

    Branch and bound, the cheapest option per request first: with some counts fixed, the rest of the rate costs
    at least its amount times the best price per rate of the remaining options. No solver's tolerance is involved.
    """
    most_per_s = sum(most_of(option) * option.rate_per_s for option in options)
    if rate_per_s > most_per_s * (1 + SLACK):
        raise RateTooHigh(rate_per_s, most_per_s)
    useful = [index for index in range(len(options)) if not _is_dominated(options, index)]
    order = sorted(useful, key=lambda index: (options[index].usd_per_rate, index))
    search = _Search(options=[options[index] for index in order])
    search.descend(0, rate_per_s, 0.0)
    assert search.best is not None
    counts = [0] * len(options)
    for index, count in zip(order, search.best, strict=True):
        counts[index] = count
    return mix_of(options, counts)


def _is_dominated(options: Sequence[Option], index: int) -> bool:
    """True if another option without limit serves as much for as little; of equals the first stays.

    Runs on machines of one price differ only by their rates: without this all their mixes would be tried.
    """
    own = options[index]
    return any(
        other.at_most is None
        and other.rate_per_s >= own.rate_per_s
        and other.usd_per_hour <= own.usd_per_hour
        and ((other.rate_per_s, -other.usd_per_hour) != (own.rate_per_s, -own.usd_per_hour) or place < index)
        for place, other in enumerate(options)
        if place != index
    )


def mix_of(options: Sequence[Option], counts: Sequence[int]) -> Mix:
    """Return the mix of these counts, with its price and rate."""
    return Mix(
        counts=tuple(counts),
        usd_per_hour=sum(option.usd_per_hour * count for option, count in zip(options, counts, strict=True)),
        rate_per_s=sum(option.rate_per_s * count for option, count in zip(options, counts, strict=True)),
    )


def most_of(option: Option) -> int:
    """Return the most replicas that the option allows."""
    return MOST_REPLICAS if option.at_most is None else min(option.at_most, MOST_REPLICAS)


class _Search:
    """Depth first over the options; `best` are the counts of the cheapest mix so far."""

    def __init__(self, *, options: list[Option]) -> None:
        self.options = options
        self.best: tuple[int, ...] | None = None
        self.best_usd = math.inf
        self._counts: list[int] = []

    def descend(self, depth: int, rate_per_s: float, spent_usd: float) -> None:
        """Try all counts of the option at `depth` that may lead below the best price."""
        if rate_per_s <= 0:
            self._offer(spent_usd)
            return
        if depth == len(self.options):
            return
        option = self.options[depth]
        for count in range(min(option.enough_for(rate_per_s), most_of(option)), -1, -1):
            spent = spent_usd + count * option.usd_per_hour
            served = count * option.rate_per_s
            left = rate_per_s - served if served < rate_per_s * (1 - SLACK) else 0.0
            bound = spent + left * self._least_usd_per_rate(depth + 1)
            if bound >= self.best_usd * (1 - SLACK):
                if left:
                    return  # fewer of this one and more of dearer ones: the bound only rises
                continue
            self._counts.append(count)
            self.descend(depth + 1, left, spent)
            self._counts.pop()

    def _least_usd_per_rate(self, depth: int) -> float:
        return self.options[depth].usd_per_rate if depth < len(self.options) else math.inf

    def _offer(self, usd: float) -> None:
        if usd < self.best_usd:
            self.best_usd = usd
            self.best = (*self._counts, *(0 for _ in range(len(self.options) - len(self._counts))))
