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

from model_repo.spec import ServingConfig
from search.labels import knobs_text
from search.records.line_files import append_line
from search.records.run_files import TRIALS_FILE
from search.records.slo import Slo
from search.simulator.server import SimulatedServer
from search.simulator.service_times_file import curves_from_text
from search.simulator.surrogate import Predicted, Surrogate
from search.space import SearchSpace, knobs_of
from search.study.optuna_queue import SharedQueue
from search.study.storage import Storage, beat_once
from search.study.store import TrialStore, attributes_of
from search.study.tasks import (
    CLOSED,
    ORDER,
    PROFILE,
    RECORD,
    WORKER,
    WORKER_PREFIX,
    TaskRecord,
    WorkerJob,
    reading,
    task_of,
)
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.bench import Bench, Spent
from search.trials.budget import Budget
from search.trials.fixed_rate_trial import run_capacity_or_rate_trial
from search.trials.objective import COST, Objective
from search.trials.predicted_trial import run_predicted_trial
from search.trials.trial import Trial, trial_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStudy:
    """A study and its job."""

    study: optuna.Study
    order: WorkerJob


def join(storage: Storage, name: str) -> JoinedStudy | None:
    """Return the study of that name; None if it has no job yet. Raises BadInput, pydantic's ValidationError."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage.patient.get_study_id_from_name(name)
    except KeyError:
        return None
    with reading(name):
        study = optuna.load_study(study_name=name, storage=storage.patient)
        order = study.user_attrs.get(ORDER)
    return None if order is None else JoinedStudy(study=study, order=WorkerJob.model_validate(order))


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
            self._closed = bool(self._attribute(CLOSED))
            self._asked_at = time.monotonic()
        return self._closed or self.stop()

    @property
    def _queue(self) -> SharedQueue:
        return SharedQueue(study=self.study, storage=self.storage)

    def _claim(self) -> FrozenTrial | None:
        """Claim and return the first queued point that this machine can serve."""
        import optuna

        with reading(self.study.study_name):
            for frozen in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
                # This machine may lack the engine, or the cores for so many threads.
                if task_of(frozen) is not None and self.space.has(frozen.params):
                    trial_id = self._queue.id_of(frozen.number)
                    # Before the claim: if this worker dies right after it, the missing heartbeat is noticed.
                    beat_once(self.storage, trial_id)
                    if self._queue.claim(frozen.number):
                        self.storage.patient.set_trial_user_attr(trial_id, WORKER, self.name)
                        return frozen
        return None

    def _attribute(self, name: str) -> object:
        with reading(self.study.study_name):
            return self.study.user_attrs.get(name)

    def _measure(self, claimed: FrozenTrial) -> bool:
        """Measure a claimed point; False if it was not finished and goes back into the queue."""
        config = self.space.config(claimed.params)
        self.on_event(events.TrialStarted(number=claimed.number, knobs=knobs_text(config)))
        try:
            with beating(self.storage, self._queue.id_of(claimed.number)):
                trial = self._run_trial(config, claimed)
                if trial is None:
                    self._hand_on(claimed)
                    return False
                with reading(self.study.study_name):
                    self._report(claimed, trial.changed(hardware=self.hardware, worker=self.name))
        except BaseException:
            self._hand_on(claimed)
            raise
        self.on_event(events.TrialEnded(trial=trial, best=None, elapsed_s=0.0, budget_s=0.0))
        return True

    def _hand_on(self, claimed: FrozenTrial) -> None:
        with reading(self.study.study_name):
            self._queue.hand_on(claimed.number)

    def _report(self, claimed: FrozenTrial, trial: Trial) -> None:
        """Write the trial to this machine's disk, then to the study, whose database may not be reachable.

        After an outage the trial may count as lost; it is reported unless another worker was quicker.
        """
        record = trial.model_dump_json()
        append_line(self.directory / TRIALS_FILE, record)
        attributes = {name: value for name, value in attributes_of(trial).items() if name != "trial"}
        attributes[RECORD] = record
        value = self.objective.optuna_value(trial)
        if self._queue.tell(claimed.number, trial, value, attributes):
            return
        log.warning("trial %d was given to another worker meanwhile", claimed.number)
        told = [one for one in self.study.get_trials(deepcopy=False) if RECORD in one.user_attrs]
        if not any(one.params == claimed.params for one in told):
            again = self._queue.opened_again(claimed)
            beat_once(self.storage, self._queue.id_of(again))
            self._queue.tell(again, trial, value, attributes)

    def _run_trial(self, config: ServingConfig, claimed: FrozenTrial) -> Trial | None:
        task = task_of(claimed)
        assert task is not None, "claimed without a task"
        runner = self._runner(config, task)
        predicted = task.why.prediction
        server = None if predicted is None else self._simulated(config)
        if predicted is not None and server is not None:
            prediction = Predicted(
                knobs=knobs_of(config),
                rate_per_s=predicted.rate_per_s,
                sd=predicted.sd,
                simulated_per_s=predicted.simulated_per_s,
            )
            trial = runner.with_contention(
                lambda: run_predicted_trial(runner, server, config, claimed.number, prediction)
            )
        else:
            trial = runner.with_contention(lambda: run_capacity_or_rate_trial(runner, config, claimed.number))
        return None if trial is None else runner.enforce_memory_limit(trial.changed(why=task.why))

    def _simulated(self, config: ServingConfig) -> SimulatedServer | None:
        """Return the simulated configuration from the coordinator's profile; None if the profile lacks it."""
        profile = self._attribute(PROFILE)
        if not isinstance(profile, str):
            return None
        surrogate = Surrogate(space=self.space, slo=self.slo, seed=self.seed, workload=self.workload)
        try:
            surrogate.curves.update(curves_from_text(profile))
            return surrogate.server(config) if surrogate.profiled(knobs_of(config)) else None
        except ValueError as error:
            log.warning("the study's profile is not used: %s", error)
            return None

    def _runner(self, config: ServingConfig, task: TaskRecord) -> TrialRunner:
        """Return a trial runner with the budget of the search and the rate to beat."""
        best = trial_of(0, config, "complete", "", spent=Spent(), rate_at_limit_per_s=task.best_per_s)
        return TrialRunner(
            store=TrialStore(
                space=self.space,
                path=self.directory / TRIALS_FILE,
                study=self.study,
                storage=self.storage,
                objective=self.objective,
                trials=[best] if task.best_per_s else [],
            ),
            bench=self.bench,
            slo=self.slo,
            budget=Budget(total_s=task.budget_s, started=time.monotonic() - task.elapsed_s),
            seed=self.seed,
            workload=self.workload,
            on_event=self.on_event,
            stop=self._ended,
        )


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
