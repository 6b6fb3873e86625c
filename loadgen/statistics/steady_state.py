"""Find the steady part of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.dependence import MIN_BLOCKS, SAMPLE

_BIN_NS = 50_000_000
BINS_PER_BATCH = 5
_MIN_BACKLOG = 8
_RISING_KENDALL = 0.85  # 1: no exception; chance alone reaches 0.85 once in 1,150 runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The time at which a run became steady, in ns since its start.

    Requests before `earliest_ns` are never judged. From there, MSER-5 on the mean latency drops a longer beginning
    if that makes the rest more uniform; `start_ns` is its cut. MSER-5 can mistake a burst at the beginning for a
    warm-up, and drifts far below the limit for one, so a test looks at the requests from both times on.
    """

    earliest_ns: int
    start_ns: int
    stationary: bool  # False: latencies rise all the time
    backed_up: bool  # all through the last second, over 3 x rate x limit requests were waiting
    growing: bool  # backed up, and the queue grows: overloaded


def steady_state(log: RequestLog, *, limit_ms: float) -> Steady:
    """Drop max(1 s, 3 x limit), then at most half of the rest by MSER-5 (White 1997).

    The log may belong to a run that is still going on, or be empty.
    """
    earliest_ns = left_out_ns(limit_ms)
    first = int(np.searchsorted(log.scheduled_ns, earliest_ns))
    cut, stationary = 0, True
    if first < len(log.scheduled_ns):
        judged = log.rows(first, len(log))
        cut = mser(_batch_means(judged.scheduled_ns, judged.latency_ns, earliest_ns))
        stationary = not rising(judged.part(slice(0, None, max(1, len(judged) // SAMPLE))).latency_ns)
    rate_per_s = len(log) / log.until_s if log.until_s else 0.0
    backed_up, growing = backlog(log, limit_ms, rate_per_s)
    return Steady(
        earliest_ns=earliest_ns,
        start_ns=earliest_ns + cut * BINS_PER_BATCH * _BIN_NS,
        stationary=stationary,
        backed_up=backed_up,
        growing=growing,
    )


def left_out_ns(limit_ms: float) -> int:
    """Return the length of the beginning of a run that is never judged."""
    return round(max(1.0, 3e-3 * limit_ms) * 1e9)


def _batch_means(
    scheduled_ns: NDArray[np.int64], latency_ns: NDArray[np.int64], start_ns: int
) -> NDArray[np.float64]:
    """Return means of five consecutive mean latencies per 50 ms; an empty bin repeats the one before it."""
    bins = int((scheduled_ns[-1] - start_ns) // _BIN_NS)
    bins -= bins % BINS_PER_BATCH
    if bins == 0:
        return np.empty(0)
    edges = np.searchsorted(scheduled_ns, start_ns + np.arange(bins + 1) * _BIN_NS)
    counts = np.diff(edges)
    filled = np.maximum.accumulate(np.where(counts > 0, np.arange(bins), -1))
    sums = np.zeros(bins)
    sums[counts > 0] = np.add.reduceat(latency_ns[: edges[-1]], edges[:-1][counts > 0])
    means = sums / np.maximum(counts, 1)
    means = np.where(filled >= 0, means[filled], means[np.argmax(counts > 0)])
    batches: NDArray[np.float64] = means.reshape(-1, BINS_PER_BATCH).mean(axis=1)
    return batches


def mser(batches: NDArray[np.float64]) -> int:
    """Return how many batches to cut for the least standard error of the rest's mean; at most half of them."""
    n = len(batches)
    if n < MIN_BLOCKS:
        return 0
    scaled = batches / max(float(batches.max()), 1e-300)
    left = np.arange(n, 0, -1)
    sums, squares = np.cumsum(scaled[::-1])[::-1], np.cumsum(scaled[::-1] ** 2)[::-1]
    error = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return int(np.argmin(error[: n // 2 + 1]))


def rising(latency_ns: NDArray[np.int64]) -> bool:
    """True if the medians of eight parts rise nearly without exception, and by a third at least.

    MSER-5 misses this: it takes the quiet beginning for the steady part.
    """
    sample = latency_ns[:: max(1, len(latency_ns) // SAMPLE)]
    if len(sample) < 20 * MIN_BLOCKS:
        return False
    medians = np.array([np.median(part) for part in np.array_split(sample, MIN_BLOCKS)])
    pairs = np.sign(medians[None, :] - medians[:, None])[np.triu_indices(MIN_BLOCKS, 1)]
    return bool(pairs.mean() >= _RISING_KENDALL and medians[-2:].mean() > 4 / 3 * medians[:2].mean())


def backlog(log: RequestLog, limit_ms: float, rate_per_s: float) -> tuple[bool, bool]:
    """True if over 3 x rate x limit requests waited all through the last second; and if ever more did."""
    scheduled = log.scheduled_ns
    if len(scheduled) < _MIN_BACKLOG:
        return False, False
    end_ns = int(scheduled[-1])
    times = np.arange(end_ns - 20 * _BIN_NS, end_ns + 1, _BIN_NS)
    if times[0] < 0:
        return False, False
    due = np.searchsorted(scheduled, times, side="right")
    later = np.sort(log.done_ns[log.done_ns > times[0]])
    done = len(scheduled) - len(later) + np.searchsorted(later, times, side="right")
    waiting = due - done
    threshold = max(_MIN_BACKLOG, 3e-3 * limit_ms * rate_per_s)
    backed_up = bool(waiting.min() > threshold)
    thirds = [part.mean() for part in np.array_split(waiting, 3)]
    return backed_up, backed_up and bool(thirds[0] < thirds[1] < thirds[2])
