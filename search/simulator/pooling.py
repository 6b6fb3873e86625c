"""Pool measured execution times by batch size: the mean of few executions of one size is imprecise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from loadgen.measurement.server_stats import BatchTimings
from search.arrays import Floats

_BIN_OCTAVES = 0.5


def execution_s(row: BatchTimings) -> float:
    """Return the mean seconds of an execution."""
    return (row.input_ms + row.infer_ms + row.output_ms) / 1e3


def pooled(rows: Iterable[BatchTimings], executed_sizes: Sequence[int]) -> list[tuple[float, float, float]]:
    """Return executed batch size, number of executions and mean seconds, ascending by size."""
    counts: dict[int, int] = defaultdict(int)
    total_s: dict[int, float] = defaultdict(float)
    for row in rows:
        size = next((size for size in executed_sizes if size >= row.batch_size), row.batch_size)
        counts[size] += row.executions
        total_s[size] += row.executions * execution_s(row)
    return [(float(size), float(counts[size]), total_s[size] / counts[size]) for size in sorted(counts)]


Pool: TypeAlias = tuple[float, float, float]
"""Mean batch size, number of executions, and the mean of a figure."""

Points: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Batch sizes, ascending, and a figure of each."""


def pooled_sizes(sizes: Floats, counts: Floats, values: Floats, *, join: Callable[[Pool, Pool], bool]) -> Points:
    """Return means over half octaves of the batch size, and over adjacent ones while these `join`.

    The mean of few executions of one size is imprecise.
    """
    bins = np.round(np.log2(sizes) / _BIN_OCTAVES).astype(int)
    pools: list[Pool] = []
    for mine in (bins == found for found in np.unique(bins)):
        size, value = (float(np.average(one[mine], weights=counts[mine])) for one in (sizes, values))
        pools.append((size, float(counts[mine].sum()), value))
        while len(pools) > 1 and join(pools[-2], pools[-1]):
            (a, n, s), (b, m, t) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m, (s * n + t * m) / (n + m))]
    known, _, means = zip(*pools, strict=True)
    return known, means


def never_falling(sizes: Floats, counts: Floats, seconds: Floats) -> Points:
    """Return pooled sizes whose times never decrease with the size (pool adjacent violators)."""
    return pooled_sizes(sizes, counts, seconds, join=lambda one, two: one[2] > two[2])
