"""The coordinator's side of a shared study: hands points out to workers and collects their trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadgen.errors import BadInput
from loadgen.printable import printable
from search.record import Record
from search.records.trial import TrialRecord, WhyRecord
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import profile_text
from search.simulator.surrogate import Kind
from search.space import Knobs
from search.study.storage import fail_lost_trials
from search.study.store import RECORD, TASK, Key, TrialStore, distributions_of, key_of
from search.trials.bench import Spent
from search.trials.trial import Trial, trial_from_record, trial_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


JOB, PROFILE, CLOSED, WORKER_PREFIX = "job", "profile", "closed", "worker "
"""User attributes of the study. `closed` is true once the coordinator needs no more trials; `worker NAME` holds a
worker's hardware, or null when it has left."""

WITHDRAWN = "withdrawn"
"""User attribute of a trial, true if the coordinator took it back."""

POLL_S = 0.5
AHEAD = 2
"""Points that are queued per worker: one to measure, and one to go on with."""


class TaskRecord(Record):
    """Why a configuration is measured. Without a prediction its capacity is searched for."""

    why: WhyRecord
    best_per_s: float | None = None  # less need not be found
    elapsed_s: float  # of the run's budget, when this was asked for
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Processes that measure for a search: the job that they get, and those that this machine starts.

    `run` says whose study it is. `start` gets the name of the study; its processes run until its block ends.
    """

    run: str
    job: Mapping[str, Any]
    start: Callable[[str], AbstractContextManager[object]]


@contextmanager
def worker_pool(store: TrialStore, workers: Workers | None) -> Iterator[WorkerPool | None]:
    """Open the pool of these workers for a block. Raises BadInput if the study belongs to another run."""
    if workers is None:
        yield None
        return
    pool, study = WorkerPool(store=store), store.study.study_name
    before = store.study.user_attrs.get(JOB)
    if before is not None and before["run"] != workers.run:
        raise BadInput(
            f"The study {study} in this storage belongs to the run in {printable(str(before['run']))}.",
            "Give this run a study of its own with --study NAME, or go on with that one: --resume DIR.",
        )
    pool.publish({**workers.job, "run": workers.run})
    with workers.start(study):
        try:
            yield pool
        finally:
            pool.close()


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of the store's study. Points that are out are kept in `store.away`."""

    store: TrialStore
    _out: list[FrozenTrial] = field(default_factory=list)

    def publish(self, job: Mapping[str, Any]) -> None:
        """Open the study for workers."""
        self.store.study.set_user_attr(JOB, dict(job))
        self.store.study.set_user_attr(CLOSED, False)

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Publish the service times, from which workers make the same predictions."""
        self.store.study.set_user_attr(PROFILE, profile_text(curves))

    def room(self) -> int:
        """Return how many more points may be offered: two per worker that has joined, less those that are out."""
        known = self.store.study.user_attrs.items()
        workers = sum(name.startswith(WORKER_PREFIX) and at_work is not None for name, at_work in known)
        return max(0, AHEAD * workers - len(self.store.away))

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Put a point into the study's queue."""
        import optuna

        self.store.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.WAITING,
                params=knobs,
                distributions=distributions_of(knobs, self.store.space),
                user_attrs={TASK: task.model_dump(mode="json")},
            )
        )
        self.store.away.add(key_of(knobs))

    def gather(self) -> list[Trial]:
        """Return new trials of workers, each point once; queue again those that lost workers had begun."""
        fail_lost_trials(self.store.study.study_name, self.store.storage)
        tasks = [one for one in self.store.study.get_trials(deepcopy=False) if TASK in one.user_attrs]
        retried = {number for one in tasks for number in one.system_attrs.get("retry_history", ())}
        self._out = [one for one in tasks if not one.state.is_finished()]
        found: dict[Key, Trial] = {}
        for one in tasks:
            over = one.state.is_finished() and one.number not in retried and WITHDRAWN not in one.user_attrs
            if over and key_of(one.params) not in found and self._unknown(one):
                found[key_of(one.params)] = self._result(one)
        for one in self._waiting():  # its worker was taken for lost, and came back
            if key_of(one.params) in found or not self._unknown(one):
                self._take_back(one)
        self.store.away = {key_of(one.params) for one in self._out}
        return list(found.values())

    def _unknown(self, frozen: FrozenTrial) -> bool:
        return self.store.untried(frozen.params, even_if_away=True)

    def _result(self, frozen: FrozenTrial) -> Trial:
        if RECORD in frozen.user_attrs:
            record = TrialRecord.model_validate_json(frozen.user_attrs[RECORD])
            return trial_from_record(record, self.store.space.engines)
        config = self.store.space.config(frozen.params)
        return trial_of(frozen.number, config, "failed", "every worker that measured it was lost", spent=Spent())

    def wait(self) -> bool:
        """Take a point back that no worker has begun, or wait for a moment; False if no points are out."""
        if not self._out:
            return False
        if not any(self._take_back(one) for one in self._waiting()):
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Close the study: workers leave, and points that they have not begun are withdrawn."""
        for one in self._waiting():
            self._take_back(one)
        self.store.study.set_user_attr(CLOSED, True)

    def _waiting(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return [one for one in self._out if one.state == TrialState.WAITING]

    def _take_back(self, frozen: FrozenTrial) -> bool:
        """Take a queued point back; False if a worker was quicker."""
        import optuna

        trial_id = self.store.storage.claim(self.store.study, frozen.number)
        if trial_id is None:
            return False
        self.store.storage.patient.set_trial_user_attr(trial_id, WITHDRAWN, True)
        self.store.study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
        self._out.remove(frozen)
        self.store.away.discard(key_of(frozen.params))
        return True
