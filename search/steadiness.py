"""How steady the machine was while trials were measured, and what that takes off an estimate.

Each verified trial tells how many times as long executions took as when they were profiled. Where the machine is
steady, these factors differ by the simulator's own errors alone. Where they differ by more, its speed goes up and
down: the best trial is one that met it at its fastest, and what it kept then it will not keep always.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from search.trial import Trial

STEADY, TYPICAL = 0.06, 0.04
"""Standard deviation of the logarithms up to which a machine counts as steady, and what of it are the simulator's
errors where it does not: on thirty simulated servers, all steady, 0.00 to 0.058; on GPUs 0.04 in the middle."""

LEAST_TRIALS = 3
LONGER_S = 15.0
"""How long a confirmation lasts at the least where the machine is not steady: its slow phases have to be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """Mean and standard deviation of ln(slowdown) over the trials of a run; both 0 where too few tell."""

    middle: float = 0.0
    spread: float = 0.0

    @property
    def excess(self) -> float:
        """The standard deviation of ln(speed) that is the machine's own; 0 where it is steady."""
        return 0.0 if self.spread <= STEADY else math.sqrt(self.spread**2 - TYPICAL**2)

    def estimate(self, trial: Trial) -> float:
        """The trial's rate at the limit at the machine's middle speed, as far as the spread is the machine's.

        The trial must have a rate.
        """
        assert trial.rate_at_limit_per_s is not None
        if trial.replay is None or not self.excess:
            return trial.rate_at_limit_per_s
        faster = self.middle - math.log(trial.replay.slowdown)
        return trial.rate_at_limit_per_s * math.exp(-faster * (self.excess / self.spread) ** 2)

    @property
    def margin(self) -> float:
        """What a promise is multiplied by, to be kept when the machine is slower than in the middle."""
        return math.exp(-self.excess)

    @property
    def text(self) -> str | None:
        """What is said of it; None of a steady machine."""
        return f"the machine's speed went up and down by {100 * self.excess:.0f} %" if self.excess else None


def steadiness_of(trials: Iterable[Trial]) -> Steadiness:
    """What the trials tell that were verified by a replay.

    Those of engines on a GPU tell nothing: a GPU's speed hardly changes, and what their executions take besides is
    copies and Python, which take longer the more requests come, and another share of each engine's.
    """
    replays = [trial.replay for trial in trials if trial.config.engine.device == "cpu"]
    logarithms = [math.log(replay.slowdown) for replay in replays if replay is not None]
    if len(logarithms) < LEAST_TRIALS:
        return Steadiness()
    return Steadiness(middle=statistics.fmean(logarithms), spread=statistics.stdev(logarithms))
