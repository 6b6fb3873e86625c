"""A worker: claim points of a shared study, measure them on its own bench, and report the trials."""

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
from search.records.line_files import append_line
from search.records.run_files import TRIALS_FILE
from search.records.slo import Slo
from search.simulator.server import SimulatedServer
from search.simulator.service_times_file import curves_from_text
from search.simulator.surrogate import Predicted, Surrogate
from search.space import SearchSpace, knobs_of
from search.study.pool import CLOSED, JOB, PROFILE, WORKER_PREFIX, TaskRecord
from search.study.storage import Storage, beat_once, hand_on
from search.study.store import RECORD, TASK, frozen_trial
from search.trials import events
from search.trials.bench import Bench
from search.trials.budget import Budget
from search.trials.context import TrialContext
from search.trials.fixed_rate_trial import run_capacity_or_rate_trial
from search.trials.objective import COST, Objective
from search.trials.predicted_trial import run_predicted_trial
from search.trials.trial import Trial
from search.workload import Workload

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


log = logging.getLogger("tritune.worker")

POLL_S = 0.5
LONGEST_POLL_S = 1.0
CLOSED_IS_ASKED_S = 3.0
IDLE_S = 600.0
"""A worker leaves after 600 s without a task: its coordinator may have died."""

WORKER = "worker"
"""User attribute of a trial: the name of its worker."""


def join(
    storage: Storage, name: str, *, idle_s: float, on_event: events.OnEvent, stop: Callable[[], bool]
) -> optuna.Study | None:
    """Return the study of that name when it has a job: workers may start before their coordinator.

    None if `stop` is true before. Raises UserError if there is none after `idle_s`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    on_event(events.Note(text=f"Looking for the study {name}."))
    deadline = time.monotonic() + idle_s
    while not stop():
        with contextlib.suppress(KeyError):
            study = optuna.load_study(study_name=name, storage=storage.patient)
            if JOB in study.user_attrs:
                return study
        if time.monotonic() > deadline:
            raise UserError(
                f"There is no study {name} in the storage after {idle_s:.0f} s.",
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
    """One worker of a study; `run` once. Finished trials are also written to `directory`."""

    name: str
    hardware: str
    study: optuna.Study
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
        self.study.set_user_attr(WORKER_PREFIX + self.name, self.hardware)
        try:
            return self._work()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Leave the study, without waiting for a database that is not reachable."""
        with contextlib.suppress(Exception):
            study_id = self.storage.direct.get_study_id_from_name(self.study.study_name)
            self.storage.direct.set_study_user_attr(study_id, WORKER_PREFIX + self.name, None)

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
            self._closed = bool(self.study.user_attrs.get(CLOSED))
            self._asked_at = time.monotonic()
        return self._closed or self.stop()

    def _claim(self) -> FrozenTrial | None:
        """Claim and return the first queued point that this machine can serve.

        `study.ask` would take any, and a new one if none is queued (ADR 6).
        """
        import optuna

        for queued in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            # This machine may lack the engine, or the cores for so many threads.
            if TASK in queued.user_attrs and self.space.has(queued.params):
                # Before the claim: if this worker dies right after it, the missing heartbeat is noticed.
                beat_once(self.storage, self.storage.id_of(self.study, queued.number))
                trial_id = self.storage.claim(self.study, queued.number)
                if trial_id is not None:
                    self.storage.patient.set_trial_user_attr(trial_id, WORKER, self.name)
                    return queued
        return None

    def _measure(self, claimed: FrozenTrial) -> bool:
        """Measure a claimed point; False if it was not finished and goes back into the queue."""
        config = self.space.config(claimed.params)
        self.on_event(events.TrialStarted(number=claimed.number, knobs=knobs_text(config)))
        try:
            with beating(self.storage, self.storage.id_of(self.study, claimed.number)):
                trial = self._run_trial(config, claimed)
                if trial is not None:
                    trial = trial.changed(hardware=self.hardware, worker=self.name)
                    self._report(claimed, trial)
        except BaseException:
            hand_on(self.study, self.storage, claimed.number)
            raise
        if trial is None:
            hand_on(self.study, self.storage, claimed.number)
            return False
        self.on_event(events.TrialEnded(trial=trial, best=None, elapsed_s=0.0, budget_s=0.0))
        return True

    def _report(self, claimed: FrozenTrial, trial: Trial) -> None:
        """Write the trial to this machine's disk, then to the study, whose database may not be reachable.

        After an outage the claimed trial may count as lost: the result is then added as a trial of its own.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        record = trial.model_dump_json()
        append_line(self.directory / TRIALS_FILE, record)
        result = frozen_trial(trial, self.space, self.objective, {TASK: claimed.user_attrs[TASK], RECORD: record})
        storage, trial_id = self.storage.patient, self.storage.id_of(self.study, claimed.number)
        try:
            for name, value in result.user_attrs.items():
                storage.set_trial_user_attr(trial_id, name, value)
            for step, value in result.intermediate_values.items():
                storage.set_trial_intermediate_value(trial_id, step, value)
            storage.set_trial_state_values(trial_id, state=result.state, values=result.values)
        except UpdateFinishedTrialError:
            log.warning("trial %d was given to another worker meanwhile", claimed.number)
            self.study.add_trial(result)

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
        predicted, server = task.why.prediction, self._simulated(config)
        if predicted is not None and server is not None:
            prediction = Predicted(
                knobs=knobs_of(config),
                rate_per_s=predicted.rate_per_s,
                sd=predicted.sd,
                simulated_per_s=predicted.simulated_per_s,
            )
            trial = context.with_contention(
                lambda: run_predicted_trial(context, server, config, claimed.number, prediction)
            )
        else:
            trial = context.with_contention(lambda: run_capacity_or_rate_trial(context, config, claimed.number))
        return None if trial is None else context.enforce_memory_limit(trial.changed(why=task.why))

    def _simulated(self, config: ServingConfig) -> SimulatedServer | None:
        """Return the simulated configuration from the coordinator's profile; None if the profile lacks it."""
        surrogate = Surrogate(space=self.space, slo=self.slo, seed=self.seed, workload=self.workload)
        profile = self.study.user_attrs.get(PROFILE)
        if profile is not None:
            surrogate.curves.update(curves_from_text(profile))
        return surrogate.server(config) if surrogate.profiled(knobs_of(config)) else None


@contextmanager
def beating(storage: Storage, trial_id: int) -> Iterator[None]:
    """Until the block ends, send heartbeats that the trial's worker is alive."""
    done = threading.Event()

    def beat() -> None:
        interval_s = storage.direct.get_heartbeat_interval()
        while not done.wait(interval_s):
            beat_once(storage, trial_id)
        storage.direct.remove_session()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
