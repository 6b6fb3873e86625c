"""Confidence statements about the long-run share of violations, valid however often one looks.

Violations come in bursts: requests in one busy period suffer together. The model is the simplest with bursts:
they arrive independently of each other and hold an exponentially distributed number of violations, c on
average. If the share of violations is p, then for every g > 0 the product

    exp(-g k / c + g / (1 + g) * n p / c)          k violations among n requests

has mean 1 at any time, so a mixture of such products exceeds 1 / alpha with probability alpha at most, whenever
one stops looking (Ville's inequality). A large value is evidence that the share is below p. With
-g in place of g, 0 < g < 1, it is evidence that the share is above p.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

_BELOW = (0.1, 0.3, 1.0, 3.0, 10.0, 1e6)
_ABOVE = (0.03, 0.07, 0.15, 0.3, 0.5)
_BISECTIONS = 36
_MOST_BURSTS = 1e9


def log_evidence_below(violations: float, n: float, share: float, burst: float) -> float:
    """Return ln of the evidence that violations are rarer than `share`, in bursts of `burst` on average."""
    k, mean = violations / burst, n * share / burst
    return _log_mean_exp([g * (mean / (1 + g) - k) for g in _BELOW])


def log_evidence_above(violations: float, n: float, share: float, burst: float) -> float:
    """Return ln of the evidence that violations are more frequent than `share`."""
    k, mean = violations / burst, n * share / burst
    return _log_mean_exp([g * (k - mean / (1 - g)) for g in _ABOVE])


def share_at_least(violations: int, n: int, burst: float, confidence: float) -> float:
    """Return a lower bound of the share of violations; it holds with `confidence` at all times together."""
    wanted = -math.log1p(-confidence)
    return _last_true(lambda share: log_evidence_above(violations, n, share, burst) >= wanted, 0.0, violations / n)


def share_at_most(violations: int, n: int, burst: float, confidence: float) -> float:
    """Return an upper bound of the share of violations; it holds with `confidence` at all times together."""
    wanted = -math.log1p(-confidence)
    return 1.0 - _last_true(
        lambda rest: log_evidence_below(violations, n, 1.0 - rest, burst) >= wanted, 0.0, 1.0 - violations / n
    )


def most_violations(n: int, share: float, burst: float, confidence: float) -> int:
    """Return the most violations among n that show a share below `share`; -1: not even none does."""
    wanted, counts = -math.log1p(-confidence), range(math.floor(n * share) + 1)
    return bisect_left(counts, True, key=lambda k: log_evidence_below(k, n, share, burst) < wanted) - 1


def fewest_violations(n: int, share: float, burst: float, confidence: float) -> int:
    """Return the fewest violations among n that show a share above `share`; n + 1: not even n do."""
    wanted = -math.log1p(-confidence)
    return bisect_left(range(n + 1), True, key=lambda k: log_evidence_above(k, n, share, burst) >= wanted)


def requests_needed(violations: int, share: float, burst: float, confidence: float) -> int:
    """Return how many requests, with so many violations among them, show a share below `share`."""
    wanted = -math.log1p(-confidence)

    def enough(n: int) -> bool:
        return log_evidence_below(violations, n, share, burst) >= wanted

    high = math.ceil((violations + burst) / share)
    while not enough(high):
        high *= 2
    return bisect_left(range(high), True, key=enough)


def bursts_needed(seen: float, confidence: float) -> float:
    """Return how many bursts have to be allowed to show a share below what is allowed; inf: no number is enough.

    `seen` is the observed share / the allowed one. The evidence depends on the numbers of bursts alone, seen and
    allowed, and does not grow from 91 % of what is allowed on.
    """
    wanted, high = -math.log1p(-confidence), 1.0

    def too_few(bursts: float) -> bool:
        return log_evidence_below(seen * bursts, bursts, 1.0, 1.0) < wanted

    while too_few(high):
        high *= 2
        if high > _MOST_BURSTS:
            return math.inf
    return _last_true(too_few, 0.0, high)


def _log_mean_exp(terms: list[float]) -> float:
    top = max(terms)
    return top + math.log(sum([math.exp(term - top) for term in terms]) / len(terms))


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest x in [low, high] for which `holds` (true up to some x, false beyond); else `low`."""
    if holds(high):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
