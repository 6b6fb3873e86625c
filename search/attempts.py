"""Trials, one after the other: asked for, measured, recorded, told; and when to stop making them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from search import events
from search.at_rate import tried_at_rate
from search.crew import Nobody
from search.demand import Demand
from search.evaluate import evaluate
from search.neighbours import made_up_for, record_of
from search.space import engine_label, knobs_of, takes_graphs
from search.tasks import TaskRecord
from search.words import knobs_text, memory_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import optuna

    from model_repo.spec import ServingConfig
    from search.bench import Bench
    from search.budget import Budget
    from search.crew import Crew
    from search.ledger import Ledger
    from search.records import Slo
    from search.space import Knobs
    from search.trial import Trial
    from search.why import WhyRecord

FAILURES_OF_ONE_ENGINE = 4
"""After so many failed trials, and no other, an engine is not tried again; half as many where it has rivals. With
CUDA graphs and without it counts as two: ONNX Runtime records none where a single operator is left to the CPU."""

_NO_MEMORY = re.compile(
    r"out.?of.?memory|bad_alloc|MemoryError|cannot allocate|failed to allocate memory|could not be allocated"
    r"|alloc_failed",
    re.IGNORECASE,
)
"""As the kernel, C++, Python, ONNX Runtime, TensorRT, CUDA and its libraries have it."""


Way = tuple[str, bool]


class SearchImpossible(Exception):
    """Trials keep failing one after the other; `reasons` are theirs."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What every way of searching has in common. `stop` is asked between trials and while load is running."""

    ledger: Ledger
    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    demand: Demand = field(default_factory=Demand)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False
    crew: Crew = field(default_factory=Nobody)

    def may_go_on(self) -> bool:
        """Whether there is time for one more trial, and nobody wants to stop.

        Where it runs out and neighbours took some of it, the budget is extended by that, once.
        """
        if self.stop():
            return False
        if not self.ledger.trials:
            return True  # the baseline is always tried
        if self._has_time():
            return True
        return made_up_for(self.bench, self.budget, self.on_event) and self._has_time()

    def _has_time(self) -> bool:
        return self.budget.trial_s() >= self._shortest_trial_s()

    def promising(self, knobs: Knobs) -> bool:
        """Not what does not work at all, nor where a trial that asks less has already taken too much memory."""
        return way_of(knobs) not in self._broken() and not any(
            self._took_too_much(trial) and _asks_at_least(knobs, trial) for trial in self.ledger.trials
        )

    def _took_too_much(self, trial: Trial) -> bool:
        if trial.state == "failed":
            return ran_out_of_memory(trial.reason)
        return trial.over_memory(self.slo.max_memory_bytes)

    def evaluated(self, config: ServingConfig, number: int, *, most_s: float = math.inf) -> Trial | None:
        """The trial without any prediction: by a search for the edge (`search.evaluate`), or at the given rate."""
        objective = self.ledger.objective
        if objective.rate_per_s is not None:
            return tried_at_rate(self, config, number, rate_per_s=objective.rate_per_s)
        return self.edge(config, number, most_s=most_s)

    def edge(self, config: ServingConfig, number: int, *, most_s: float = math.inf) -> Trial | None:
        """The trial by a search for the edge, whatever is asked for, in at most so many seconds of load."""
        return evaluate(
            config,
            self.bench,
            number=number,
            slo=self.slo,
            budget_s=min(self.budget.first_trial_s(), most_s),
            incumbent=self.ledger.best() if self.ledger.objective.name == "cost" else None,
            seed=self.seed,
            on_event=self.on_event,
            stop=self.stop,
        )

    def make(
        self, asked: optuna.trial.Trial, measured: Callable[[ServingConfig, int], Trial | None], why: WhyRecord
    ) -> Trial | None:
        """The asked trial as `measured` finds it, recorded; None when it was stopped before anything was learnt.

        `why` is kept with it, with what the ledger knows of the run. Raises SearchImpossible when nothing works,
        PowerUnknown where energy is asked for and not measured.
        """
        number = self.ledger.next_number()
        config = self.ledger.space.config(asked.params)
        why = self.ledger.as_of_now(why, asked.params)
        self.on_event(events.TrialStarted(number=number, knobs=knobs_text(config)))
        try:
            trial = self.watched(lambda: measured(config, number))
        except BaseException:
            self.ledger.abandon(asked)
            raise
        if trial is None:
            self.ledger.abandon(asked)
            return None
        trial = self.within_memory(replace(trial, why=why, pace=self.ledger.pace))
        return self._announced(self.ledger.record(asked, trial))

    def watched(self, measured: Callable[[], Trial | None]) -> Trial | None:
        """The trial with what others took of the processors while it was measured."""
        before = self.bench.spent.neighbours
        trial = measured()
        seen = record_of(self.bench.spent.neighbours - before)
        return None if trial is None else replace(trial, neighbours=seen)

    def gathered(self) -> list[Trial]:
        """What the crew has finished since, recorded. Raises SearchImpossible when nothing works."""
        gathered = self.crew.gather()
        return [self._announced(self.ledger.keep(replace(trial, pace=self.ledger.pace))) for trial in gathered]

    def offer(self, points: Iterable[tuple[Knobs, WhyRecord]]) -> None:
        """Let the crew measure the first of these that are untried, as far as it has room for them."""
        room, best = self.crew.room(), self.ledger.best()
        for knobs, why in points:
            if room <= 0:
                return
            if not self.ledger.untried(knobs) or not self.promising(knobs):
                continue
            room -= 1
            task = TaskRecord(
                why=self.ledger.as_of_now(why, knobs),
                best_per_s=None if best is None else best.rate_at_limit_per_s,
                elapsed_s=self.budget.elapsed_s(),
                budget_s=self.budget.total_s,
            )
            self.crew.offer(knobs, task)

    def _announced(self, trial: Trial) -> Trial:
        self.on_event(
            events.TrialEnded(
                trial=trial,
                best=self.ledger.best(),
                elapsed_s=self.budget.elapsed_s(),
                budget_s=self.budget.total_s,
            )
        )
        self._give_up_when_nothing_works()
        self.ledger.objective.check(trial)
        return trial

    def within_memory(self, trial: Trial) -> Trial:
        """The trial with the memory that it took; infeasible where that is over the limit."""
        trial, most = replace(trial, memory_bytes=self.bench.memory_bytes(trial.config)), self.slo.max_memory_bytes
        if trial.state == "failed" or most is None or not trial.over_memory(most):
            return trial
        reason = f"the server took {memory_text(trial.memory_bytes or 0)}, over the limit of {memory_text(most)}"
        return replace(trial, state="infeasible", reason=reason, rate_at_limit_per_s=0.0)

    def _shortest_trial_s(self) -> float:
        """What even a pruned trial takes: loading, as seen so far, and a moment of load."""
        loadings = [trial.loading_s for trial in self.ledger.trials]
        return sum(loadings) / len(loadings) + 2.0

    def _give_up_when_nothing_works(self) -> None:
        if self._broken() == self._ways():
            raise SearchImpossible([trial.reason for trial in self.ledger.trials if trial.state == "failed"])

    def _broken(self) -> set[Way]:
        """Those whose every trial failed, and often enough."""
        ways = self._ways()
        enough = FAILURES_OF_ONE_ENGINE if len(ways) == 1 else FAILURES_OF_ONE_ENGINE // 2
        states: dict[Way, list[str]] = {way: [] for way in ways}
        for trial in self.ledger.trials:
            states.setdefault(way_of(knobs_of(trial.config)), []).append(trial.state)
        return {way for way, seen in states.items() if len(seen) >= enough and set(seen) == {"failed"}}

    def _ways(self) -> set[Way]:
        engines = self.ledger.space.engines
        with_graphs = {(engine_label(engine), True) for engine in engines if takes_graphs(engine)}
        return {(engine_label(engine), False) for engine in engines} | with_graphs


def way_of(knobs: Mapping[str, int | str]) -> Way:
    """The engine of a point, and whether it has CUDA graphs: what may fail while other ways work."""
    return str(knobs["engine"]), bool(knobs.get("cuda_graphs", 0))


def _asks_at_least(knobs: Knobs, failed: Trial) -> bool:
    other = knobs_of(failed.config)
    return knobs["engine"] == other["engine"] and all(
        int(knobs[name]) >= int(other[name]) for name in ("max_batch_size", "instance_count")
    )


def ran_out_of_memory(reason: str) -> bool:
    """Whether a failure's reason is that there was not enough memory, of the machine or of its GPU."""
    return _NO_MEMORY.search(reason) is not None
