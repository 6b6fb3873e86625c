"""Variance inflation of violations that come in bursts, from batch means."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ONE_SIDED_95 = 1.6449
"""Standard errors between an estimate and a one-sided bound of 95 %."""

MIN_BLOCKS = 8
"""A run is compared with itself in eight parts at least."""

_SHORTEST_BLOCK_S = 0.1
_REQUESTS_PER_BLOCK = 20
_MAX_BLOCKS = 1024
LAG_1 = 0.2
_LEVELS = (0.5, 0.3, 0.2, 0.1, 0.05)
"""Bursts are measured at the latency levels that these shares of the requests exceed."""

SAMPLE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """How strongly violations cluster in a run.

    `vif` is an upper bound of the variance inflation of the share of violations, compared with independent
    requests. The sizes are mean numbers of violations per burst, >= 1: `size` is for the answer "met",
    `size_to_break` for "violated". The second is smaller, by as much as the truth tests allow: with many
    violations, bursts look larger than they are at the limit.
    """

    vif: float
    size: float
    size_to_break: float


def bursts(
    scheduled_ns: NDArray[np.int64],
    latency_ns: NDArray[np.int64],
    *,
    limit_ns: int,
    start_ns: int,
    shared_ms: float | None = None,
) -> Clustering | None:
    """Measure the bursts in which requests exceed `limit_ns`; requests are sorted by due time, shape (n,).

    Few runs have enough violations for that. But a queue leaves a high level much as it leaves a lower one, so
    bursts are measured at levels that half to a twentieth of the requests exceed, as far as these are at least
    a quarter of the limit, and at the limit; the largest figure counts. Where no request took half of the limit
    there was no such queue, and drifts of a few per cent make long bursts at those levels: they do not count. For
    exponential bursts, the mean size is half the variance inflation. It is never less than the requests of a
    quarter of `shared_ms`, by default the limit: a server that stalls does so for about as long, and all streams
    that are under way share a pause.

    Returns None if the run is too short: fewer than eight blocks.
    """
    n = len(scheduled_ns)
    if n < MIN_BLOCKS:
        return None
    span_ns = int(scheduled_ns[-1]) - start_ns
    block_ns = max(_SHORTEST_BLOCK_S * 1e9, _REQUESTS_PER_BLOCK * span_ns / n, span_ns / _MAX_BLOCKS)
    blocks = int(span_ns / block_ns)
    if blocks < MIN_BLOCKS:
        return None
    starts_ns = np.ceil(start_ns + np.arange(blocks + 1) * block_ns).astype(np.int64)  # floats would copy the log
    edges = np.searchsorted(scheduled_ns, starts_ns)
    counts = np.diff(edges)
    levels = _levels(latency_ns[edges[0] : edges[-1]], limit_ns)
    slower = np.stack([np.diff(np.searchsorted(np.flatnonzero(latency_ns > level), edges)) for level in levels])
    return _bursts(counts, slower, least_burst(n / span_ns * 1e9, shared_ms or limit_ns / 1e6))


def _bursts(counts: NDArray[np.int64], slower: NDArray[np.int64], least: float) -> Clustering:
    vif = float(_inflation(counts.astype(float), slower.astype(float)).max())
    vif = max(vif, 2 * least)
    return Clustering(vif=max(1.0, vif), size=max(1.0, vif / 2), size_to_break=max(1.0, vif / 6))


def least_burst(rate_per_s: float, shared_ms: float) -> float:
    """Return the smallest burst size that is assumed: the requests of a quarter of that time."""
    return rate_per_s * shared_ms / 4000


def _levels(latency_ns: NDArray[np.int64], limit_ns: int) -> list[float]:
    if latency_ns.max() < limit_ns / 2:
        return [limit_ns]
    sample = latency_ns[:: max(1, len(latency_ns) // SAMPLE)]
    levels = np.quantile(sample, [1 - share for share in _LEVELS])
    return [limit_ns, *(level for level in levels if limit_ns / 4 <= level < limit_ns)]


def _inflation(counts: NDArray[np.float64], slower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an upper bound of each level's variance inflation by batch means, shape (levels,).

    `counts` are requests per block, shape (blocks,), and `slower` those over each level, shape (levels, blocks).
    Blocks are doubled until adjacent ones hardly correlate; the rest of the correlation is corrected for.
    """
    n = counts.sum()
    share = slower.sum(axis=1) / n
    answer = np.ones(len(share))
    open_ = (share > 0) & (share < 1)
    while open_.any():
        blocks = len(counts)
        excess = slower - share[:, None] * counts
        square = np.maximum((excess**2).sum(axis=1), 1e-12)
        lag_1 = np.clip((excess[:, 1:] * excess[:, :-1]).sum(axis=1) / square, 0.0, 0.9)
        rare = np.maximum(1 - share, 0.5)  # as at a level that few requests exceed
        inflation = blocks / (blocks - 1) * square / (n * np.maximum(share * (1 - share), 1e-12)) / rare
        inflation *= (1 + lag_1) / (1 - lag_1) * (1 + ONE_SIDED_95 * math.sqrt(2 / blocks))
        answer[open_] = inflation[open_]
        if blocks // 2 < MIN_BLOCKS:
            break
        open_ &= lag_1 >= LAG_1
        even = blocks // 2 * 2
        counts = counts[:even].reshape(-1, 2).sum(axis=1)
        slower = slower[:, :even].reshape(len(share), -1, 2).sum(axis=2)
    return answer
