"""A worker: claim points of a search's queue, measure them on its own bench, and report the trials."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from search.study.pool import CLOSED, JOB, PROFILE, RECORD, TASK, WORKER_PREFIX, TaskRecord, queue_of
from search.study.storage import Storage, unless_away
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


log = logging.getLogger("tritune.worker")

POLL_S = 0.5
LONGEST_POLL_S = 1.0
CLOSED_IS_ASKED_S = 3.0
IDLE_S = 600.0
"""A worker leaves after 600 s without a task: its coordinator may have died."""

WORKER = "worker"
"""User attribute of a trial in the queue: the name of its worker."""

MEASURED = 0.0
"""The value of a trial in the queue that has a result; Optuna wants one."""


def join(
    storage: Storage, study: str, *, idle_s: float, on_event: events.OnEvent, stop: Callable[[], bool]
) -> Study | None:
    """Return the queue of a search's study when it has a job: workers may start before their coordinator.

    None if `stop` is true before. Raises UserError if there is none after `idle_s`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    on_event(events.Note(text=f"Looking for the study {study}."))
    deadline = time.monotonic() + idle_s
    while not stop():
        with contextlib.suppress(KeyError):
            queue = optuna.load_study(study_name=queue_of(study), storage=storage.patient)
            if JOB in queue.user_attrs:
                return queue
        if time.monotonic() > deadline:
            raise UserError(
                f"There is no study {study} in the storage after {idle_s:.0f} s.",
                "Start optimize with the same --storage; it prints the study's name.",
            )
        time.sleep(LONGEST_POLL_S)
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
    storage: Storage
    space: SearchSpace
    bench: Bench
    slo: Slo
    seed: int
    directory: Path
    objective: Objective = COST
    workload: Workload = field(default_factory=Workload)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False
    idle_s: float = IDLE_S
    _asked_at: float = field(default=-CLOSED_IS_ASKED_S)
    _closed: bool = False

    def run(self) -> int:
        """Measure until the study is closed, `stop` is true, or there was no task for `idle_s`.

        Returns the number of finished trials.
        """
        self.queue.set_user_attr(WORKER_PREFIX + self.name, self.hardware)
        try:
            return self._work()
        finally:
            with unless_away(self.storage):
                direct = self.storage.direct
                queue_id = direct.get_study_id_from_name(self.queue.study_name)
                direct.set_study_user_attr(queue_id, WORKER_PREFIX + self.name, None)

    def _work(self) -> int:
        finished, idle_since, pause_s = 0, time.monotonic(), POLL_S
        while not self._ended():
            claimed = self._claim()
            if claimed is not None:
                finished += self._measure(claimed)
                idle_since, pause_s = time.monotonic(), POLL_S
            elif time.monotonic() - idle_since > self.idle_s:
                text = f"Nothing was asked of this worker for {self.idle_s:.0f} s, so it leaves."
                self.on_event(events.Note(text=text, warning=True))
                break
            else:
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
        return finished

    def _ended(self) -> bool:
        """True if the worker has to stop. Reads the study only every few seconds, as it is called under load."""
        if not self._closed and time.monotonic() - self._asked_at > CLOSED_IS_ASKED_S:
            self._closed = bool(self.queue.user_attrs.get(CLOSED))
            self._asked_at = time.monotonic()
        return self._closed or self.stop()

    def _claim(self) -> FrozenTrial | None:
        """Claim and return the first queued point that this machine can serve.

        `study.ask` would take any, and a new one if none is queued (ADR 6).
        """
        import optuna

        for queued in self.queue.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            # This machine may lack the engine, or the cores for so many threads.
            if TASK in queued.user_attrs and self.space.has(queued.params):
                trial_id = self.storage.id_of(self.queue, queued.number)
                with unless_away(self.storage):
                    # Before the claim: if this worker dies right after it, the missing heartbeat is noticed.
                    self.storage.direct.record_heartbeat(trial_id)
                if self.storage.claim(self.queue, queued.number):
                    self.storage.patient.set_trial_user_attr(trial_id, WORKER, self.name)
                    return queued
        return None

    def _measure(self, claimed: FrozenTrial) -> bool:
        """Measure a claimed point; False if it was not finished: without heartbeats, another worker gets it."""
        config = self.space.config(claimed.params)
        self.on_event(events.TrialStarted(number=claimed.number, knobs=knobs_text(config)))
        with beating(self.storage, self.storage.id_of(self.queue, claimed.number)):
            trial = self._run_trial(config, claimed)
            if trial is None:
                return False
            trial = trial.changed(hardware=self.hardware, worker=self.name)
            self._report(claimed, trial)
        self.on_event(events.TrialEnded(trial=trial, best=None, elapsed_s=0.0, budget_s=0.0))
        return True

    def _report(self, claimed: FrozenTrial, trial: Trial) -> None:
        """Write the trial to this machine's disk, then to the queue, whose database may not be reachable.

        After an outage the claimed trial may count as lost: the result is then added as a trial of its own.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState, create_trial

        record, storage = trial.model_dump_json(), self.storage.patient
        append_line(self.directory / TRIALS_FILE, record)
        try:
            trial_id = self.storage.id_of(self.queue, claimed.number)
            storage.set_trial_user_attr(trial_id, RECORD, record)
            storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [MEASURED])
        except UpdateFinishedTrialError:
            log.warning("trial %d was given to another worker meanwhile", claimed.number)
            result = create_trial(
                value=MEASURED,
                params=claimed.params,
                distributions=claimed.distributions,
                user_attrs={**claimed.user_attrs, RECORD: record},
            )
            self.queue.add_trial(result)

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


@contextmanager
def beating(storage: Storage, trial_id: int) -> Iterator[None]:
    """Until the block ends, send heartbeats that the trial's worker is alive."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(storage.direct.get_heartbeat_interval()):
            with unless_away(storage):
                storage.direct.record_heartbeat(trial_id)
        storage.direct.remove_session()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
