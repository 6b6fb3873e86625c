"""The confidence bound of a share."""

from __future__ import annotations

import math


def lower_bound(successes: int, trials: int, *, confidence: float) -> float:
    """Return the one-sided lower Clopper-Pearson bound of a probability, to 1e-9."""
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / trials
    while high - low > 1e-9:
        middle = (low + high) / 2
        if _tail(successes, trials, middle) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _tail(least: int, trials: int, p: float) -> float:
    """Return P(X >= least) for a binomial X."""
    if p <= 0:
        return 0.0
    log_terms = (
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(p) + (trials - k) * math.log1p(-p)
        for k in range(least, trials + 1)
    )  # fmt: skip
    return math.fsum(math.exp(term) for term in log_terms)
