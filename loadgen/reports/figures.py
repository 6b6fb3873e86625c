"""A request log as the curves that people look at: the distribution, and the run over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement import RequestLog, percentiles_ns
from loadgen.reports.record import CurveRecord, TimelineRecord

if TYPE_CHECKING:
    from loadgen.tally import Tally

_NS_PER_MS = 1e6
_MOST_BINS = 150
_LEAST_IN_BIN = 40
_POINTS_PER_DECADE = 12


def curve_of(log: RequestLog, timeout_ns: int) -> CurveRecord | None:
    """The latency distribution at shares that lie evenly on a scale of 1 / (1 - share), up to the slowest request.

    None where nothing was sent.
    """
    if not len(log):
        return None
    shares = _shares(len(log))
    return _curve(shares, log.latency_charged(timeout_ns).percentiles_ns(shares))


def curve_of_tally(tally: Tally) -> CurveRecord | None:
    """The same of a run of which only a tally was kept."""
    if not len(tally):
        return None
    shares = _shares(len(tally))
    return _curve(shares, tally.latency.percentiles_ns(shares))


def _shares(n: int) -> list[float]:
    decades = math.log10(n)
    steps = max(1, math.ceil(decades * _POINTS_PER_DECADE))
    return [0.0] + [1 - 10 ** -(decades * step / steps) for step in range(1, steps)] + [1.0]


def _curve(shares: list[float], latencies_ns: list[int]) -> CurveRecord:
    return CurveRecord(quantile=tuple(shares), latency_ms=tuple(ns / _NS_PER_MS for ns in latencies_ns))


def timeline_of(log: RequestLog, timeout_ns: int, duration_s: float) -> TimelineRecord | None:
    """The run in equal bins, wide enough for their percentiles to mean something; None where nothing was sent."""
    if not len(log):
        return None
    bin_s = bin_width_s(duration_s, len(log))
    bins = math.ceil(duration_s / bin_s - 1e-9)
    edges = np.searchsorted(log.scheduled_ns, (np.arange(1, bins) * bin_s * 1e9).astype(np.int64))
    latencies = np.split(log.latency_charged_ns(timeout_ns), edges)
    failed = np.split(log.failed, edges)
    widths = np.full(bins, bin_s)
    widths[-1] = duration_s - bin_s * (bins - 1)
    p50, p99, top = zip(*(_bin_figures(part) for part in latencies), strict=True)
    return TimelineRecord(
        bin_s=bin_s,
        start_s=tuple(round(number * bin_s, 6) for number in range(bins)),
        due_per_s=tuple(len(part) / float(width) for part, width in zip(latencies, widths, strict=True)),
        failures=tuple(int(part.sum()) for part in failed),
        p50_ms=p50,
        p99_ms=p99,
        max_ms=top,
    )


def timeline_of_tally(tally: Tally, duration_s: float) -> TimelineRecord | None:
    """The same of a run of which only a tally was kept, in the tally's bins."""
    if not len(tally):
        return None
    found = {each.number: each for each in tally.bins}
    bins = [found.get(number) for number in range(max(found) + 1)]
    widths = [tally.bin_s] * len(bins)
    widths[-1] = max(1e-3, min(tally.bin_s, duration_s - tally.bin_s * (len(bins) - 1)))
    return TimelineRecord(
        bin_s=tally.bin_s,
        start_s=tuple(round(number * tally.bin_s, 6) for number in range(len(bins))),
        due_per_s=tuple(each.n / width if each else 0.0 for each, width in zip(bins, widths, strict=True)),
        failures=tuple(each.failures if each else 0 for each in bins),
        p50_ms=tuple(each.p50_ns / _NS_PER_MS if each else None for each in bins),
        p99_ms=tuple(each.p99_ns / _NS_PER_MS if each else None for each in bins),
        max_ms=tuple(each.max_ns / _NS_PER_MS if each else None for each in bins),
    )


def bin_width_s(duration_s: float, requests: int) -> float:
    """1, 2 or 5 times a power of ten seconds: at most 150 bins, and about 40 requests or more in each."""
    least_s = max(duration_s / _MOST_BINS, min(_LEAST_IN_BIN * duration_s / requests, duration_s / 5))
    power = 10.0 ** math.floor(math.log10(least_s))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least_s * (1 - 1e-9))


def _bin_figures(latency_ns: NDArray[np.int64]) -> tuple[float | None, float | None, float | None]:
    if not len(latency_ns):
        return None, None, None
    p50, p99, top = percentiles_ns(latency_ns.copy(), (0.5, 0.99, 1.0))
    return p50 / _NS_PER_MS, p99 / _NS_PER_MS, top / _NS_PER_MS
