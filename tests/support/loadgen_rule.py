"""The rule of MLPerf LoadGen's Server scenario, written anew from its sources (results.cc, early_stopping.cc)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
from simulated_queues import Queue

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.slo_test import certify

CONFIDENCE = 0.99
"""LoadGen's own; it cannot be set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenVerdict:
    """`constraints`: its latency at the quantile is within the limit. `enough`: early stopping is satisfied."""

    constraints: bool
    enough: bool

    @property
    def answer(self) -> str:
        """In our words: met for VALID, and INVALID as the exit code has it."""
        if self.constraints and self.enough:
            return "met"
        return "inconclusive" if self.constraints else "violated"


def loadgen_verdict(log: RequestLog, limit_ms: float, *, quantile: float = 0.99) -> LoadGenVerdict:
    """Return its verdict on the requests of a log, all of them."""
    latency_ns, limit_ns = np.sort(log.latency_ns), round(limit_ms * 1e6)
    n, over = len(latency_ns), int(np.count_nonzero(latency_ns > limit_ns))
    return LoadGenVerdict(
        constraints=bool(latency_ns[int(n * quantile)] <= limit_ns),
        enough=n >= over + least_within(over, quantile),
    )


@cache
def least_within(over: int, quantile: float) -> int:
    """Return the fewest queries within the limit that, with `over` over it, are enough.

    That is, the fewest for which so few of all are over the limit with a probability of 1 % at most, if each is so
    independently with the probability that the quantile allows.
    """
    low, high = 0, 1
    while not _is_enough(high, over, quantile):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_enough(middle, over, quantile) else (middle, high)
    return high


def _is_enough(within: int, over: int, quantile: float) -> bool:
    return _binomial_cdf(over, within + over, 1 - quantile) < 1 - CONFIDENCE


def _binomial_cdf(most: int, n: int, share: float) -> float:
    """P(X <= most) for X of n with this share."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + k * math.log(share) + (n - k) * math.log1p(-share)
        for k in range(most + 1)
    ]  # fmt: skip
    return math.fsum(map(math.exp, logs))


def verdicts(queue: Queue, load: float, *, runs: int) -> Counter[tuple[str, str]]:
    """Count (theirs, ours) over so many runs of a queue, at so many times the rate at which its limit is just met.

    A run has about 8,000 requests, or lasts 60 s if that is shorter.
    """
    found: Counter[tuple[str, str]] = Counter()
    limit = LatencyLimit(limit_ms=queue.limit_ms)
    duration_s = min(60.0, 8000 / queue.rate_at_limit_per_s)
    for log in queue.logs(load * queue.rate_at_limit_per_s, duration_s, seed=19, runs=runs):
        ours = certify(log, limit, confidence=0.95).answer
        found[loadgen_verdict(log, queue.limit_ms).answer, ours] += 1
    return found
