"""What one short run says about a latency limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loadgen.certify import Verdict, certify
from loadgen.knee import Reading
from loadgen.order import LatencyLimit
from loadgen.several import tightest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadgen.capacity import Probe
    from loadgen.measurement import RequestLog

NO_REQUEST = "no request was due after the warm-up, so nothing was measured"
_LEAST_TAIL = 0.02
_VIF_WHEN_UNKNOWN = 50.0
_MOST = 0.5
_TIMES_ALLOWED = 1.5
_SEEN_TOO_WELL = 0.5
"""Standard errors by which a short run overrates the headroom: it begins with an empty queue, and the bursts that
make the quantile are more often missed than met. From simulated queues, where it is 0.5 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One probe and what it says. Problems: it says nothing; the client was measured, or no request was sent.

    Of several limits, `reading` and `verdict` are on the one that has the least headroom, `first` is on the first.
    """

    reading: Reading
    verdict: Verdict
    first: Verdict
    overloaded: bool  # more requests left than came back, or most took longer than the limit
    median_ms: float  # of the steady part; inf where most failed, NaN where nothing was measured
    answered_per_s: float  # in the run's second half: where overloaded, the most the server can do; 0: unknown
    load_s: float
    problems: tuple[str, ...]

    @property
    def rate_per_s(self) -> float:
        """The rate that was sent."""
        return self.reading.rate_per_s


def seen_from_probe(
    probe: Probe, rate_per_s: float, *, limit_ms: float, quantile: float, also: tuple[LatencyLimit, ...] = ()
) -> Seen:
    """The reading of one run at a rate, its verdict, and what else is worth knowing of it."""
    log = probe.log
    limits = (LatencyLimit(quantile=quantile, limit_ms=limit_ms), *also)
    verdicts = [certify(log, limit_ms=limit.limit_ms, quantile=limit.quantile) for limit in limits]
    verdict = tightest(verdicts)
    steady = log.scheduled_ns >= verdict.steady_from_s * 1e9
    latency_ms = np.where(log.failed, np.inf, log.latency_ns / 1e6)[steady]
    growing = probe.overloaded or any(one.overloaded for one in verdicts)
    return Seen(
        reading=_reading(latency_ms, rate_per_s, verdict, growing=growing),
        verdict=verdict,
        first=verdicts[0],
        overloaded=growing or verdict.share > _most(verdict),
        median_ms=float(np.median(latency_ms)) if len(latency_ms) else math.nan,
        answered_per_s=_answered_per_s(log),
        load_s=float(log.done_ns.max()) / 1e9 if len(log) else 0.0,
        # An overload may end a run before its warm-up does, and is seen all the same.
        problems=probe.problems or (() if verdict.n or (growing and len(log)) else (NO_REQUEST,)),
    )


def _reading(latency_ms: NDArray[np.float64], rate_per_s: float, verdict: Verdict, *, growing: bool) -> Reading:
    """Headroom from the quantile. Its error: that of the share beyond it, times how far the tail is drawn out."""
    if growing or not len(latency_ms) or not math.isfinite(verdict.latency_ms):
        return Reading(rate_per_s=rate_per_s, headroom=0.0, error=0.0)
    beyond = 1 - verdict.quantile
    shoulder_ms = float(np.quantile(latency_ms, max(0.0, 1 - 10 * beyond)))
    tail = max(_LEAST_TAIL, (1 - shoulder_ms / verdict.latency_ms) / math.log(min(10.0, 1 / beyond)))
    known = math.isfinite(verdict.vif)
    seen_times = verdict.n * beyond / (verdict.vif if known else _VIF_WHEN_UNKNOWN)  # that the quantile was passed
    relative = tail * (1 / math.sqrt(seen_times) if seen_times >= 1 else 1 + math.log(1 / seen_times))
    relative = min(1.0, relative)
    headroom = verdict.limit_ms / verdict.latency_ms * math.exp(-_SEEN_TOO_WELL * relative if known else 0.0)
    error = headroom * relative
    if verdict.share > _most(verdict):
        # One long burst, or a queue that still grows: the quantile depends on the run's length.
        error = max(error, _MOST)
    return Reading(rate_per_s=rate_per_s, headroom=headroom, error=error)


def _most(verdict: Verdict) -> float:
    """The share of violations beyond which most requests suffer: of a median, half may be over the limit."""
    return max(_MOST, _TIMES_ALLOWED * (1 - verdict.quantile))


def _answered_per_s(log: RequestLog) -> float:
    answered = np.sort(log.done_ns[~log.failed])
    if len(answered) < 20:
        return 0.0
    half = answered[len(answered) // 2 :]
    return float((len(half) - 1) / max((half[-1] - half[0]) / 1e9, 1e-9))
