"""Find the best of all configurations; each is measured only until it clearly is not the best.

A configuration that clearly violates the limit slightly below the best rate so far cannot be the best: by
overload, or twice by late requests, as the machine may cause them once. Nor can one with too many late requests in
two long runs, slightly below the best and further below. The others are bisected. None is left out: if a
configuration is not measured at a rate, its measured execution times are too long for that rate, with any queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lib.plain_bisection import Capacity, Read, Reading, bisected
from lib.raw_lines import Line
from search.simulator.service_times import ServiceCurve
from search.space import Key, Knobs, key_of

BELOW_BEST = 0.97
"""Every other configuration is tested at this fraction of the best rate so far."""

FAR_BELOW_BEST = 0.93
"""It is tested again at this fraction if the first test was not clear."""

RESOLUTION = 0.031  # finer is no use: a test 3 % below the best has the same information as one at the best
FIRST_STEP, STEP = 1.15, 1.03
BOUND_MARGIN = 1.1
"""A throughput is too low if it is below the tested rate even after multiplication by this factor."""

DECIDED = ("violated", "below", "throughput", "measured", "failed")
"""Verdicts: clearly violated at the rate; violated there and further below, neither clearly; throughput too low;
bisected; could not be served. With any other verdict (the client was late), a configuration is tried again."""


@dataclass(slots=True)
class Elimination:
    """The state so far: `lines` of the raw results, each a configuration with its verdict; newest last.

    Rates are comparable once multiplied by `pace_s`, the seconds that a fixed piece of work took at the time; 1 if
    speed does not change. `order` is the order of trying configurations; it saves time, and decides nothing.
    """

    order: Sequence[Knobs]
    lines: list[Line]
    skipped: set[Key] = field(default_factory=set)  # not to be tried again in this call

    def left(self) -> Iterator[Knobs]:
        """Yield the configurations without a verdict, up to date at each step."""
        for knobs in self.order:
            if key_of(knobs) not in self.skipped and key_of(knobs) not in self._decided():
                yield knobs

    def best_per_s(self, pace_s: float) -> float | None:
        """Return the best rate so far, converted to this pace; None before the first."""
        measured = [line["rate_per_s"] * line["pace_s"] for line in self.lines if line["verdict"] == "measured"]
        return max(measured) / pace_s if measured and max(measured) > 0 else None

    def finalists(self, count: int) -> list[Knobs]:
        """Return the best measured configurations, best first."""
        measured = [line for line in self.lines if line["verdict"] == "measured" and line["rate_per_s"] > 0]
        ranked = sorted(measured, key=lambda line: -line["rate_per_s"] * line["pace_s"])
        return [line["knobs"] for line in ranked[:count]]

    def counts(self) -> dict[str, int]:
        """Count the configurations by verdict, and those without one."""
        known = self._decided()
        verdicts = [known.get(key_of(knobs), "left") for knobs in self.order]
        return {name: verdicts.count(name) for name in (*DECIDED, "left")}

    def _decided(self) -> dict[Key, str]:
        return {key_of(line["knobs"]): line["verdict"] for line in self.lines if line["verdict"] in DECIDED}


def tried(
    read: Read, *, best_per_s: float | None, guess_per_s: float, floor_per_s: float
) -> tuple[str, float, Capacity | None]:
    """Return the verdict, the tested rate, and the capacity if it was bisected."""
    if best_per_s is None:
        capacity = bisected(read, guess_per_s, step=FIRST_STEP, floor_per_s=floor_per_s, resolution=RESOLUTION)
        return "measured", guess_per_s, capacity
    first = read(BELOW_BEST * best_per_s)
    if clearly_violated(first) and not first.overloaded:
        first = read(first.rate_per_s)
    if clearly_violated(first):
        return "violated", first.rate_per_s, None
    known = [first]
    if not first.met:
        known.append(read(FAR_BELOW_BEST * best_per_s))
        if not known[-1].met:
            return "below", first.rate_per_s, None
    capacity = bisected(read, best_per_s, step=STEP, floor_per_s=floor_per_s, resolution=RESOLUTION, known=known)
    return "measured", first.rate_per_s, capacity


def clearly_violated(reading: Reading) -> bool:
    """True if the limit was violated and more arrivals would not change that."""
    return reading.sure and not reading.met


def throughput_bound_per_s(curves: Mapping[int, ServiceCurve], knobs: Knobs) -> float:
    """Return the highest throughput of executions of any allowed size on any number of the instances, as timed.

    inf, which means unknown, if these instances were not timed.
    """
    instances = int(knobs["instance_count"])
    if instances not in curves:
        return math.inf
    sizes = np.arange(1, int(knobs["max_batch_size"]) + 1, dtype=float)
    return max(
        busy * float((sizes / curve.at(sizes)).max()) for busy, curve in curves.items() if busy <= instances
    )


def too_little(bound_per_s: float, best_per_s: float | None) -> bool:
    """True if a throughput is clearly below the tested rate."""
    return best_per_s is not None and BOUND_MARGIN * bound_per_s < BELOW_BEST * best_per_s
