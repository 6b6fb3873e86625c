"""Estimate the headroom of short load runs, and fit the capacity through these estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.dependence import ONE_SIDED_95
from loadgen.statistics.slo_test import Verdict, certify, least_headroom


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """One load run. A probe with `problems` measured the client, not the server, and decides nothing.

    `only_slower`: all requests reached the server, so the problems can only have made latencies longer.
    It began at `began_unix_s`; None if that is not known.
    """

    log: RequestLog
    overloaded: bool
    problems: tuple[str, ...]
    began_unix_s: float | None = None
    only_slower: bool = False


_CURVATURE = 0.2
"""Deviation of the headroom from the line, per unit of headroom away from 1."""

_NEAR = 0.6
"""The headroom is taken as linear up to this distance in ln(rate)."""

_MIN_SLOPE = 1.0
_USUAL_SLOPE, _USUAL_SLOPE_SD = 4.0, 4.0
"""Prior of the slope of headroom over ln(rate): 1 for a CPU with few instances, over 20 near saturation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomEstimate:
    """Headroom (limit / latency) at a rate, from one run, and its standard error. Headroom 0: overloaded."""

    rate_per_s: float
    headroom: float
    error: float

    @property
    def met(self) -> bool:
        """True if the limit seems met; NaN does not."""
        return self.headroom >= 1

    @property
    def surely_met(self) -> bool:
        """True with a standard error to spare: short runs are lucky too often."""
        return self.headroom - self.error >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFit:
    """The capacity, and bounds that each hold with about 95 %."""

    rate_per_s: float
    lower_per_s: float
    upper_per_s: float

    @classmethod
    def around(cls, rate_per_s: float, error: float) -> CapacityFit:
        """Return a fit with this standard error of ln(rate)."""
        factor = math.exp(ONE_SIDED_95 * error)
        return cls(rate_per_s=rate_per_s, lower_per_s=rate_per_s / factor, upper_per_s=rate_per_s * factor)

    @property
    def error(self) -> float:
        """Standard error of ln(rate)."""
        return math.log(self.upper_per_s / self.lower_per_s) / (2 * ONE_SIDED_95)


def fit_capacity(readings: Sequence[HeadroomEstimate]) -> CapacityFit:
    """Return the rate at which a straight line through the headrooms, over ln(rate), passes 1.

    Readings are weighted by their error and their distance from the limit; those at distant rates are ignored, and
    overloaded ones only bound the rate from above. Needs one reading with a headroom over 0.
    """
    useful = _near(readings)
    x = np.log([reading.rate_per_s for reading in useful])
    above = np.array([reading.headroom - 1 for reading in useful])
    sd = np.hypot([reading.error for reading in useful], _CURVATURE * np.abs(above)) + 1e-3
    origin = float(np.average(x, weights=1 / sd**2))
    # Least squares of above = level - slope (x - origin), with the prior of the slope as one observation.
    rows = np.vstack([np.column_stack([np.ones_like(x), origin - x]) / sd[:, None], [0.0, 1 / _USUAL_SLOPE_SD]])
    values = np.append(above / sd, _USUAL_SLOPE / _USUAL_SLOPE_SD)
    covariance = np.linalg.inv(rows.T @ rows)
    level, slope = covariance @ rows.T @ values
    slope = max(float(slope), _MIN_SLOPE)
    shift = float(level) / slope
    direction = np.array([1.0, -shift])
    error = math.sqrt(float(direction @ covariance @ direction)) / slope
    return _below_overload(CapacityFit.around(math.exp(origin + shift), error), readings)


def _below_overload(fit: CapacityFit, readings: Sequence[HeadroomEstimate]) -> CapacityFit:
    """Return the fit; if it is beyond an overload, the middle of that and the highest rate that met the limit."""
    ceiling = _ceiling_per_s(readings)
    if fit.rate_per_s < ceiling:
        return fit
    floor = max((r.rate_per_s for r in readings if r.met and r.rate_per_s < ceiling), default=ceiling / 2)
    return CapacityFit.around(math.sqrt(floor * ceiling), math.log(ceiling / floor) / 4)


def _near(readings: Sequence[HeadroomEstimate]) -> list[HeadroomEstimate]:
    """Return readings near the highest rate that seems to meet the limit below any overload, else the lowest."""
    ceiling = _ceiling_per_s(readings)
    useful = sorted((r for r in readings if r.headroom > 0), key=lambda reading: reading.rate_per_s)
    anchor = next((r for r in reversed(useful) if r.met and r.rate_per_s < ceiling), useful[0])
    return [r for r in useful if abs(math.log(r.rate_per_s / anchor.rate_per_s)) < _NEAR]


def _ceiling_per_s(readings: Sequence[HeadroomEstimate]) -> float:
    """Return the lowest rate that overloads, unless the limit was met more often there or beyond (one burst)."""

    def believed(overload: HeadroomEstimate) -> bool:
        against = sum(r.met and r.rate_per_s >= 0.999 * overload.rate_per_s for r in readings)
        return sum(r.headroom == 0 and r.rate_per_s <= 1.001 * overload.rate_per_s for r in readings) >= against

    return min((r.rate_per_s for r in readings if r.headroom == 0 and believed(r)), default=math.inf)


NO_REQUEST = "no request was due after the warm-up, so nothing was measured"
_MIN_TAIL = 0.02
_VIF_WHEN_UNKNOWN = 50.0
_MAX = 0.5
_TIMES_ALLOWED = 1.5
_SEEN_TOO_WELL = 0.5
"""A short run overestimates the headroom by about 0.5 standard errors: it begins with an empty queue and misses
the rare bursts that make the quantile. Simulated queues give 0.5 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe and its result. With `problems` it has none: the client was measured, or no request was sent.

    Of several limits, `reading` and `verdict` belong to the one with the least headroom, `first` to the first. The
    median and the rate of answers are those of the model itself, whatever colocated ones do.
    """

    reading: HeadroomEstimate
    verdict: Verdict
    first: Verdict
    overloaded: bool  # more requests left than came back, or most took longer than the limit
    median_ms: float  # of the steady part; inf: most failed, NaN: nothing was measured
    answered_per_s: float  # in the run's second half: the throughput limit if overloaded; 0: unknown
    load_s: float
    problems: tuple[str, ...]

    @property
    def rate_per_s(self) -> float:
        """The rate that was sent."""
        return self.reading.rate_per_s


def evaluate_probe(probe: Probe, rate_per_s: float, limits: Sequence[LatencyLimit]) -> ProbeResult:
    """Return the headroom, verdict, median and throughput of one run at a rate."""
    log = probe.log
    verdicts = [certify(log, limit) for limit in limits]
    verdict = least_headroom(verdicts)
    latency_ms = _steady_ms(log, verdicts[0])
    growing = probe.overloaded or any(one.overloaded for one in verdicts)
    tight_ms = latency_ms if verdict is verdicts[0] else _steady_ms(log.judged_by(verdict.limit), verdict)
    return ProbeResult(
        reading=_reading(tight_ms, rate_per_s, verdict, growing=growing),
        verdict=verdict,
        first=verdicts[0],
        overloaded=growing or verdict.share > _most(verdict),
        median_ms=float(np.median(latency_ms)) if len(latency_ms) else math.nan,
        answered_per_s=_answered_per_s(log),
        load_s=float(log.done_ns.max()) / 1e9 if len(log) else 0.0,
        # An overload may end a run before its warm-up does, and is seen all the same.
        problems=probe.problems or (() if verdict.n or (growing and len(log)) else (NO_REQUEST,)),
    )


def _steady_ms(log: RequestLog, verdict: Verdict) -> NDArray[np.float64]:
    """Return the latencies of the steady part, inf for failures."""
    latency_ms: NDArray[np.float64] = np.where(log.failed, np.inf, log.latency_ns / 1e6)
    return latency_ms[log.scheduled_ns >= verdict.steady_from_s * 1e9]


def _reading(
    latency_ms: NDArray[np.float64], rate_per_s: float, verdict: Verdict, *, growing: bool
) -> HeadroomEstimate:
    """Return the headroom; its error is that of the share beyond the quantile times the tail's relative length."""
    if growing or not len(latency_ms) or not math.isfinite(verdict.latency_ms):
        return HeadroomEstimate(rate_per_s=rate_per_s, headroom=0.0, error=0.0)
    beyond = verdict.limit.allowed
    shoulder_ms = float(np.quantile(latency_ms, max(0.0, 1 - 10 * beyond)))
    tail = max(_MIN_TAIL, (1 - shoulder_ms / verdict.latency_ms) / math.log(min(10.0, 1 / beyond)))
    known = math.isfinite(verdict.vif)
    seen_times = (
        verdict.n * beyond / (verdict.vif if known else _VIF_WHEN_UNKNOWN)
    )  # times that the quantile was passed
    relative = tail * (1 / math.sqrt(seen_times) if seen_times >= 1 else 1 + math.log(1 / seen_times))
    relative = min(1.0, relative)
    headroom = verdict.limit.limit_ms / verdict.latency_ms * math.exp(-_SEEN_TOO_WELL * relative if known else 0.0)
    error = headroom * relative
    if verdict.share > _most(verdict):
        # One long burst, or a queue that still grows: the quantile depends on the run's length.
        error = max(error, _MAX)
    return HeadroomEstimate(rate_per_s=rate_per_s, headroom=headroom, error=error)


def _most(verdict: Verdict) -> float:
    """Return the share of violations above which a run counts as overloaded; of a median, half may be over."""
    return max(_MAX, _TIMES_ALLOWED * (verdict.limit.allowed))


def _answered_per_s(log: RequestLog) -> float:
    answered = np.sort(log.done_ns[~log.failed])
    if len(answered) < 20:
        return 0.0
    half = answered[len(answered) // 2 :]
    return float((len(half) - 1) / max((half[-1] - half[0]) / 1e9, 1e-9))
