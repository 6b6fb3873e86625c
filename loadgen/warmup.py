"""Where the steady part of a run begins, and whether there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadgen.measurement import RequestLog
    from loadgen.times import Times

_BIN_NS = 50_000_000
BINS_PER_BATCH = 5
_LEAST_BATCHES = 8
_LEAST_BACKLOG = 8
_PARTS = 8
_RISING_KENDALL = 0.85  # 1: without exception; chance alone gets here once in 1,150 times
_SAMPLE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """When a run became steady, in ns since its start.

    What came before `earliest_ns` is never judged. From there, MSER-5 on the mean latency drops a longer
    beginning if the rest becomes more uniform by it; `start_ns` is where it cuts. It can mistake a burst at the
    beginning for a warm-up, so a promise needs both: judged from `earliest_ns` and judged from `start_ns`.
    """

    earliest_ns: int
    start_ns: int
    stationary: bool  # False: the cut came at the end of what may be cut, or the latencies rise all the time
    backed_up: bool  # for the last second, requests of more than three limits were waiting
    growing: bool  # backed up, and getting longer: overloaded


def steady_state(log: RequestLog, *, limit_ms: float, warmup_s: float = 0.0) -> Steady:
    """Drop max(1 s, 3 x limit, `warmup_s`), then at most half of the rest by MSER-5 (White 1997).

    The log may be that of a run that is still going on, or be empty.
    """
    earliest_ns = left_out_ns(limit_ms, warmup_s)
    first = int(np.searchsorted(log.scheduled_ns, earliest_ns))
    cut, stationary = 0, True
    if first < len(log.scheduled_ns):
        latency = log.latency.between(first, len(log))
        cut, stationary = mser(_batch_means(log.scheduled_ns[first:], latency, earliest_ns))
        stationary &= not rising(latency.sample(_SAMPLE))
    end_ns = float(log.scheduled_ns[-1]) if len(log.scheduled_ns) else 0.0
    rate_per_s = len(log.scheduled_ns) / (end_ns / 1e9) if end_ns else 0.0
    backed_up, growing = backlog(log, limit_ms, rate_per_s)
    return Steady(
        earliest_ns=earliest_ns,
        start_ns=earliest_ns + cut * BINS_PER_BATCH * _BIN_NS,
        stationary=stationary,
        backed_up=backed_up,
        growing=growing,
    )


def left_out_ns(limit_ms: float, warmup_s: float = 0.0) -> int:
    """The beginning of a run that is never judged."""
    return round(max(1.0, 3e-3 * limit_ms, warmup_s) * 1e9)


def _batch_means(scheduled_ns: NDArray[np.int64], latency: Times, start_ns: int) -> NDArray[np.float64]:
    """Means of five consecutive mean latencies per 50 ms; an empty bin is as the one before it."""
    bins = int((scheduled_ns[-1] - start_ns) // _BIN_NS)
    bins -= bins % BINS_PER_BATCH
    if bins == 0:
        return np.empty(0)
    edges = np.searchsorted(scheduled_ns, start_ns + np.arange(bins + 1) * _BIN_NS)
    counts = np.diff(edges)
    filled = np.maximum.accumulate(np.where(counts > 0, np.arange(bins), -1))
    means = latency.sums_between(edges) / np.maximum(counts, 1)
    means = np.where(filled >= 0, means[filled], means[np.argmax(counts > 0)])
    batches: NDArray[np.float64] = means.reshape(-1, BINS_PER_BATCH).mean(axis=1)
    return batches


def mser(batches: NDArray[np.float64]) -> tuple[int, bool]:
    """How many batches to cut so that the standard error of the rest's mean is least; at most half of them."""
    n = len(batches)
    if n < _LEAST_BATCHES:
        return 0, True
    scaled = batches / max(float(batches.max()), 1e-300)
    left = np.arange(n, 0, -1)
    sums, squares = np.cumsum(scaled[::-1])[::-1], np.cumsum(scaled[::-1] ** 2)[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    cut = int(np.argmin(error[: n // 2 + 1]))
    return cut, cut < n // 2


def rising(latency_ns: NDArray[np.int64]) -> bool:
    """Whether the medians of eight parts rise nearly without exception, and by a third at least.

    MSER-5 does not see this: it takes the quiet beginning for the steady part.
    """
    sample = latency_ns[:: max(1, len(latency_ns) // _SAMPLE)]
    if len(sample) < 20 * _PARTS:
        return False
    medians = np.array([np.median(part) for part in np.array_split(sample, _PARTS)])
    pairs = np.sign(medians[None, :] - medians[:, None])[np.triu_indices(_PARTS, 1)]
    return bool(pairs.mean() >= _RISING_KENDALL and medians[-2:].mean() > 4 / 3 * medians[:2].mean())


def backlog(log: RequestLog, limit_ms: float, rate_per_s: float) -> tuple[bool, bool]:
    """Whether over 3 x rate x limit requests were waiting all through the last second, and more and more."""
    scheduled = log.scheduled_ns
    if len(scheduled) < _LEAST_BACKLOG:
        return False, False
    end_ns = int(scheduled[-1])
    times = np.arange(end_ns - 20 * _BIN_NS, end_ns + 1, _BIN_NS)
    if times[0] < 0:
        return False, False
    due = np.searchsorted(scheduled, times, side="right")
    later = np.sort(log.done_ns[log.done_ns > times[0]])
    done = len(scheduled) - len(later) + np.searchsorted(later, times, side="right")
    waiting = due - done
    threshold = max(_LEAST_BACKLOG, 3e-3 * limit_ms * rate_per_s)
    backed_up = bool(waiting.min() > threshold)
    thirds = [part.mean() for part in np.array_split(waiting, 3)]
    return backed_up, backed_up and bool(thirds[0] < thirds[1] < thirds[2])
