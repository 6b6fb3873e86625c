"""Compare the figures of two runs: is the later one worse by more than the uncertainties of both?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.records.record import ComparisonRecord

Bounds = tuple[float, float, float]
"""(low, value, high), positive; low 0 or high inf if there were too few requests for a bound on that side."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run with its bounds; None if it was not measured."""

    unit: str
    bounds: Bounds | None
    more_is_better: bool = False


def bounds_of(low: float | None, value: float | None, high: float | None) -> Bounds | None:
    """Return the bounds of a positive value, None for another one; unknown bounds are 0 and inf."""
    if value is None or not 0 < value < math.inf:
        return None
    return low or 0.0, value, math.inf if high is None else high


def check_same(path: Path, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raise BadInput if the run in `path` has other conditions, such as limits or traffic, than the later run."""
    for name, value in now.items():
        if before[name] != value:
            raise BadInput(
                f"The run in {path} differs in {name}: {before[name]}, not {value}.",
                f"Compare runs with the same {name}.",
            )


def compare_figures(
    before: Mapping[str, Figure], now: Mapping[str, Figure], *, tolerance: float = 0.0
) -> tuple[ComparisonRecord, ...]:
    """Judge the figures that both runs have; changes up to `tolerance`, a share, are never worse or better.

    A figure is left out if a bound is missing that is needed to call the later run not worse.
    """
    both = ((name, before[name], figure) for name, figure in now.items() if name in before)
    found = (_compared(name, old, new, tolerance) for name, old, new in both)
    return tuple(record for record in found if record is not None)


def _compared(name: str, before: Figure, now: Figure, tolerance: float) -> ComparisonRecord | None:
    if before.bounds is None or now.bounds is None:
        return None
    low, ratio, high = ratio_bounds(before.bounds, now.bounds)
    less, more = high < 1, low > 1
    worse = less if now.more_is_better else more
    if not worse and (low == 0 or high == math.inf):
        return None
    differs = (less or more) and abs(ratio - 1) > tolerance
    return ComparisonRecord(
        figure=name,
        unit=now.unit,
        baseline=before.bounds[1],
        now=now.bounds[1],
        ratio=ratio,
        ratio_low=low or None,
        ratio_high=high if high < math.inf else None,
        answer="no difference seen" if not differs else "worse" if worse else "better",
    )


def ratio_bounds(baseline: Bounds, now: Bounds) -> Bounds:
    """Return now / baseline with its bounds, from the bounds of both: MOVER on the logarithms.

    The distances to the bounds add up like standard deviations. This finds smaller changes than asking that the
    two intervals do not overlap, and errs less often than asking that the value lies outside the other interval.
    Source: Zou & Donner, Statistics in Medicine 27 (2008), 1693-1702.
    """
    base_low, base, base_high = (_log(value) for value in baseline)
    now_low, here, now_high = (_log(value) for value in now)
    ratio = here - base
    low = ratio - math.hypot(here - now_low, base_high - base)
    high = ratio + math.hypot(now_high - here, base - base_low)
    return math.exp(low), math.exp(ratio), math.exp(high)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
