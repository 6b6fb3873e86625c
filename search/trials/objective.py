"""Compare configurations that meet the SLO: by cost, by latency at a rate, or by energy per inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.errors import UserError
from search.choices import ObjectiveName
from search.cost.cost import JOULES_PER_KWH, energy_kwh_per_million_inferences
from search.records.slo import ObjectiveRecord
from search.records.trial import MeasurementRecord
from search.trials.trial import Trial


def energy_kwh_of(seen: MeasurementRecord, *, rows_per_request: int = 1) -> float | None:
    """Return kWh of the GPUs per million inferences at the achieved rate; None if the power is not known.

    Every batch item of a request is an inference.
    """
    if seen.gpu is None:
        return None
    if seen.gpu.energy_per_1000_inferences_j is not None:
        return seen.gpu.energy_per_1000_inferences_j * 1000 / JOULES_PER_KWH
    if seen.gpu.power_w is None:
        return None
    return energy_kwh_per_million_inferences(seen.gpu.power_w, rows_per_request * seen.achieved_rate_per_s)


RATE_TOLERANCE = 0.01
"""A measurement counts for a rate if its own rate differs by at most 1 %."""


class PowerUnknown(UserError):
    """The objective is energy, and the machine does not report its power."""

    def __init__(self) -> None:
        super().__init__(
            "--objective energy: the driver of this machine's GPU does not report its power.",
            "Leave --objective out for the cheapest configuration.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The criterion that decides between configurations that meet the SLO.

    cost: the highest capacity, which on one machine is the cheapest and takes the fewest replicas. latency: the
    lowest latency at `quantile` while one replica serves `rate_per_s`. energy: the least GPU energy per inference.

    Raises ValueError for latency without a rate, and for a rate without latency.
    """

    name: ObjectiveName = "cost"
    rate_per_s: float | None = None
    quantile: float = 0.99

    def __post_init__(self) -> None:
        if (self.name == "latency") != (self.rate_per_s is not None):
            raise ValueError(f"objective {self.name} at a rate of {self.rate_per_s}: only latency has one")

    @property
    def record(self) -> ObjectiveRecord:
        """What a run's files say of it."""
        return ObjectiveRecord(name=self.name, rate_per_s=self.rate_per_s)

    @property
    def metric(self) -> str:
        """The name of `worth` in Optuna, which maximizes it."""
        return {
            "cost": "rate_at_limit_per_s",
            "latency": "negative_latency_ms",
            "energy": "negative_kwh_per_million",
        }[self.name]

    def worth(self, trial: Trial) -> float | None:
        """Return the value of a trial by its measurements, more is better; None if it is no candidate."""
        if trial.state != "complete":
            return None
        if self.name == "cost":
            return trial.rate_at_limit_per_s or None
        return self._measured(trial)

    def optuna_value(self, trial: Trial) -> float | None:
        """Return the value for Optuna, also of rates that cannot win; None if nothing comparable was measured."""
        if self.name == "cost":
            return None if trial.state == "failed" else trial.rate_at_limit_per_s or 0.0
        return self.worth(trial)

    def certified_worth(self, trial: Trial) -> float | None:
        """Return the value of a trial by its certificate; None without one."""
        if trial.certificate is None:
            return None
        if self.name == "energy":
            return self._measured(trial)
        return trial.certificate.rate_per_s if self.name == "cost" else -trial.certificate.first.latency_ms

    def best_first(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the candidates, the best first."""
        worth = [(worth, trial) for trial in trials if (worth := self.worth(trial)) is not None]
        return [trial for _, trial in sorted(worth, key=lambda pair: -pair[0])]

    def check(self, trial: Trial) -> None:
        """Raise PowerUnknown if the objective is energy and a valid measurement has no power."""
        if self.name == "energy" and trial.state == "complete" and self._measured(trial) is None:
            raise PowerUnknown

    def _measured(self, trial: Trial) -> float | None:
        seen = trial.measurement
        if seen is None:
            return None
        if self.rate_per_s is None:
            value = energy_kwh_of(seen)
        elif abs(seen.rate_per_s / self.rate_per_s - 1) <= RATE_TOLERANCE:
            value = seen.latency_at_ms(self.quantile)
        else:
            value = None
        return None if value is None else -value


COST = Objective()
