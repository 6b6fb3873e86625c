"""Choose the rate of a first confirmation, so that it is likely to decide."""

from __future__ import annotations

import math

from loadgen.statistics.confirm import FIRST_SHARE
from search.records.slo import Slo
from search.trials.trial import Trial

LAST_RESORT_SHARE = 0.6
"""The lowest share of the estimate that is tried: so far below it, few requests decide."""

KNEE_SHARE = 0.93
"""The highest share of the estimate that is tried first: above it, the seconds until a rate is certified double
with every two or three percent; below it, they hardly decrease (ADR 7)."""

TYPICAL_VIF = 50.0
TYPICAL_ELASTICITY = 20.0
"""Typical near the capacity of CPU servers; only the first rate depends on them, never a verdict."""


def first_share(trial: Trial, slo: Slo, budget_s: float) -> float:
    """Return the share of the estimate at which a first confirmation of `budget_s` is likely to decide.

    n requests estimate the capacity with a relative error of sqrt(VIF / ((1 - quantile) n s^2)), with VIF the
    inflation of the variance by bursts and s the elasticity of the violations to the rate (binomial variance over
    the slope in ln(rate)). Two such errors below the estimate, bursts are short and violations rare.
    """
    requests = max(1.0, (trial.rate_at_limit_per_s or 0.0) * budget_s)
    strictest = max(limit.quantile for limit in slo.limits)
    error = math.sqrt(TYPICAL_VIF / ((1 - strictest) * requests)) / TYPICAL_ELASTICITY
    return max(LAST_RESORT_SHARE, min(KNEE_SHARE, FIRST_SHARE - 2 * error))
