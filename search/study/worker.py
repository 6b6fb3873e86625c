"""A worker: claim points of a search's queue, measure them on its own bench, and report the trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UserError
from model_repo.spec import ServingConfig
from search.labels import knobs_text
from search.records.run_files import TRIALS_FILE, append_line
from search.records.slo import Slo
from search.simulator.ensemble_surrogate import new_surrogate
from search.simulator.service_times_file import curves_from_text
from search.space import SearchSpace, knobs_of
from search.study.pool import (
    CLOSED,
    JOB,
    POLL_S,
    PROFILE,
    RECORD,
    TASK,
    WORKER_PREFIX,
    TaskRecord,
    queue_of,
    waiting,
)
from search.trials import events
from search.trials.bench import Bench
from search.trials.capacity_trial import run_capacity_or_rate_trial
from search.trials.context import Budget, TrialContext
from search.trials.objective import COST, Objective
from search.trials.predicted_trial import run_predicted_trial
from search.trials.trial import Trial
from search.workload import Workload

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from search.study.patient_storage import PatientStorage


CLOSED_IS_ASKED_S = 3.0


def join(
    storage: PatientStorage, study: str, *, idle_s: float, on_event: events.OnEvent, stop: Callable[[], bool]
) -> Study | None:
    """Return the queue of a search's study when it has a job: workers may start before their coordinator.

    None if `stop` is true before. Raises UserError if there is none after `idle_s`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    on_event(events.Note(text=f"Looking for the study {study}."))
    deadline = time.monotonic() + idle_s
    while not stop():
        with suppress(KeyError):
            queue = optuna.load_study(study_name=queue_of(study), storage=storage)
            if JOB in queue.user_attrs:
                return queue
        if time.monotonic() > deadline:
            raise UserError(
                f"There is no study {study} in the storage after {idle_s:.0f} s.",
                "Start optimize with the same --storage; it prints the study's name.",
            )
        time.sleep(POLL_S)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(TrialContext):
    """The context of a task: the budget of the search, and the rate to beat."""

    task: TaskRecord
    objective: Objective = COST

    def best_per_s(self) -> float | None:
        """Return the best capacity when the task was made."""
        return self.task.best_per_s


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker of a queue; `run` once. Finished trials are also written to `directory`."""

    name: str
    hardware: str
    queue: Study
    storage: PatientStorage
    space: SearchSpace
    bench: Bench
    slo: Slo
    seed: int
    directory: Path
    idle_s: float
    objective: Objective = COST
    workload: Workload = field(default_factory=Workload)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False
    _look_at_s: float = 0.0
    _closed: bool = False

    def run(self) -> int:
        """Measure until the study is closed, `stop` is true, or there was no task for `idle_s`.

        Returns the number of finished trials.
        """
        self.queue.set_user_attr(WORKER_PREFIX + self.name, self.hardware)
        finished, idle_since = 0, time.monotonic()
        while not self._ended():
            claimed = self._claim()
            if claimed is not None:
                finished += self._measure(claimed)
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self.idle_s:
                text = f"Nothing was asked of this worker for {self.idle_s:.0f} s, so it leaves."
                self.on_event(events.Note(text=text, warning=True))
                break
            else:
                time.sleep(POLL_S)
        self.queue.set_user_attr(WORKER_PREFIX + self.name, None)
        return finished

    def _ended(self) -> bool:
        """True if the worker has to stop. Reads the study only every few seconds, as it is called under load."""
        if time.monotonic() >= self._look_at_s:
            self._closed = bool(self.queue.user_attrs.get(CLOSED))
            self._look_at_s = time.monotonic() + CLOSED_IS_ASKED_S
        return self._closed or self.stop()

    def _claim(self) -> FrozenTrial | None:
        """Claim and return the first queued point that this machine can serve.

        `study.ask` would take any, and a new one if none is queued (ADR 6).
        """
        for queued in waiting(self.queue):
            # This machine may lack the engine, or the cores for so many threads.
            fits = TASK in queued.user_attrs and self.space.has(queued.params)
            if fits and self.storage.claim(self.queue, queued.number):
                return queued
        return None

    def _measure(self, claimed: FrozenTrial) -> bool:
        """Measure a claimed point; False if it was not finished: without heartbeats, another worker gets it."""
        from optuna.storages._heartbeat import get_heartbeat_thread

        config = self.space.config(claimed.params)
        self.on_event(events.TrialStarted(number=claimed.number, knobs=knobs_text(config)))
        with get_heartbeat_thread(self.storage.id_of(self.queue, claimed.number), self.storage):
            trial = self._run_trial(config, claimed)
            if trial is None:
                return False
            trial = trial.changed(hardware=self.hardware, worker=self.name)
            self._report(claimed, trial)
        self.on_event(events.TrialEnded(trial=trial, best=None, elapsed_s=0.0, budget_s=0.0))
        return True

    def _report(self, claimed: FrozenTrial, trial: Trial) -> None:
        """Write the trial to this machine's disk, then to the queue, whose database may not be reachable.

        The result is a trial of its own, because after an outage the claimed one may count as lost.
        """
        import optuna

        record = trial.model_dump_json()
        append_line(self.directory / TRIALS_FILE, record)
        result = optuna.trial.create_trial(
            value=trial.rate_at_limit_per_s or 0.0,
            params=claimed.params,
            distributions=claimed.distributions,
            user_attrs={**claimed.user_attrs, RECORD: record},
        )
        self.queue.add_trial(result)
        self.storage.end(self.queue, claimed.number)

    def _run_trial(self, config: ServingConfig, claimed: FrozenTrial) -> Trial | None:
        task = TaskRecord.model_validate(claimed.user_attrs[TASK])
        context = TaskContext(
            bench=self.bench,
            slo=self.slo,
            budget=Budget(total_s=task.budget_s, started=time.monotonic() - task.elapsed_s),
            seed=self.seed,
            workload=self.workload,
            on_event=self.on_event,
            stop=self._ended,
            task=task,
            objective=self.objective,
        )
        surrogate = new_surrogate(self.space, slo=self.slo, seed=self.seed, workload=self.workload)
        profile = self.queue.user_attrs.get(PROFILE)
        if profile is not None:
            surrogate.curves.update(curves_from_text(profile))
        predicted = task.why.prediction if surrogate.profiled(knobs_of(config)) else None

        def measured() -> Trial | None:
            if predicted is None:
                return run_capacity_or_rate_trial(context, config, claimed.number)
            server = surrogate.server(config)
            return run_predicted_trial(context, server, config, claimed.number, predicted.rate_per_s)

        return context.observe(measured, task.why)
