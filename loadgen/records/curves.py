"""Compute the curves of a request log for users: the latency distribution, and the run over time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog, percentiles_ns
from loadgen.measurement.streams import time_of
from loadgen.records.record import CurveRecord, PhaseRecord, TimelineRecord, TokenTimesRecord
from loadgen.spec.limits import LatencyLimit, Measure, StreamLimit
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.traffic.arrivals import rate_profile

_NS_PER_MS = 1e6
_MAX_BINS = 150
_MIN_IN_BIN = 40
_POINTS_PER_DECADE = 12
_OF_TOKENS = (StreamLimit(limit_ms=1.0, measure="ttft"), StreamLimit(limit_ms=1.0, measure="tpot"))


def curve_of(log: RequestLog, timeout_ns: int) -> CurveRecord | None:
    """Return the latency at shares evenly spaced on a log scale of 1 / (1 - share), up to the slowest request.

    None if nothing was sent.
    """
    if not len(log):
        return None
    decades = math.log10(len(log))
    steps = max(1, math.ceil(decades * _POINTS_PER_DECADE))
    shares = [0.0] + [1 - 10 ** -(decades * step / steps) for step in range(1, steps)] + [1.0]
    latencies_ns = percentiles_ns(log.latency_charged_ns(timeout_ns), shares)
    return CurveRecord(quantile=tuple(shares), latency_ms=tuple(ns / _NS_PER_MS for ns in latencies_ns))


def timeline_of(
    log: RequestLog, timeout_ns: int, duration_s: float, limit: LatencyLimit | None = None
) -> TimelineRecord | None:
    """Return the run in equal bins, wide enough for useful percentiles; None if nothing was sent."""
    if not len(log):
        return None
    bin_s = bin_width_s(duration_s, len(log))
    bins = math.ceil(duration_s / bin_s - 1e-9)
    starts = np.searchsorted(log.scheduled_ns, (np.arange(1, bins) * bin_s * 1e9).astype(np.int64)).tolist()
    parts = [log.rows(first, end) for first, end in pairwise([0, *starts, len(log)])]
    widths = np.full(bins, bin_s)
    widths[-1] = duration_s - bin_s * (bins - 1)
    p50, p99, top = zip(*(_bin_figures(part.latency_charged_ns(timeout_ns)) for part in parts), strict=True)
    return TimelineRecord(
        bin_s=bin_s,
        start_s=tuple(round(number * bin_s, 6) for number in range(bins)),
        due_per_s=tuple(len(part) / float(width) for part, width in zip(parts, widths, strict=True)),
        good_per_s=()
        if limit is None
        else tuple(_in_time(part, limit) / float(width) for part, width in zip(parts, widths, strict=True)),
        failures=tuple(int(np.count_nonzero(part.outcome)) for part in parts),
        p50_ms=p50,
        p99_ms=p99,
        max_ms=top,
    )


def _in_time(log: RequestLog, limit: LatencyLimit) -> int:
    return int(np.count_nonzero(log.judged_by(limit).latency_failures_last_ns <= limit.limit_ns))


def phases_of(
    log: RequestLog, plan: LoadPlan | ClosedLoopPlan, limit: LatencyLimit | None
) -> tuple[PhaseRecord, ...]:
    """Return what became of the requests of each step, or before, in and after a spike; `limit` None: no limit."""
    if not isinstance(plan, LoadPlan) or plan.arrivals.kind not in ("steps", "spike"):
        return ()
    edges_s, _ = rate_profile(plan)
    return tuple(
        _phase(log.between(start_s, end_s), start_s, end_s, limit)
        for start_s, end_s in pairwise(edges_s.tolist())
        if start_s < min(end_s, log.until_s)
    )


def _phase(due: RequestLog, start_s: float, end_s: float, limit: LatencyLimit | None) -> PhaseRecord:
    answers_ns = due.latency_ns[~due.failed]
    good_per_s = kept_after_s = None
    if limit is not None:
        late = due.judged_by(limit).latency_failures_last_ns > limit.limit_ns
        good_per_s = _in_time(due, limit) / (end_s - start_s)
        # Each request with those after it, if they are enough to tell: the first with few enough late among them.
        left = np.arange(len(late), 0, -1)
        few = np.cumsum(late[::-1])[::-1] <= limit.allowed * left
        kept = np.flatnonzero(few & (left * limit.allowed >= 1))
        if len(kept):
            kept_after_s = 0.0 if kept[0] == 0 else float(due.scheduled_ns[kept[0]]) / 1e9 - start_s
    return PhaseRecord(
        start_s=start_s,
        end_s=end_s,
        due_per_s=len(due) / (end_s - start_s),
        good_per_s=good_per_s,
        failures=int(np.count_nonzero(due.outcome)),
        p99_ms=percentiles_ns(answers_ns, [0.99])[0] / _NS_PER_MS if len(answers_ns) else None,
        kept_after_s=kept_after_s,
    )


def token_times_of(log: RequestLog, timeout_ns: int, duration_s: float) -> dict[Measure, TokenTimesRecord]:
    """Return the curves of the time to the first token, and per token after it; empty if there are no streams."""
    found: dict[Measure, TokenTimesRecord] = {}
    for limit in () if log.streams is None else _OF_TOKENS:
        took_ns = time_of(limit, log.scheduled_ns, log.done_ns, log.streams)
        times = replace(log, done_ns=log.scheduled_ns + took_ns, streams=None)
        found[limit.measure] = TokenTimesRecord(
            curve=curve_of(times, timeout_ns), timeline=timeline_of(times, timeout_ns, duration_s)
        )
    return found


def bin_width_s(duration_s: float, requests: int) -> float:
    """Return 1, 2 or 5 times a power of ten seconds: at most 150 bins, and about 40 requests or more in each."""
    least_s = max(duration_s / _MAX_BINS, min(_MIN_IN_BIN * duration_s / requests, duration_s / 5))
    power = 10.0 ** math.floor(math.log10(least_s))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least_s * (1 - 1e-9))


def _bin_figures(latency_ns: NDArray[np.int64]) -> tuple[float | None, float | None, float | None]:
    if not len(latency_ns):
        return None, None, None
    p50, p99, top = percentiles_ns(latency_ns, (0.5, 0.99, 1.0))
    return p50 / _NS_PER_MS, p99 / _NS_PER_MS, top / _NS_PER_MS
