"""What makes one configuration better than another, among those that keep every limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.energy import energy_kwh_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search.records import ObjectiveName
    from search.trial import Trial

SAME_RATE = 0.01
"""A measurement counts for a rate when it was sent at no more than this share beside it."""


class PowerUnknown(Exception):
    """The least energy is asked for, and nobody says what power the machine takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is asked for.

    cost: the highest rate at the limits, which on one machine is the cheapest and takes the fewest replicas.
    latency: the lowest at `quantile` while one replica answers `rate_per_s`. energy: the GPUs', per inference.

    Raises ValueError for a latency without a rate.
    """

    name: ObjectiveName = "cost"
    rate_per_s: float | None = None
    quantile: float = 0.99

    def __post_init__(self) -> None:
        if (self.name == "latency") != (self.rate_per_s is not None):
            raise ValueError(f"objective {self.name} at a rate of {self.rate_per_s}: latency alone has one")

    @property
    def metric(self) -> str:
        """What Optuna calls `worth`, which it maximizes."""
        return {
            "cost": "rate_at_limit_per_s",
            "latency": "negative_latency_ms",
            "energy": "negative_kwh_per_million",
        }[self.name]

    def worth(self, trial: Trial) -> float | None:
        """More is better, of what was measured in the search; None for what is no candidate."""
        if trial.state != "complete":
            return None
        if self.name == "cost":
            return trial.rate_at_limit_per_s or None
        return self._measured(trial)

    def told(self, trial: Trial) -> float | None:
        """What Optuna is told; of rates also those that cannot win. None: nothing comparable was measured."""
        if self.name == "cost":
            return None if trial.state == "failed" else trial.rate_at_limit_per_s or 0.0
        return self.worth(trial)

    def certified_worth(self, trial: Trial) -> float | None:
        """The same of what was certified; None without a certificate."""
        if trial.certificate is None:
            return None
        if self.name == "energy":
            return self._measured(trial)
        return trial.certificate.rate_per_s if self.name == "cost" else -trial.certificate.p99_ms

    def best_first(self, trials: Sequence[Trial]) -> list[Trial]:
        """The candidates."""
        worth = [(worth, trial) for trial in trials if (worth := self.worth(trial)) is not None]
        return [trial for _, trial in sorted(worth, key=lambda pair: -pair[0])]

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The best candidate; None while there is none."""
        return next(iter(self.best_first(trials)), None)

    def check(self, trial: Trial) -> None:
        """Raises PowerUnknown where energy is asked for, and a good measurement says nothing of it."""
        if self.name == "energy" and trial.state == "complete" and self._measured(trial) is None:
            raise PowerUnknown("the measurements of this machine say nothing about power")

    def _measured(self, trial: Trial) -> float | None:
        seen = trial.measurement
        if seen is None:
            return None
        if self.rate_per_s is None:
            value = energy_kwh_of(seen)
        elif abs(seen.rate_per_s / self.rate_per_s - 1) <= SAME_RATE:
            value = seen.latency_at_ms(self.quantile)
        else:
            value = None
        return None if value is None else -value


COST = Objective()
