"""A run that is too long for memory, cut into blocks of time: what its verdicts are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loadgen.measurement import FAILED_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from loadgen.measurement import RequestLog

_FIRST_BLOCK_NS = 100_000_000
_MOST_BLOCKS = 2048


class TimeBlocks:
    """Counts per block: requests, their latencies, how many failed, and how many were over each level.

    Blocks are 0.1 s at first. Whenever there are 2048 of them, neighbours are joined, so that a run of any length
    is at least 1024 blocks. `levels_ns` ascend; a failed request is over every one of them.
    """

    def __init__(self, levels_ns: Sequence[int]) -> None:
        self.levels_ns = np.array(sorted(set(levels_ns)), np.int64)
        self.block_ns = _FIRST_BLOCK_NS
        self._used = 0  # blocks up to the last one that has a request
        self._counts = np.zeros(_MOST_BLOCKS, np.int64)
        self._latency_ns = np.zeros(_MOST_BLOCKS)
        self._failed = np.zeros(_MOST_BLOCKS, np.int64)
        self._over = np.zeros((len(self.levels_ns), _MOST_BLOCKS), np.int64)

    def add(self, log: RequestLog) -> None:
        """Count requests that were due after all those counted before."""
        if len(log) == 0:
            return
        while int(log.scheduled_ns[-1]) >= _MOST_BLOCKS * self.block_ns:
            self._join()
        block = log.scheduled_ns // self.block_ns
        latency_ns = log.latency_ns
        self._counts += np.bincount(block, minlength=_MOST_BLOCKS)
        self._latency_ns += np.bincount(block, weights=latency_ns, minlength=_MOST_BLOCKS)
        self._failed += np.bincount(block[log.failed], minlength=_MOST_BLOCKS)
        latency_ns[log.failed] = FAILED_NS
        for number, level_ns in enumerate(self.levels_ns):
            self._over[number] += np.bincount(block[latency_ns > level_ns], minlength=_MOST_BLOCKS)
        self._used = int(block[-1]) + 1

    def first_from(self, start_ns: int) -> int:
        """The first block that begins at `start_ns` or later."""
        return -(-start_ns // self.block_ns)

    def counts(self, first: int) -> NDArray[np.int64]:
        """Requests per block from block `first` on, the last one left out: it may not be whole yet."""
        return self._counts[first : self._last]

    def failed(self, first: int) -> NDArray[np.int64]:
        """Failed requests per block."""
        return self._failed[first : self._last]

    def over(self, first: int) -> NDArray[np.int64]:
        """Requests over each level, shape (levels, blocks)."""
        return self._over[:, first : self._last]

    def mean_latency_ns(self, first: int) -> NDArray[np.float64]:
        """Mean latency of each block that has requests."""
        counts = self.counts(first)
        filled = counts > 0
        means: NDArray[np.float64] = self._latency_ns[first : self._last][filled] / counts[filled]
        return means

    @property
    def _last(self) -> int:
        return max(0, self._used - 1)

    def _join(self) -> None:
        self.block_ns *= 2
        for row in (self._counts, self._latency_ns, self._failed, *self._over):
            joined = row.reshape(-1, 2).sum(axis=1)
            row[: len(joined)] = joined
            row[len(joined) :] = 0
