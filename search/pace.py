"""Whether the machine is still as fast as when it was profiled: clocks drop, neighbours come and go.

It shows in the executions themselves, whatever the reason and on any hardware: a trial is far from its prediction,
and when its kind is profiled again, twice, both curves have moved by the same factor. Where they differ from each
other as well, the speed goes up and down, and nothing would be gained by starting anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from search.forecast import Predicted
    from search.service_time import ServiceCurve
    from search.trial import Trial

SUSPICIOUS, SUSPICIOUS_UNSEEN = 0.2, 0.5
"""Between the logarithms of a predicted rate and the measured one, what is worth a second profile: where others of
its kind had been measured before, and where none had."""

CHANGED, STEADY = 0.2, 0.1
"""Between the logarithms of execution times then and now, what two profiles of a steady machine do not differ by;
and up to what two in a row, after a change, tell of a machine that is steady again."""

CHECKS = 2
"""How often a run looks; it starts anew once at the most."""

_SIZES = 9


def is_suspicious(trial: Trial, prediction: Predicted, *, seen_before: bool) -> bool:
    """Whether a trial is far from its prediction: no rate keeps the limit, or quite another one does.

    Failed trials and mere bounds of the rate tell nothing.
    """
    if trial.state == "infeasible":
        return True
    low, high = trial.rate_low_per_s, trial.rate_high_per_s
    if trial.state != "complete" or not low or not high:
        return False
    most = SUSPICIOUS if seen_before else SUSPICIOUS_UNSEEN
    return abs(math.log(math.sqrt(low * high) / prediction.rate_per_s)) > most


def slowdown_between(before: ServiceCurve, now: ServiceCurve) -> float:
    """How many times as long executions take now: the median over batch sizes that both know, or nearly."""
    least, most = max(before.sizes[0], now.sizes[0]), min(before.sizes[-1], now.sizes[-1])
    sizes = np.geomspace(min(least, most), max(least, most), _SIZES)
    return float(np.median(now.at(sizes) / before.at(sizes)))
