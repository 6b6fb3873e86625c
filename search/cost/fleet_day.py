"""A day of traffic as 24 hourly peaks, and its cheapest fleet: replicas for the whole day and for single hours."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path

from loadgen.errors import BadInput
from search.cost.fleet_mix import SLACK, Mix, Option, RateTooHigh, cheapest_mix, mix_of, most_of

HOURS = 24
DayRates = tuple[float, ...]
"""The highest rate of each hour of a day, in requests/s; 24 values, 0 without traffic."""

_FORMAT = "Lines of TIME,RATE_PER_S under a heading, times from 00:00 to 23:59 in order, such as 08:30,1200."


def constant_rate(rate_per_s: float) -> DayRates:
    """Return the same rate for all hours of a day."""
    return (rate_per_s,) * HOURS


def read_traffic(path: Path) -> DayRates:
    """Return the hourly peaks of the curve in a CSV file of `time,rate_per_s`.

    A rate holds from its time until the next line's; the last one holds past midnight until the first, because
    days repeat. Times are `HH:MM` or hours such as `8.5`. Raises BadInput, naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--traffic {path} cannot be read: {error}.", "Check the path.") from error
    steps: list[tuple[float, float]] = []
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and _is_heading(cells)):
            continue
        step = _step(cells)
        if step is None or (steps and step[0] <= steps[-1][0]):
            raise BadInput(f"--traffic {path}, line {number}: {','.join(row)!r} is no step of a day.", _FORMAT)
        steps.append(step)
    if not any(rate for _, rate in steps):
        raise BadInput(f"--traffic {path} holds no rate above zero.", _FORMAT)
    return tuple(_peak(steps, hour) for hour in range(HOURS))


def _is_heading(cells: list[str]) -> bool:
    return len(cells) == 2 and re.fullmatch(r"[A-Za-z][\w /()]*", cells[1]) is not None


def _step(cells: list[str]) -> tuple[float, float] | None:
    """Return the hour and the rate of one line; None if it is not valid."""
    if len(cells) != 2:
        return None
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::00)?", cells[0])
    try:
        hour = int(clock[1]) + int(clock[2]) / 60 if clock else float(cells[0])
        rate = float(cells[1])
    except ValueError:
        return None
    if (clock and int(clock[2]) > 59) or not 0 <= hour < HOURS or not 0 <= rate < math.inf:
        return None
    return hour, rate


def _peak(steps: list[tuple[float, float]], hour: int) -> float:
    """Return the highest rate at any time within the hour."""
    before = [rate for start, rate in steps if start <= hour]
    within = [rate for start, rate in steps if hour < start < hour + 1]
    return max([before[-1] if before else steps[-1][1], *within])


MOST_COMMITMENTS = 2_000_000
"""At most 2,000,000 combinations of committed machines are tried, which takes about ten seconds."""


class TooManyPlans(ValueError):
    """Too many combinations of committed machines: an exact plan would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPlan:
    """The mix of each hour, in the options' order; committed replicas are part of every hour."""

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
    """Return the cheapest plan over all numbers of committed replicas, each with its cheapest hourly mixes.

    Options of one name share their `at_most`. Raises RateTooHigh if no plan serves the highest rate, and
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
    """Return the cheapest mix for the highest rate, kept all day: the plan without autoscaling."""
    by_name: dict[str, Option] = {}
    for option in sorted(options, key=lambda option: -option.usd_per_hour):
        by_name[option.name] = option
    # As all machines are paid all day, those of a run are bought on the cheapest terms alone.
    offered = [option if option is by_name[option.name] else replace(option, at_most=0) for option in options]
    return DayPlan(hours=(cheapest_mix(offered, max(rates)),) * len(rates))


def _commitments(options: Sequence[Option], peak_per_s: float) -> Iterator[tuple[int, ...]]:
    """Return all useful numbers of committed replicas, in the options' order; 0 for options by the hour."""
    return product(*(range(_most_committed(option, peak_per_s), -1, -1) for option in options))


def _most_committed(option: Option, peak_per_s: float) -> int:
    return min(option.enough_for(peak_per_s), most_of(option)) if option.committed else 0


def _least_usd(options: Sequence[Option], kept: tuple[int, ...], rates: DayRates) -> float:
    """Return a lower bound of the price: uncommitted traffic at the best price per rate by the hour."""
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
