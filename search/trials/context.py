"""The context of a trial: bench, SLO, time budget, seed, workload and events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from search.records.slo import Slo
from search.trials import events
from search.trials.bench import Bench
from search.trials.budget import Budget
from search.trials.objective import Objective
from search.trials.trial import Trial
from search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext(ABC):
    """Shared by all trials of a search. `stop` is called between trials and while load is running."""

    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    workload: Workload = field(default_factory=Workload)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The objective by which trials are compared."""

    @abstractmethod
    def best(self) -> Trial | None:
        """Return the best trial so far, which a new one has to beat; None if there is none."""

    def seed_of(self, number: int, run: int) -> int:
        """Return the seed of a load run of a trial, both counted from 0."""
        return self.seed + 104_729 * (1 + number) + 7919 * run
