"""The best of all configurations, each measured only until it is clear that it is not.

A configuration that is clearly broken a little below the best rate so far cannot be the best: by overload, or by
late requests twice, for once may be the machine's doing. Nor can one with too many late requests in two long runs,
a little below the best and further below. The others are bisected. Nothing is left out: what is not measured at a
rate takes so long for its executions, as measured, that it cannot reach that rate whatever the queue does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from plain_bisection import Capacity, Read, Reading, bisected
from raw_lines import Line

from search.ledger import Key, key_of
from search.service_time import ServiceCurve
from search.space import Knobs

BELOW_BEST = 0.97
"""Of the best rate so far, where every other configuration is put to the test."""

FAR_BELOW_BEST = 0.93
"""Where it is once more, if the first test was not clear."""

RESOLUTION = 0.031  # the test below the best and one at the best tell as much
FIRST_STEP, STEP = 1.15, 1.03
BOUND_MARGIN = 1.1
"""A throughput counts as too low when so many times as much would still be."""

DECIDED = ("broken", "below", "throughput", "measured", "failed")
"""Verdicts: clearly broken at the rate; broken there and further below, neither clearly; cannot serve so much;
bisected; could not be served. Anything else (the client was late) is tried again."""


@dataclass(slots=True)
class Elimination:
    """What is known so far: `lines` of the raw results, each a configuration with its verdict; newest last.

    Rates compare once multiplied by `pace_s`, the seconds that a fixed piece of work took at the time; 1 for what
    does not change. `order` is that in which configurations are tried, which saves time and decides nothing.
    """

    order: Sequence[Knobs]
    lines: list[Line]
    skipped: set[Key] = field(default_factory=set)  # not to be tried again in this call

    def left(self) -> Iterator[Knobs]:
        """Those without a verdict, as it stands at each step."""
        for knobs in self.order:
            if key_of(knobs) not in self.skipped and key_of(knobs) not in self._decided():
                yield knobs

    def best_per_s(self, pace_s: float) -> float | None:
        """The best rate so far as it would be at this pace; None before the first."""
        measured = [line["rate_per_s"] * line["pace_s"] for line in self.lines if line["verdict"] == "measured"]
        return max(measured) / pace_s if measured and max(measured) > 0 else None

    def finalists(self, count: int) -> list[Knobs]:
        """The best that were measured, best first."""
        measured = [line for line in self.lines if line["verdict"] == "measured" and line["rate_per_s"] > 0]
        ranked = sorted(measured, key=lambda line: -line["rate_per_s"] * line["pace_s"])
        return [line["knobs"] for line in ranked[:count]]

    def counts(self) -> dict[str, int]:
        """How many configurations have which verdict, and how many none."""
        known = self._decided()
        verdicts = [known.get(key_of(knobs), "left") for knobs in self.order]
        return {name: verdicts.count(name) for name in (*DECIDED, "left")}

    def _decided(self) -> dict[Key, str]:
        return {key_of(line["knobs"]): line["verdict"] for line in self.lines if line["verdict"] in DECIDED}


def tried(
    read: Read, *, best_per_s: float | None, guess_per_s: float, floor_per_s: float
) -> tuple[str, float, Capacity | None]:
    """The verdict, the rate at which it was put to the test, and the capacity where it was bisected."""
    if best_per_s is None:
        capacity = bisected(read, guess_per_s, step=FIRST_STEP, floor_per_s=floor_per_s, resolution=RESOLUTION)
        return "measured", guess_per_s, capacity
    first = read(BELOW_BEST * best_per_s)
    if clearly_broken(first) and not first.overloaded:
        first = read(first.rate_per_s)
    if clearly_broken(first):
        return "broken", first.rate_per_s, None
    known = [first]
    if not first.kept:
        known.append(read(FAR_BELOW_BEST * best_per_s))
        if not known[-1].kept:
            return "below", first.rate_per_s, None
    capacity = bisected(read, best_per_s, step=STEP, floor_per_s=floor_per_s, resolution=RESOLUTION, known=known)
    return "measured", first.rate_per_s, capacity


def clearly_broken(reading: Reading) -> bool:
    """Whether more arrivals would not change it."""
    return reading.sure and not reading.kept


def throughput_bound_per_s(curves: Mapping[int, ServiceCurve], knobs: Knobs) -> float:
    """The most that executions of any allowed size can serve, on any number of the instances, as they were timed.

    inf where these instances were not timed: then nothing is known.
    """
    instances = int(knobs["instance_count"])
    if instances not in curves:
        return math.inf
    sizes = np.arange(1, int(knobs["max_batch_size"]) + 1, dtype=float)
    return max(
        busy * float((sizes / curve.at(sizes)).max()) for busy, curve in curves.items() if busy <= instances
    )


def too_little(bound_per_s: float, best_per_s: float | None) -> bool:
    """Whether a throughput is clearly below the rate of the test."""
    return best_per_s is not None and BOUND_MARGIN * bound_per_s < BELOW_BEST * best_per_s
