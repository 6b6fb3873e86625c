"""Where a latency limit breaks, from short runs at several rates.

Near saturation a queue's time in the system is about inversely proportional to what is left of its capacity. So
the headroom, limit over latency quantile, falls about linearly with the rate (exactly so for M/M/1) and the rate
at the limit is where it is 1. The share of violations would tell less: it is 0 or 1 but for a few percent of rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loadgen.normal import ONE_SIDED_95

if TYPE_CHECKING:
    from collections.abc import Sequence

_CURVATURE = 0.2
"""How far the headroom strays from the line, per unit of headroom away from 1."""

_NEAR = 0.6
"""Distance in ln(rate) up to which the headroom is a line."""

_LEAST_SLOPE = 1.0
_USUAL_SLOPE, _USUAL_SLOPE_SD = 4.0, 4.0
"""Of headroom over ln(rate), before anything is known: 1 for a CPU with few servers, over 20 near saturation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one run says: the headroom at a rate, and its standard error. Headroom 0: overloaded."""

    rate_per_s: float
    headroom: float
    error: float

    @property
    def kept(self) -> bool:
        """Whether the limit seems kept. NaN does not."""
        return self.headroom >= 1

    @property
    def surely_kept(self) -> bool:
        """Whether there is a standard error to spare: short runs are lucky too often."""
        return self.headroom - self.error >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The rate at the limit, and bounds that each hold with about 95 %."""

    rate_per_s: float
    lower_per_s: float
    upper_per_s: float

    @classmethod
    def around(cls, rate_per_s: float, error: float) -> Knee:
        """The knee with a standard error of ln(rate)."""
        factor = math.exp(ONE_SIDED_95 * error)
        return cls(rate_per_s=rate_per_s, lower_per_s=rate_per_s / factor, upper_per_s=rate_per_s * factor)

    @property
    def error(self) -> float:
        """Standard error of ln(rate)."""
        return math.log(self.upper_per_s / self.lower_per_s) / (2 * ONE_SIDED_95)


def knee_from_readings(readings: Sequence[Reading]) -> Knee:
    """Where a straight line through the headrooms, over ln(rate), passes 1.

    Each reading counts by its error and its distance from the limit; those at far other rates do not count, and
    overloaded ones only bound the rate from above. Needs one reading with a headroom over 0.
    """
    useful = _near(readings)
    x = np.log([reading.rate_per_s for reading in useful])
    above = np.array([reading.headroom - 1 for reading in useful])
    sd = np.hypot([reading.error for reading in useful], _CURVATURE * np.abs(above)) + 1e-3
    origin = float(np.average(x, weights=1 / sd**2))
    # Least squares of above = level - slope (x - origin), with what is usual about the slope as one observation.
    rows = np.vstack([np.column_stack([np.ones_like(x), origin - x]) / sd[:, None], [0.0, 1 / _USUAL_SLOPE_SD]])
    values = np.append(above / sd, _USUAL_SLOPE / _USUAL_SLOPE_SD)
    covariance = np.linalg.inv(rows.T @ rows)
    level, slope = covariance @ rows.T @ values
    slope = max(float(slope), _LEAST_SLOPE)
    shift = float(level) / slope
    direction = np.array([1.0, -shift])
    error = math.sqrt(float(direction @ covariance @ direction)) / slope
    return _below_overload(Knee.around(math.exp(origin + shift), error), readings)


def _below_overload(knee: Knee, readings: Sequence[Reading]) -> Knee:
    """The same; where the line runs beyond an overload, halfway from there to the highest rate kept."""
    ceiling = _ceiling_per_s(readings)
    if knee.rate_per_s < ceiling:
        return knee
    floor = max((r.rate_per_s for r in readings if r.kept and r.rate_per_s < ceiling), default=ceiling / 2)
    return Knee.around(math.sqrt(floor * ceiling), math.log(ceiling / floor) / 4)


def _near(readings: Sequence[Reading]) -> list[Reading]:
    """Those at rates like the highest that seems kept below any overload, or like the lowest where none does."""
    ceiling = _ceiling_per_s(readings)
    useful = sorted((r for r in readings if r.headroom > 0), key=lambda reading: reading.rate_per_s)
    anchor = next((r for r in reversed(useful) if r.kept and r.rate_per_s < ceiling), useful[0])
    return [r for r in useful if abs(math.log(r.rate_per_s / anchor.rate_per_s)) < _NEAR]


def _ceiling_per_s(readings: Sequence[Reading]) -> float:
    """The lowest rate that overloads, unless it was kept more often, there or beyond: that was one long burst."""

    def believed(overload: Reading) -> bool:
        against = sum(r.kept and r.rate_per_s >= 0.999 * overload.rate_per_s for r in readings)
        return sum(r.headroom == 0 and r.rate_per_s <= 1.001 * overload.rate_per_s for r in readings) >= against

    return min((r.rate_per_s for r in readings if r.headroom == 0 and believed(r)), default=math.inf)
