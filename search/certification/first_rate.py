"""Choose the rate of a first confirmation, so that it is likely to decide."""

from __future__ import annotations

import math

from loadgen.statistics.confirm import FIRST_SHARE, shortest_s
from loadgen.statistics.slo_test import confidence_of_each
from search.records.slo import Slo
from search.trials.certificate_time import confidence_of_a_run
from search.trials.trial import Trial

LAST_RESORT_SHARE = 0.6
"""The lowest share of the estimate that is tried: so far below it, few requests decide."""

KNEE_SHARE = 0.93
"""The highest share of the estimate that is tried first: above it, the seconds until a rate is certified double
with every two or three percent; below it, they hardly decrease (ADR 7)."""

CLOSEST_SHARE, WORTH_S = 0.97, 7.5
"""If a confirmation is expected to take less than 7.5 s, as under a limit of a few milliseconds, a higher share is
tried: the one at which it takes 7.5 s, but at most 97 %."""

SHORTEST_AT_KNEE, GROWTH = 6.0, 24.0
"""At the knee a confirmation takes about 6 times the shortest run that decides, and e times as long for each 1/24
of the estimate above it (simulated servers; see `benchmarks/simulated_search.py curve`)."""

TYPICAL_VIF = 50.0
TYPICAL_ELASTICITY = 20.0
"""Typical near the capacity of CPU servers; only the first rate depends on them, never a verdict."""


def first_share(trial: Trial, slo: Slo, budget_s: float) -> float:
    """Return the share of the estimate at which a first confirmation of `budget_s` is likely to decide.

    n requests estimate the capacity with a relative error of sqrt(VIF / ((1 - quantile) n s^2)), with VIF the
    inflation of the variance by bursts and s the elasticity of the violations to the rate (binomial variance over
    the slope in ln(rate)). Two such errors below the estimate, bursts are short and violations rare.
    """
    rate_per_s = trial.rate_at_limit_per_s or 0.0
    strictest = max(limit.quantile for limit in slo.limits)
    error = math.sqrt(TYPICAL_VIF / ((1 - strictest) * max(1.0, rate_per_s * budget_s))) / TYPICAL_ELASTICITY
    return max(LAST_RESORT_SHARE, min(_share_worth_its_seconds(rate_per_s, slo), FIRST_SHARE - 2 * error))


def _share_worth_its_seconds(rate_per_s: float, slo: Slo) -> float:
    if not rate_per_s > 0:
        return KNEE_SHARE
    each = confidence_of_each(confidence_of_a_run(slo.confidence), len(slo.limits))
    at_knee_s = SHORTEST_AT_KNEE * max(shortest_s(limit, rate_per_s, each) for limit in slo.limits)
    return min(CLOSEST_SHARE, KNEE_SHARE + max(0.0, math.log(WORTH_S / at_knee_s)) / GROWTH)
