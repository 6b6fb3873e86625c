"""How far below its estimate a rate has to be, and how long a run, so that a confirmation is likely to decide."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadgen.confirm import FIRST_SHARE, shortest_s
from loadgen.several import confidence_of_each

if TYPE_CHECKING:
    from loadgen.order import LatencyLimit
    from search.records import Slo
    from search.trial import Trial

LAST_RESORT_SHARE = 0.6
"""Of the estimated rate, the least that is tried: far below the estimate, where few requests decide."""

KNEE_SHARE = 0.93
"""Of the estimated rate, the most that is tried first: the seconds until a rate is certified double with every two
or three percent from there on, and hardly fall below it (ADR 7)."""

BAD_LUCK = 1.3
"""Longer than the shortest run that decides: some of it is warm-up, and it is looked at every half second."""

TYPICAL_VIF = 50.0
TYPICAL_ELASTICITY = 20.0
"""Near the edge of CPU servers; only the first rate to try depends on them, never a verdict."""


def first_share(trial: Trial, slo: Slo, budget_s: float) -> float:
    """Of the estimated rate, where the first confirmation is tried so that `budget_s` is likely to decide it.

    n requests tell the rate at the limit to a relative error of sqrt(VIF / ((1 - quantile) n s^2)), with VIF the
    inflation of the variance by bursts and s the elasticity of the violations to the rate (binomial variance over
    the slope in ln(rate)). Two such errors below the estimate, bursts are short and violations rare.
    """
    requests = max(1.0, (trial.rate_at_limit_per_s or 0.0) * budget_s)
    strictest = max(limit.quantile for limit in slo.limits)
    error = math.sqrt(TYPICAL_VIF / ((1 - strictest) * requests)) / TYPICAL_ELASTICITY
    return max(LAST_RESORT_SHARE, min(KNEE_SHARE, FIRST_SHARE - 2 * error))


def least_s(rate_per_s: float, slo: Slo, confidence: float) -> float:
    """Seconds that a confirmation with this confidence takes in which no request is over the limit."""
    each = confidence_of_each(confidence, len(slo.limits))

    def one_s(limit: LatencyLimit) -> float:
        return BAD_LUCK * shortest_s(limit, rate_per_s, each) + 3e-3 * limit.limit_ms

    return max(one_s(limit) for limit in slo.limits)
