"""Detect changes of the machine's speed during a search, and subtract them from estimates.

A lasting change: a trial is far from its prediction, and two new profiles of its kind have moved by the same
factor. If they also differ from each other, the speed goes up and down, and to start again would gain nothing.

Going up and down: a verified trial gives the ratio of execution times during its run to those of the profile. On
a steady machine these ratios differ only by the simulator's errors. If they differ by more, the best trial is
the one that ran while the machine was fastest, and the machine does not stay that fast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from search.records.trial import ReplayRecord
from search.simulator.service_times import ServiceCurve
from search.simulator.surrogate import Predicted
from search.trials.trial import Trial

SUSPICIOUS, SUSPICIOUS_UNSEEN = 0.2, 0.5
"""Thresholds on |ln(measured rate / predicted rate)|. Above them the kind is profiled again: the first applies if
others of the kind were measured before, the second if none was."""

CHANGED, SETTLED = 0.2, 0.1
"""Thresholds on |ln(slowdown)|. Above 0.2 the machine has changed speed; two new profiles within 0.1 of each other
mean that it has settled."""

CHECKS = 2
"""A run profiles again at most twice, and starts again at most once."""

_SIZES = 9


def is_suspicious(trial: Trial, prediction: Predicted, *, has_measurements: bool) -> bool:
    """True if a trial is far from its prediction: no rate meets the SLO, or a very different one does.

    Failed trials and trials with only a bound of the rate are never suspicious.
    """
    if trial.state == "infeasible":
        return True
    low, high = trial.rate_low_per_s, trial.rate_high_per_s
    if trial.state != "complete" or not low or not high:
        return False
    most = SUSPICIOUS if has_measurements else SUSPICIOUS_UNSEEN
    return abs(math.log(math.sqrt(low * high) / prediction.rate_per_s)) > most


def slowdown_between(before: ServiceCurve, now: ServiceCurve) -> float:
    """Return the factor on execution times: the median over the batch sizes that both curves (nearly) cover."""
    least, most = max(before.sizes[0], now.sizes[0]), min(before.sizes[-1], now.sizes[-1])
    sizes = np.geomspace(min(least, most), max(least, most), _SIZES)
    return float(np.median(now.at(sizes) / before.at(sizes)))


STEADY, TYPICAL = 0.06, 0.04
"""Standard deviations of ln(slowdown). Up to 0.06 a machine counts as steady: thirty steady simulated servers had
0.00 to 0.058. Above it, 0.04 of it is attributed to errors of the simulator: the median on GPUs."""

LEAST_TRIALS = 3
LONGER_S = 15.0
"""On a machine with unstable speed a confirmation lasts at least 15 s, so that it covers slow phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedVariation:
    """Mean and standard deviation of ln(slowdown) over the trials of a run; both 0 if there are too few."""

    middle: float = 0.0
    spread: float = 0.0

    @property
    def excess(self) -> float:
        """The standard deviation of ln(speed) that comes from the machine; 0 if it is steady."""
        return 0.0 if self.spread <= STEADY else math.sqrt(self.spread**2 - TYPICAL**2)

    def estimate(self, trial: Trial) -> float:
        """Return the trial's capacity at the machine's mean speed. The trial must have a capacity."""
        assert trial.rate_at_limit_per_s is not None
        if trial.replay is None or not self.excess:
            return trial.rate_at_limit_per_s
        faster = self.middle - math.log(trial.replay.slowdown)
        return trial.rate_at_limit_per_s * math.exp(-faster * (self.excess / self.spread) ** 2)

    @property
    def margin(self) -> float:
        """The factor on a certified rate, so that it is met while the machine is slower than its mean."""
        return math.exp(-self.excess)

    @property
    def text(self) -> str | None:
        """The sentence for users; None if the machine is steady."""
        return f"the machine's speed went up and down by {100 * self.excess:.0f} %" if self.excess else None


def speed_variation_of(trials: Iterable[Trial]) -> SpeedVariation:
    """Return how much the machine's speed varied between the replayed trials.

    GPU engines are skipped: GPU clocks are stable, and their slowdown mostly reflects copy and Python overhead,
    which grows with load and differs per engine.
    """
    return variation_of(trial.replay for trial in trials if trial.served.engine.device == "cpu")


def variation_of(replays: Iterable[ReplayRecord | None]) -> SpeedVariation:
    """Return how much the slowdowns of the replays vary; None stands for a trial without a replay."""
    logarithms = [math.log(replay.slowdown) for replay in replays if replay is not None]
    if len(logarithms) < LEAST_TRIALS:
        return SpeedVariation()
    return SpeedVariation(middle=statistics.fmean(logarithms), spread=statistics.stdev(logarithms))
