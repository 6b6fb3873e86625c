"""Tell from the course of a run whether its server executed shapes for the first time, which takes longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.server_stats import COLD_FACTOR, COLD_MS

FASTER = 1.2
"""Answers get faster if the last second brought 20 % more than the one before; halves of a shorter time."""

PATIENCE_NS = 1_000_000_000
"""A run goes on for a second, or twice as long as first answers take, after the latest first answer of a shape."""

MAX_ROWS = 50_000
"""First answers are looked for among the first 50,000 requests, which takes 30 ms."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers by shape, in the order of their arrival, shape (n,): `took_ms` counts from when an instance was free
    and the request sent. Each instance executes each shape a first time, and `later` ones."""

    shape: NDArray[np.int64]
    took_ms: NDArray[np.float64]
    later: NDArray[np.bool_]
    answered_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The shapes of the requests in turn, numbered, and the instances that execute each for a first time."""

    shapes: Sequence[int] = (0,)
    instances: int = 1

    def cold(self, log: RequestLog) -> str:
        """Return a sentence for users if first answers of shapes were slow, as cold batch sizes are; else ""."""
        seen = self._answers(log)
        known = np.unique(seen.shape[seen.later])  # compared with later answers of the same shapes
        if len(known) < 2:
            return ""
        parts = (~seen.later, seen.later)
        sums = [(np.bincount(seen.shape, seen.took_ms * some), np.bincount(seen.shape, some)) for some in parts]
        first, after = (np.sort(ms[known] / count[known])[:-1] for ms, count in sums)  # the longest may be a pause
        if not _slow(first, after):
            return ""
        return (
            f"the server executed {len(known)} shapes for the first time: their first answers took "
            f"{first.mean():.3g} ms each, and later ones {after.mean():.3g}"
        )

    def still_getting_faster(self, log: RequestLog, now_ns: int) -> bool:
        """True if answers come faster and faster, or if those of new shapes are slow, or all that there are."""
        done_ns = log.done_ns[(log.done_ns > 0) & ~log.failed]
        if not len(done_ns):
            return False
        half_ns = min(PATIENCE_NS, (now_ns - int(done_ns.min())) // 2)
        first, second = (np.count_nonzero(done_ns > now_ns - count * half_ns) for count in (2, 1))
        if second > FASTER * (first - second):
            return True
        seen = self._answers(log)
        first_ms, later_ms = seen.took_ms[~seen.later], seen.took_ms[seen.later]
        patience_ns = max(PATIENCE_NS, 2e6 * first_ms.max(initial=0.0))
        if not (seen.answered_ns[~seen.later] > now_ns - patience_ns).any():
            return False  # all shapes that come are known
        return len(later_ms) <= self.instances or _slow(first_ms, later_ms)

    def _answers(self, log: RequestLog) -> _Answers:
        """Return the answers; empty if there is one shape."""
        if max(self.shapes) == 0:
            return _Answers(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.int64))
        log = log.rows(0, MAX_ROWS)
        rows = np.flatnonzero((log.done_ns > 0) & ~log.failed)
        rows = rows[np.argsort(log.done_ns[rows], kind="stable")]
        done, shapes = log.done_ns[rows], np.resize(self.shapes, len(log))[rows]
        free = np.append(np.zeros(self.instances, np.int64), done)[: len(rows)]
        by_shape = np.argsort(shapes, kind="stable")
        _, start, shape = np.unique(shapes[by_shape], return_index=True, return_inverse=True)
        took_ms = ((done - np.maximum(log.sent_ns[rows], free)) / 1e6)[by_shape]
        return _Answers(shape, took_ms, np.arange(len(rows)) - start[shape] >= self.instances, done[by_shape])


def _slow(first_ms: NDArray[np.float64], later_ms: NDArray[np.float64]) -> bool:
    if not len(first_ms) or not len(later_ms):
        return False
    more_ms = float(first_ms.mean() - later_ms.mean())
    return more_ms >= (COLD_FACTOR - 1) * later_ms.mean() and len(first_ms) * more_ms >= COLD_MS


def turn_of(requests: Iterable[Iterable[tuple[int, ...]]], instances: int) -> Turn:
    """Return the turn of requests whose inputs have these shapes."""
    numbers: dict[tuple[tuple[int, ...], ...], int] = {}
    shapes = [numbers.setdefault(tuple(one), len(numbers)) for one in requests]
    return Turn(shapes=shapes, instances=instances)
