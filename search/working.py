"""A worker: claims points of a shared study, measures them on its own bench, and writes down what it found."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from search import events
from search.attempts import Attempts
from search.budget import Budget
from search.convert import trial_to_record
from search.demand import Demand
from search.files import append_line
from search.forecast import Forecast, Predicted
from search.ledger import TRIALS_FILE, Ledger, attributes_of
from search.objective import COST, Objective
from search.profile_file import curves_from_text
from search.shared_queue import SharedQueue
from search.space import knobs_of
from search.storage import beat_once
from search.tasks import (
    CLOSED,
    ORDER,
    PROFILE,
    RECORD,
    WORKER,
    WORKER_PREFIX,
    OrderRecord,
    TaskRecord,
    reading,
    task_of,
)
from search.trial import Trial
from search.verification import predicted_trial
from search.words import knobs_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import optuna
    from optuna.trial import FrozenTrial

    from model_repo.spec import ServingConfig
    from search.bench import Bench
    from search.records import Slo
    from search.simulator import SimulatedServer
    from search.space import SearchSpace
    from search.storage import Storage

log = logging.getLogger("tritune.worker")

POLL_S = 0.5
LONGEST_POLL_S = 1.0
CLOSED_IS_ASKED_S = 3.0
IDLE_S = 600.0
"""How long a worker waits for something to do: its coordinator may have died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A study, and what it wants measured."""

    study: optuna.Study
    order: OrderRecord


def join(storage: Storage, name: str) -> Joined | None:
    """The study of that name once it wants something measured. Raises BadInput, pydantic's ValidationError."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage.patient.get_study_id_from_name(name)
    except KeyError:
        return None
    with reading(name):
        study = optuna.load_study(study_name=name, storage=storage.patient)
        order = study.user_attrs.get(ORDER)
    return None if order is None else Joined(study=study, order=OrderRecord.model_validate(order))


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker of a study; `run` once. `directory` gets the trials that it finished."""

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
    demand: Demand = field(default_factory=Demand)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False
    idle_s: float = IDLE_S
    _asked_at: float = field(default=-CLOSED_IS_ASKED_S)
    _closed: bool = False

    def run(self) -> int:
        """Measure until the study is closed, `stop` says so, or there was nothing to do for `idle_s`.

        Returns how many trials were finished.
        """
        self.study.set_user_attr(WORKER_PREFIX + self.name, self.hardware)
        try:
            return self._work()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Say goodbye; a database that is away is not waited for."""
        with contextlib.suppress(Exception):
            study_id = self.storage.direct.get_study_id_from_name(self.study.study_name)
            self.storage.direct.set_study_user_attr(study_id, WORKER_PREFIX + self.name, None)

    def _work(self) -> int:
        finished, idle_since, pause_s = 0, time.monotonic(), POLL_S
        while not self._ended():
            claimed = self._claimed()
            if claimed is not None:
                finished += self._measured(claimed)
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
        """Whether to stop; the study is asked every few seconds, as this is called while load is running."""
        if not self._closed and time.monotonic() - self._asked_at > CLOSED_IS_ASKED_S:
            self._closed = bool(self._attribute(CLOSED))
            self._asked_at = time.monotonic()
        return self._closed or self.stop()

    @property
    def _queue(self) -> SharedQueue:
        return SharedQueue(study=self.study, storage=self.storage)

    def _claimed(self) -> FrozenTrial | None:
        """The first waiting point that this machine can serve, ours from now on."""
        import optuna

        with reading(self.study.study_name):
            for frozen in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
                # This machine may lack the engine, or the cores for so many threads.
                if task_of(frozen) is not None and self.space.has(frozen.params):
                    trial_id = self._queue.id_of(frozen.number)
                    # Before it is ours: one that dies right after has been heard of, and is missed.
                    beat_once(self.storage, trial_id)
                    if self._queue.claim(frozen.number):
                        self.storage.patient.set_trial_user_attr(trial_id, WORKER, self.name)
                        return frozen
        return None

    def _attribute(self, name: str) -> object:
        with reading(self.study.study_name):
            return self.study.user_attrs.get(name)

    def _measured(self, claimed: FrozenTrial) -> bool:
        """Whether the trial was finished; otherwise somebody else gets it."""
        config = self.space.config(claimed.params)
        self.on_event(events.TrialStarted(number=claimed.number, knobs=knobs_text(config)))
        try:
            with beating(self.storage, self._queue.id_of(claimed.number)):
                trial = self._found(config, claimed)
                if trial is None:
                    self._hand_on(claimed)
                    return False
                with reading(self.study.study_name):
                    self._report(claimed, replace(trial, hardware=self.hardware, worker=self.name))
        except BaseException:
            self._hand_on(claimed)
            raise
        self.on_event(events.TrialEnded(trial=trial, best=None, elapsed_s=0.0, budget_s=0.0))
        return True

    def _hand_on(self, claimed: FrozenTrial) -> None:
        with reading(self.study.study_name):
            self._queue.hand_on(claimed.number)

    def _report(self, claimed: FrozenTrial, trial: Trial) -> None:
        """On this machine's disk first: a database that is away can wait.

        After an outage the trial may have been taken for lost; what was found is told all the same, unless another
        worker was quicker.
        """
        record = trial_to_record(trial).model_dump_json()
        append_line(self.directory / TRIALS_FILE, record)
        attributes = {name: value for name, value in attributes_of(trial).items() if name != "trial"}
        attributes[RECORD] = record
        value = self.objective.told(trial)
        if self._queue.tell(claimed.number, trial, value, attributes):
            return
        log.warning("trial %d was given to another worker meanwhile", claimed.number)
        told = [one for one in self.study.get_trials(deepcopy=False) if RECORD in one.user_attrs]
        if not any(one.params == claimed.params for one in told):
            again = self._queue.opened_again(claimed)
            beat_once(self.storage, self._queue.id_of(again))
            self._queue.tell(again, trial, value, attributes)

    def _found(self, config: ServingConfig, claimed: FrozenTrial) -> Trial | None:
        task = task_of(claimed)
        assert task is not None, "claimed without a task"
        attempts = self._attempts(config, task)
        predicted = task.why.prediction
        server = None if predicted is None else self._simulated(config)
        if predicted is not None and server is not None:
            prediction = Predicted(
                knobs=knobs_of(config),
                rate_per_s=predicted.rate_per_s,
                sd=predicted.sd,
                simulated_per_s=predicted.simulated_per_s,
            )
            trial = attempts.watched(lambda: predicted_trial(attempts, server, config, claimed.number, prediction))
        else:
            trial = attempts.watched(lambda: attempts.evaluated(config, claimed.number))
        return None if trial is None else attempts.within_memory(replace(trial, why=task.why))

    def _simulated(self, config: ServingConfig) -> SimulatedServer | None:
        """The configuration as the coordinator's profile has it; None if the profile says nothing of it."""
        profile = self._attribute(PROFILE)
        if not isinstance(profile, str):
            return None
        forecast = Forecast(space=self.space, slo=self.slo, seed=self.seed, demand=self.demand)
        try:
            forecast.curves.update(curves_from_text(profile))
            return forecast.server(config) if forecast.profiled(knobs_of(config)) else None
        except ValueError as error:
            log.warning("the study's profile is not used: %s", error)
            return None

    def _attempts(self, config: ServingConfig, task: TaskRecord) -> Attempts:
        """What a trial needs to know of the search that it is part of: its budget, and the rate to beat."""
        best = Trial(number=0, config=config, state="complete", reason="", rate_at_limit_per_s=task.best_per_s)
        return Attempts(
            ledger=Ledger(
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
            demand=self.demand,
            on_event=self.on_event,
            stop=self._ended,
        )


@contextmanager
def beating(storage: Storage, trial_id: int) -> Iterator[None]:
    """Until the block ends, tell again and again that the trial's worker is alive."""
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
