"""The context of a trial: bench, SLO, time budget, seed, workload and events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.measurement.cpu_contention import none_if_not_watched
from search.labels import memory_text
from search.records.slo import Slo
from search.records.trial import WhyRecord
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
    def best_per_s(self) -> float | None:
        """Return the capacity of the best trial so far, which a new one has to beat; None if there is none."""

    def seed_of(self, number: int, run: int) -> int:
        """Return the seed of a load run of a trial, both counted from 0."""
        return self.seed + 104_729 * (1 + number) + 7919 * run

    def observe(self, measured: Callable[[], Trial | None], why: WhyRecord) -> Trial | None:
        """Return the trial from `measured` with its reason, the CPU contention meanwhile and its peak memory.

        If that is over the limit, the trial is infeasible.
        """
        before = self.bench.spent.contention
        trial = measured()
        if trial is None:
            return None
        seen = none_if_not_watched(self.bench.spent.contention - before)
        trial = trial.changed(why=why, contention=seen, memory_bytes=self.bench.memory_bytes(trial.served))
        most = self.slo.max_memory_bytes
        if trial.state == "failed" or most is None or not trial.over_memory(most):
            return trial
        reason = f"the server took {memory_text(trial.memory_bytes or 0)}, over the limit of {memory_text(most)}"
        return trial.changed(state="infeasible", reason=reason, rate_at_limit_per_s=0.0)
