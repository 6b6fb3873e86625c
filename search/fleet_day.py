"""A day of traffic on a fleet: what is kept around the clock, what comes and goes by the hour, and the bill."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from search.fleet import SLACK, Mix, RateTooHigh, cheapest_mix, mix_of, most_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from search.fleet import Option
    from search.traffic import DayRates


MOST_COMMITMENTS = 2_000_000
"""Numbers of committed machines to look at: about ten seconds."""


class TooManyPlans(ValueError):
    """So much traffic on such small machines, with commitments, that an exact answer would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPlan:
    """What runs in each hour, in the options' order; committed replicas are there in every hour."""

    hours: tuple[Mix, ...]

    @property
    def usd_per_day(self) -> float:
        """The day's bill."""
        return sum(mix.usd_per_hour for mix in self.hours)

    @property
    def most(self) -> tuple[int, ...]:
        """The highest number of replicas of each option at any hour."""
        return tuple(max(counts) for counts in zip(*(mix.counts for mix in self.hours), strict=True))


def cheapest_day(options: Sequence[Option], rates: DayRates) -> DayPlan:
    """The cheapest plan of all: every number of committed replicas, each with its cheapest mixes by the hour.

    Options of one name share their `at_most`. Raises RateTooHigh where no plan serves the highest rate, and
    TooManyPlans.
    """
    most_plans = prod(_most_committed(option, max(rates)) + 1 for option in options)
    if most_plans > MOST_COMMITMENTS:
        raise TooManyPlans(f"{most_plans:,} numbers of committed machines are more than can be looked at")
    best: DayPlan | None = None
    best_usd = math.inf
    for kept in _commitments(options, max(rates)):
        if _least_usd(options, kept, rates) >= best_usd * (1 - SLACK):
            continue
        try:
            plan = _with_commitments(options, kept, rates)
        except RateTooHigh:
            continue
        if plan.usd_per_day < best_usd:
            best, best_usd = plan, plan.usd_per_day
    if best is None:
        by_name = {option.name: option for option in options}
        most_per_s = sum(most_of(option) * option.rate_per_s for option in by_name.values())
        raise RateTooHigh(max(rates), most_per_s)
    return best


def held_day(options: Sequence[Option], rates: DayRates) -> DayPlan:
    """The cheapest mix for the highest rate, kept all day: what it costs without autoscaling."""
    by_name: dict[str, Option] = {}
    for option in sorted(options, key=lambda option: -option.usd_per_hour):
        by_name[option.name] = option
    # Where all is paid all day, a run's machines are bought on the cheapest terms alone.
    offered = [option if option is by_name[option.name] else replace(option, at_most=0) for option in options]
    return DayPlan(hours=(cheapest_mix(offered, max(rates)),) * len(rates))


def _commitments(options: Sequence[Option], peak_per_s: float) -> Iterator[tuple[int, ...]]:
    """All numbers of committed replicas worth looking at, in the options' order; 0 for options by the hour."""
    return product(*(range(_most_committed(option, peak_per_s), -1, -1) for option in options))


def _most_committed(option: Option, peak_per_s: float) -> int:
    return min(option.enough_for(peak_per_s), most_of(option)) if option.committed else 0


def _least_usd(options: Sequence[Option], kept: tuple[int, ...], rates: DayRates) -> float:
    """A bound from below: what is not served by commitments, at the best price per rate by the hour."""
    fixed = mix_of(options, kept)
    per_rate = min((option.usd_per_rate for option in options if not option.committed), default=math.inf)
    missing = sum(max(0.0, rate - fixed.rate_per_s) for rate in rates if rate > fixed.rate_per_s * (1 + SLACK))
    return len(rates) * fixed.usd_per_hour + (missing * per_rate if missing else 0.0)


def _with_commitments(options: Sequence[Option], kept: tuple[int, ...], rates: DayRates) -> DayPlan:
    fixed = mix_of(options, kept)
    taken = {option.name: 0 for option in options}
    for option, count in zip(options, kept, strict=True):
        taken[option.name] += count
    hourly = [_left_of(option, taken[option.name]) for option in options if not option.committed]
    mixes = {rate: cheapest_mix(hourly, max(0.0, rate - fixed.rate_per_s * (1 + SLACK))) for rate in set(rates)}

    def together(rate: float) -> Mix:
        extra = iter(mixes[rate].counts)
        counts = [n if option.committed else next(extra) for option, n in zip(options, kept, strict=True)]
        return mix_of(options, counts)

    by_rate = {rate: together(rate) for rate in mixes}
    return DayPlan(hours=tuple(by_rate[rate] for rate in rates))


def _left_of(option: Option, taken: int) -> Option:
    return option if option.at_most is None else replace(option, at_most=max(0, option.at_most - taken))
