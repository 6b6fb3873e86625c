"""Compute the times of a long log in parts: all at once, they would take half as much memory as the log again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

PART = 1 << 20
"""A part has at most this many rows: 8 MB of times."""

_SAMPLE = 1 << 16
_SPREAD = 5.0  # standard deviations of a rank in a random sample that are searched; eight times more if that fails


class Times:
    """`n` times in ns; `of(rows)` returns those of a slice of rows, which may have a step, as a new array."""

    def __init__(self, n: int, of: Callable[[slice], NDArray[np.int64]], *, part: int = PART) -> None:
        self._n = n
        self._of = of
        self._part = part

    def __len__(self) -> int:
        return self._n

    def between(self, first: int, last: int) -> Times:
        """Return the times of the rows from `first` to before `last`."""
        return Times(
            max(0, last - first),
            lambda rows: self._of(slice(rows.start + first, rows.stop + first, rows.step)),
            part=self._part,
        )

    def sample(self, about: int) -> NDArray[np.int64]:
        """Return `about` or more of the times, at equal steps."""
        return self._of(slice(0, self._n, max(1, self._n // about)))

    def over(self, level_ns: float) -> int:
        """Count the times that are longer than `level_ns`."""
        return sum(int(np.count_nonzero(times_ns > level_ns)) for times_ns in self._parts())

    def sums_between(self, edges: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the sum of the times from each row in `edges` to the next, 0 if there are none."""
        return self._summed(edges, lambda times_ns: times_ns)

    def over_between(self, level_ns: float, edges: NDArray[np.intp]) -> NDArray[np.int64]:
        """Count the times that are longer than `level_ns`, from each row in `edges` to the next."""
        return self._summed(edges, lambda times_ns: (times_ns > level_ns).astype(np.int64))

    def _summed(
        self, edges: NDArray[np.intp], value: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        sums = np.zeros(len(edges) - 1, np.int64)
        first = 0
        while first < len(sums):
            last = int(np.searchsorted(edges, edges[first] + self._part, side="right")) - 1
            last = min(max(first + 1, last), len(sums))
            values = value(self._of(slice(int(edges[first]), int(edges[last]))))
            sums[first:last] = sums_between(values, edges[first : last + 1] - edges[first])
            first = last
        return sums

    @property
    def greatest_ns(self) -> int:
        """The longest time."""
        return max(int(times_ns.max()) for times_ns in self._parts())

    @property
    def least_ns(self) -> int:
        """The shortest time."""
        return min(int(times_ns.min()) for times_ns in self._parts())

    @property
    def mean_ns(self) -> float:
        """The mean time."""
        return math.fsum(float(times_ns.mean()) * len(times_ns) for times_ns in self._parts()) / self._n

    def percentiles_ns(self, quantiles: Iterable[float]) -> list[int]:
        """Return nearest-rank percentiles: the smallest time that at least a fraction q of all does not exceed."""
        return self.at_ranks([max(0, math.ceil(quantile * self._n) - 1) for quantile in quantiles])

    def at_ranks(self, ranks: Sequence[int]) -> list[int]:
        """Return the times at these places of their ascending order, from 0 on. Exact."""
        if self._n <= self._part:
            ordered = np.partition(self._of(slice(0, self._n)), sorted(set(ranks)))
            return [int(ordered[rank]) for rank in ranks]
        sample = np.sort(self.sample(_SAMPLE))
        found: dict[int, int] = {}
        spread = _SPREAD
        while missing := sorted({rank for rank in ranks if rank not in found}):
            found |= self._found_near(missing, sample, spread)
            spread *= 8
        return [found[rank] for rank in ranks]

    def _found_near(self, ranks: list[int], sample: NDArray[np.int64], spread: float) -> dict[int, int]:
        """Return the times of those ranks that lie within `spread` of their place in the sorted sample."""
        m = len(sample)
        stretches = []
        for rank in ranks:
            at = rank / self._n * m
            margin = spread * (math.sqrt(at * (m - at) / m) + 1)
            low, high = math.floor(at - margin), math.ceil(at + margin)
            least = int(sample[low]) if low >= 0 else np.iinfo(np.int64).min
            most = int(sample[high]) if high < m else np.iinfo(np.int64).max
            stretches.append(_Stretch(least, most))
        for times_ns in self._parts():
            for stretch in stretches:
                stretch.add(times_ns)
        answers = {rank: stretch.at_rank(rank) for rank, stretch in zip(ranks, stretches, strict=True)}
        return {rank: time for rank, time in answers.items() if time is not None}

    def _parts(self) -> Iterator[NDArray[np.int64]]:
        for start in range(0, self._n, self._part):
            yield self._of(slice(start, min(start + self._part, self._n)))


class _Stretch:
    """The times from `least` to `most`: those in between are stored, those equal to an end are only counted."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._below = self._at_least = self._at_most = 0
        self._between: list[NDArray[np.int64]] = []

    def add(self, times_ns: NDArray[np.int64]) -> None:
        self._below += int(np.count_nonzero(times_ns < self._least))
        self._at_least += int(np.count_nonzero(times_ns == self._least))
        if self._most > self._least:
            self._at_most += int(np.count_nonzero(times_ns == self._most))
            self._between.append(times_ns[(times_ns > self._least) & (times_ns < self._most)])

    def at_rank(self, rank: int) -> int | None:
        """Return the time at this place of all times; None if it is outside the stretch."""
        place = rank - self._below
        if place < 0:
            return None
        if place < self._at_least:
            return self._least
        place -= self._at_least
        between = np.concatenate(self._between) if self._between else np.zeros(0, np.int64)
        if place < len(between):
            return int(np.partition(between, place)[place])
        return self._most if place < len(between) + self._at_most else None


def sums_between(values: NDArray[np.int64], edges: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the sum of the values from each edge to the next, 0 if there are none."""
    sums = np.zeros(len(edges) - 1, np.int64)
    filled = edges[1:] > edges[:-1]
    if filled.any():
        sums[filled] = np.add.reduceat(values[: edges[-1]], edges[:-1][filled])
    return sums
