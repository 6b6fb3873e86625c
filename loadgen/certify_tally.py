"""The verdict on a run of which only a tally was kept, by the procedure of `loadgen.certify`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from loadgen.bursts import Bursts, bursts_of_blocks
from loadgen.certify import Promise, Verdict, verdict_of_counts, verdict_of_steady
from loadgen.evidence import fewest_violations, most_violations
from loadgen.warmup import BINS_PER_BATCH, Steady, backlog, left_out_ns, mser, rising

if TYPE_CHECKING:
    from loadgen.tally import Tally
    from loadgen.time_blocks import TimeBlocks


def certify_tally(
    tally: Tally, *, limit_ms: float, quantile: float = 0.99, confidence: float = 0.95, warmup_s: float = 0.0
) -> Verdict:
    """As `loadgen.certify.certify`; `limit_ms` must be one of the tally's limits.

    Violations are counted exactly, whole blocks only. The quantile and its bounds come from the histogram of the
    whole run, its beginning with it, which can only widen them.
    """
    promise = Promise(limit_ms=limit_ms, quantile=quantile, confidence=confidence)
    blocks = tally.blocks
    level = int(np.searchsorted(blocks.levels_ns, promise.limit_ns))
    if level == len(blocks.levels_ns) or blocks.levels_ns[level] != promise.limit_ns:
        raise ValueError(f"limit_ms {limit_ms} is none of the limits that the tally counted violations of")

    def judge(start_ns: int) -> Verdict:
        first = blocks.first_from(start_ns)
        n = int(blocks.counts(first).sum())
        return verdict_of_counts(
            promise,
            n=n,
            violations=int(blocks.over(first)[level].sum()),
            found=_bursts(blocks, first, promise.limit_ns),
            start_ns=first * blocks.block_ns,
            order_statistics_ms=lambda thresholds: _order_statistics_ms(tally, n, quantile, thresholds),
        )

    return verdict_of_steady(steady_state_of_tally(tally, limit_ms=limit_ms, warmup_s=warmup_s), judge)


def certify_failures(tally: Tally, *, max_ratio: float, confidence: float) -> Verdict:
    """Whether at most this share of all requests fails."""
    promise = Promise(limit_ms=1.0, quantile=1 - max_ratio, confidence=confidence)
    blocks = tally.blocks
    first = blocks.first_from(left_out_ns(0.0))
    failed = blocks.failed(first)
    counts = blocks.counts(first)
    return verdict_of_counts(
        promise,
        n=int(counts.sum()),
        violations=int(failed.sum()),
        found=bursts_of_blocks(counts, failed[None, :], block_ns=blocks.block_ns, limit_ns=promise.limit_ns),
        start_ns=first * blocks.block_ns,
        order_statistics_ms=lambda _: (math.nan, math.inf, 0.0),
    )


def quantile_bounds_ms(tally: Tally, quantile: float, confidence: float) -> tuple[float, float]:
    """Lower and upper bound of a quantile whatever the limit; 0 and inf where there is none."""
    if not len(tally):
        return 0.0, math.inf
    (point_ns,) = tally.latency.percentiles_ns((quantile,))
    blocks = tally.blocks
    first = blocks.first_from(left_out_ns(point_ns / 1e6))
    n, found = int(blocks.counts(first).sum()), _bursts(blocks, first, point_ns)
    if found is None:
        return 0.0, math.inf
    most = most_violations(n, 1 - quantile, found.size, confidence)
    fewest = fewest_violations(n, 1 - quantile, found.size_to_break, confidence)
    _, upper_ms, lower_ms = _order_statistics_ms(tally, n, quantile, (most, fewest))
    return lower_ms, upper_ms


def steady_state_of_tally(tally: Tally, *, limit_ms: float, warmup_s: float = 0.0) -> Steady:
    """As `loadgen.warmup.steady_state`, with means per block where that has single latencies."""
    blocks = tally.blocks
    earliest_ns = left_out_ns(limit_ms, warmup_s)
    means_ns = blocks.mean_latency_ns(blocks.first_from(earliest_ns))
    whole = len(means_ns) // BINS_PER_BATCH * BINS_PER_BATCH
    cut, stationary = mser(means_ns[:whole].reshape(-1, BINS_PER_BATCH).mean(axis=1))
    counts = blocks.counts(0)
    rate_per_s = float(counts.mean()) / (blocks.block_ns / 1e9) if len(counts) else 0.0
    backed_up, growing = backlog(tally.recent, limit_ms, rate_per_s) if len(tally) else (False, False)
    return Steady(
        earliest_ns=earliest_ns,
        start_ns=earliest_ns + cut * BINS_PER_BATCH * blocks.block_ns,
        stationary=stationary and not rising(means_ns.astype(np.int64)),
        backed_up=backed_up,
        growing=growing,
    )


def _bursts(blocks: TimeBlocks, first: int, limit_ns: int) -> Bursts | None:
    """Measured at the levels between a quarter of the limit and the limit, and where requests failed."""
    between = (blocks.levels_ns >= limit_ns / 4) & (blocks.levels_ns <= limit_ns)
    slower = np.vstack([blocks.over(first)[between], blocks.failed(first)])
    return bursts_of_blocks(blocks.counts(first), slower, block_ns=blocks.block_ns, limit_ns=limit_ns)


def _order_statistics_ms(
    tally: Tally, judged: int, quantile: float, thresholds: tuple[int, int]
) -> tuple[float, float, float]:
    """The quantile and its upper and lower bound, from a histogram in which all failures stand last."""
    n, (most, fewest) = len(tally), thresholds
    if n == 0:
        return math.nan, math.inf, 0.0

    def at(rank: int) -> float:
        return math.inf if rank > n - tally.failures else tally.latency.at_rank_ns(rank) / 1e6

    upper_ms = at(n - most) if most >= 0 else math.inf
    lower_ms = at(max(1, judged - fewest + 1)) if fewest <= judged else 0.0
    return at(max(1, math.ceil(quantile * n))), upper_ms, lower_ms
