"""Compare configurations that meet the SLO: by cost, by latency at a rate, or by energy per inference."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadgen.errors import BadInput
from loadgen.records.formats import format_dollars, format_ms
from search.cost.cost import JOULES_PER_KWH, energy_kwh_per_million_inferences
from search.records.recommendation import RecommendationRecord
from search.records.slo import ObjectiveRecord
from search.records.trial import MeasurementRecord
from search.simulator.surrogate import Kind, Predicted, Surrogate
from search.space import knobs_of
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

WORTH = 1.015
"""A latency or an energy is worth a trial if it may be more than 1.5 % below the best verified one."""

SPARING = 0.25
"""A service class can only take the least energy if its predicted rate is at least 25 % of the best rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """What is known when the next trial is chosen: all predictions, the trials, and the best of these.

    `by_gain` has the predictions whose rate may be higher by as much as a trial is worth, the best first.
    """

    surrogate: Surrogate
    trials: Sequence[Trial]
    best: Trial | None
    by_gain: Iterator[Predicted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(ABC):
    """The criterion that decides between configurations that meet the SLO; `OBJECTIVES` has a class for each.

    `quantile` is that of the first limit. Raises BadInput without a rate that the objective needs.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    """The name of `worth` in Optuna, which maximizes it."""
    best_by: ClassVar[str]
    """The predicate of the sentence about the winner."""
    by_rate: ClassVar[bool] = False
    """True if a higher rate is better in any case."""
    needs: ClassVar[Collection[str]] = ()
    """What must be known: the `rate` at which configurations are compared, or the `power` of a GPU."""

    rate_per_s: float | None = None
    quantile: float = 0.99

    def __post_init__(self) -> None:
        if "rate" in self.needs and self.rate_per_s is None:
            raise BadInput(
                f"--objective {self.name} needs a rate at which configurations are compared.",
                "Add --rate PER_S, the traffic of one replica.",
            )

    @property
    def record(self) -> ObjectiveRecord:
        """What a run's files say of it."""
        return ObjectiveRecord(name=self.name, rate_per_s=self.rate_per_s)

    @abstractmethod
    def rank(self, known: Prospects) -> Iterator[Predicted]:
        """Yield the predictions that are worth a trial, the most promising first."""

    @abstractmethod
    def worth(self, trial: Trial) -> float | None:
        """Return the value of a trial by its measurements, more is better; None if it is no candidate."""

    def certified_worth(self, trial: Trial) -> float | None:
        """Return the value of a trial by its certificate; None without one."""
        return None if trial.certificate is None else self.worth(trial)

    def optuna_value(self, trial: Trial) -> float | None:
        """Return the value for Optuna, also of rates that cannot win; None if nothing comparable was measured."""
        return self.worth(trial)

    def best_first(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the candidates, the best first."""
        worth = [(worth, trial) for trial in trials if (worth := self.worth(trial)) is not None]
        return [trial for _, trial in sorted(worth, key=lambda pair: -pair[0])]

    def check(self, trial: Trial) -> None:
        """Raise BadInput if power is needed and a complete trial has none."""
        if "power" in self.needs and trial.state == "complete" and self.worth(trial) is None:
            raise BadInput(
                f"--objective {self.name}: the driver of this machine's GPU does not report its power.",
                "Leave --objective out for the cheapest configuration.",
            )

    @staticmethod
    def figures(found: RecommendationRecord) -> tuple[str, str | None, str]:
        """Return the figure of the recommendation, that of Triton's default if known, and their unit."""
        cost, usd = found.cost, found.cost.baseline_cost_per_million_inferences_usd
        other = None if usd is None else format_dollars(usd)
        return format_dollars(cost.cost_per_million_inferences_usd), other, " per million inferences"


class Cost(Objective):
    """The highest capacity, which on one machine is the cheapest and takes the fewest replicas."""

    name, metric, best_by = "cost", "rate_at_limit_per_s", "sustained the highest rate"
    by_rate = True

    def rank(self, known: Prospects) -> Iterator[Predicted]:
        """Yield those whose rate may be higher."""
        return known.by_gain

    def worth(self, trial: Trial) -> float | None:
        """Return the capacity."""
        return trial.rate_at_limit_per_s or None if trial.state == "complete" else None

    def certified_worth(self, trial: Trial) -> float | None:
        """Return the certified rate."""
        return None if trial.certificate is None else trial.certificate.rate_per_s

    def optuna_value(self, trial: Trial) -> float | None:
        """Return the capacity, also of a trial that met no limit."""
        return None if trial.state == "failed" else trial.rate_at_limit_per_s or 0.0


class Latency(Objective):
    """The lowest latency at `quantile` while one replica serves `rate_per_s`."""

    name, metric, best_by = "latency", "negative_latency_ms", "answered soonest"
    needs = ("rate",)

    def rank(self, known: Prospects) -> Iterator[Predicted]:
        """Yield predictions that may meet the SLO at the rate with a lower latency than the best.

        If no prediction meets it there, yield the nearest one, so that a rate within reach can be reported.
        """
        assert self.rate_per_s is not None
        able = [one for one in known.surrogate.best_first() if one.at_best >= self.rate_per_s]
        latencies = [(known.surrogate.latency_ms(one, self.rate_per_s), one) for one in able]
        most_ms = _most(self, known.best)
        for latency_ms, one in sorted(latencies, key=lambda pair: pair[0]):
            if latency_ms * math.exp(-one.sd) < most_ms:
                yield one
        if not able and not known.trials[1:]:
            yield from known.surrogate.best_first()[:1]

    def worth(self, trial: Trial) -> float | None:
        """Return the negative latency if it was measured at the rate."""
        seen = trial.measurement
        if trial.state != "complete" or seen is None or self.rate_per_s is None:
            return None
        latency_ms = seen.latency_at_ms(self.quantile)
        near = abs(seen.rate_per_s / self.rate_per_s - 1) <= RATE_TOLERANCE
        return -latency_ms if near and latency_ms is not None else None

    def certified_worth(self, trial: Trial) -> float | None:
        """Return the negative latency of the certificate's load."""
        return None if trial.certificate is None else -trial.certificate.first.latency_ms

    @staticmethod
    def figures(found: RecommendationRecord) -> tuple[str, str | None, str]:
        """Return the latencies that were certified."""
        seen = [None if trial is None else trial.certificate for trial in (found.winner, found.baseline)]
        mine, other = (None if one is None else f"{format_ms(one.first.latency_ms)} ms" for one in seen)
        return str(mine), other, f" at {found.slo.first.name}"


class Energy(Objective):
    """The least GPU energy per inference."""

    name, metric, best_by = "energy", "negative_kwh_per_million", "took the least energy per inference"
    needs = ("power",)

    def rank(self, known: Prospects) -> Iterator[Predicted]:
        """Yield the fastest of each group whose power is not known, then those that may take the least energy.

        All configurations of a group are assumed to need the lowest power that was measured for it.
        """

        def group_of(knobs: Mapping[str, int | str]) -> tuple[Kind, int]:
            return known.surrogate.kind_of(knobs), int(knobs["instance_count"])

        power: dict[tuple[Kind, int], float] = {}
        for trial in known.trials:
            worth = self.worth(trial)
            if worth is not None and trial.measurement is not None:
                group = group_of(knobs_of(trial.served))
                power_w = -worth * trial.measurement.achieved_rate_per_s
                power[group] = min(power_w, power.get(group, power_w))
        predictions = known.surrogate.best_first()
        groups = [(group_of(one.knobs), one) for one in predictions]
        fastest: dict[tuple[Kind, int], Predicted] = {}
        for group, one in groups:
            if one.at_best >= SPARING * predictions[0].at_best:
                fastest.setdefault(group, one)
        yield from (one for group, one in fastest.items() if group not in power)
        energies = [(power[group] / one.at_best, one) for group, one in groups if group in power]
        most = _most(self, known.best)
        yield from (one for energy, one in sorted(energies, key=lambda pair: pair[0]) if energy < most)

    def worth(self, trial: Trial) -> float | None:
        """Return the negative energy."""
        if trial.state != "complete" or trial.measurement is None:
            return None
        value = energy_kwh_of(trial.measurement)
        return None if value is None else -value

    @staticmethod
    def figures(found: RecommendationRecord) -> tuple[str, str | None, str]:
        """Return the energies, or money if power was not measured."""
        cost = found.cost
        energies = cost.energy_kwh_per_million_inferences, cost.baseline_energy_kwh_per_million_inferences
        mine, other = (None if one is None else f"{one:.3g} kWh" for one in energies)
        if mine is None:
            return Objective.figures(found)
        return mine, other, " per million inferences, of the GPUs alone"


def _most(objective: Objective, best: Trial | None) -> float:
    """Return the latency or energy that a candidate has to stay below."""
    worth = None if best is None else objective.worth(best)
    return math.inf if worth is None else -worth / WORTH


OBJECTIVES: dict[str, type[Objective]] = {one.name: one for one in (Cost, Latency, Energy)}
"""The objectives by the names in `search.choices`."""

COST = Cost()
