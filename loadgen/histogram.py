"""Times of more requests than fit in memory, to three significant digits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from hdrh.histogram import HdrHistogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_HIGHEST_NS = 1 << 42  # over an hour; what is longer counts as this long
_DIGITS = 3
_AT_ONCE = 1 << 16
_BITS = 11  # a time keeps this many leading bits, which is what three digits take


class TimesHistogram:
    """Times in ns. Count, sum, least and greatest are exact; percentiles are too high by 0.1 % at most."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, _HIGHEST_NS, _DIGITS)
        self.clear()

    def clear(self) -> None:
        """Forget all times, and be used again: a quarter of a megabyte in a cycle of references is slow to go."""
        self._histogram.reset()
        self._sum_ns = 0
        self._least_ns: int | None = None
        self._greatest_ns: int | None = None
        self._n = 0
        self._new: list[NDArray[np.int64]] = []  # not in the histogram yet
        self._new_n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, times_ns: NDArray[np.int64]) -> None:
        """Count these times."""
        if len(times_ns) == 0:
            return
        least, greatest = int(times_ns.min()), int(times_ns.max())
        self._least_ns = least if self._least_ns is None else min(self._least_ns, least)
        self._greatest_ns = greatest if self._greatest_ns is None else max(self._greatest_ns, greatest)
        self._sum_ns += int(times_ns.sum())
        self._n += len(times_ns)
        self._new.append(times_ns.copy())
        self._new_n += len(times_ns)
        if self._new_n >= _AT_ONCE:
            self._record_new()

    def _record_new(self) -> None:
        """The library takes one value at a time, so each of many is told once, with its count."""
        if not self._new:
            return
        clipped = np.clip(np.concatenate(self._new), 0, _HIGHEST_NS)
        self._new, self._new_n = [], 0
        spare_bits = np.maximum(np.frexp(clipped.astype(float))[1] - _BITS, 0)
        kinds, counts = np.unique(clipped >> spare_bits << spare_bits, return_counts=True)
        for time_ns, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            self._histogram.record_value(time_ns, count)

    def percentiles_ns(self, quantiles: Iterable[float]) -> list[int]:
        """Nearest-rank percentiles. Not of an empty histogram."""
        return self._at_ranks_ns([max(1, math.ceil(quantile * self._n)) for quantile in quantiles])

    def at_rank_ns(self, rank: int) -> int:
        """The rank-th of all times in ascending order, from 1 on."""
        return self._at_ranks_ns([rank])[0]

    def _at_ranks_ns(self, ranks: list[int]) -> list[int]:
        self._record_new()
        percents = [100.0 * rank / self._n for rank in ranks]
        found = self._histogram.get_percentile_to_value_dict(percents)
        return [max(self.least_ns, min(int(found[percent]), self.greatest_ns)) for percent in percents]

    @property
    def least_ns(self) -> int:
        """The least time. Not of an empty histogram."""
        assert self._least_ns is not None
        return self._least_ns

    @property
    def greatest_ns(self) -> int:
        """The greatest time. Not of an empty histogram."""
        assert self._greatest_ns is not None
        return self._greatest_ns

    @property
    def mean_ns(self) -> float:
        """The exact mean; NaN of nothing."""
        return self._sum_ns / self._n if self._n else math.nan
