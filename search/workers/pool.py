"""The coordinator's side of a shared study: hands points out to workers and collects their trials."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.errors import BadInput
from loadgen.printable import printable
from model_repo.spec import ServingConfig
from search.records.trial import TrialRecord
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import profile_text
from search.simulator.surrogate import Kind
from search.space import Knobs
from search.study.storage import fail_lost_trials
from search.study.store import TrialStore, key_of
from search.study.tasks import (
    CLOSED,
    ORDER,
    PROFILE,
    RECORD,
    TASK,
    WITHDRAWN,
    WORKER_PREFIX,
    TaskRecord,
    WorkerJob,
    reading,
)
from search.study.trial_runner import NoWorkers, WorkerPool
from search.trials.bench import Spent
from search.trials.trial import Trial, UnknownEngine, trial_from_record, trial_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


log = logging.getLogger("tritune.workers")

POLL_S = 0.5
MAX_WORKERS = 256
"""More worker names are not counted: every user of the database can write some."""

AHEAD = 2
"""Points that are queued per worker: one to measure, and one to go on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Processes that measure for a search: the job that they get, and those that this machine starts.

    `start` gets the name of the study; its processes run until its block ends.
    """

    job: WorkerJob
    start: Callable[[str], AbstractContextManager[object]]


@contextmanager
def worker_pool(store: TrialStore, workers: Workers | None) -> Iterator[WorkerPool]:
    """Open the pool of these workers for a block. Raises BadInput if the study belongs to another run."""
    if workers is None:
        yield NoWorkers()
        return
    pool, study = StudyWorkerPool(store=store), store.study.study_name
    _check_owner(store.study.user_attrs.get(ORDER), workers.job, study)
    pool.publish(workers.job)
    with workers.start(study):
        try:
            yield pool
        finally:
            pool.close()


def _check_owner(before: object, job: WorkerJob, study: str) -> None:
    if not isinstance(before, dict) or before.get("run") == job.run:
        return
    raise BadInput(
        f"The study {study} in this storage belongs to the run in {printable(str(before.get('run')))}.",
        "Give this run a study of its own with --study NAME, or go on with that one: --resume DIR.",
    )


@dataclass(slots=True, kw_only=True)
class StudyWorkerPool:
    """The workers of the store's study; see `WorkerPool`. Points that are out are kept in `store.away`."""

    store: TrialStore
    _done: set[int] = field(default_factory=set)  # Optuna's numbers of tasks that need no more attention
    _out: list[FrozenTrial] = field(default_factory=list)

    def publish(self, order: WorkerJob) -> None:
        """Open the study for workers."""
        self.store.study.set_user_attr(ORDER, order.model_dump(mode="json"))
        self.store.study.set_user_attr(CLOSED, False)

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Publish the service times that predictions come from."""
        self.store.study.set_user_attr(PROFILE, profile_text(curves))

    def room(self) -> int:
        """Return the free places: two per worker that has joined, less the points that are out."""
        workers = [
            name
            for name, at_work in self.store.study.user_attrs.items()
            if name.startswith(WORKER_PREFIX) and at_work
        ]
        return max(0, AHEAD * min(len(workers), MAX_WORKERS) - len(self.store.away))

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Put a point into the study's queue."""
        attributes = {TASK: task.model_dump(mode="json")}
        self.store.queue.open_at(knobs, self.store.space, waiting=True, attributes=attributes)
        self.store.away.add(key_of(knobs))

    def gather(self) -> list[Trial]:
        """Return the trials that workers have finished; queue again those that lost workers had begun."""
        fail_lost_trials(self.store.study.study_name, self.store.storage)
        with reading(self.store.study.study_name):
            tasks = [
                frozen
                for frozen in self.store.study.get_trials(deepcopy=False)
                if TASK in frozen.user_attrs and self.store.space.has(frozen.params)
            ]
            retried = {number for frozen in tasks for number in frozen.system_attrs.get("retry_history", [])}
        self._out = []
        found: list[Trial] = []
        for frozen in tasks:
            if not frozen.state.is_finished():
                self._out.append(frozen)
            elif frozen.number not in self._done:
                self._done.add(frozen.number)
                if frozen.number not in retried and WITHDRAWN not in frozen.user_attrs:
                    found.extend(self._came_back(frozen))
        once = {trial.served: trial for trial in reversed(found)}  # the first of those that were measured twice
        self._withdraw(once)
        self.store.away = {key_of(frozen.params) for frozen in self._out}
        return list(reversed(once.values()))

    def _withdraw(self, known: Collection[ServingConfig]) -> None:
        """Withdraw queued points that are known by now: their worker was considered lost, and came back."""
        for frozen in self._waiting():
            knobs: Knobs = dict(frozen.params)
            tried = not self.store.untried(knobs, even_if_away=True)
            if tried or self.store.space.config(knobs) in known:
                self._take_back(frozen)

    def _came_back(self, frozen: FrozenTrial) -> Iterator[Trial]:
        knobs: Knobs = dict(frozen.params)
        if not self.store.untried(knobs, even_if_away=True):
            return  # measured twice, or merged before a restart
        if RECORD not in frozen.user_attrs:
            reason = "every worker that measured it was lost"
            yield trial_of(frozen.number, self.store.space.config(knobs), "failed", reason, spent=Spent())
            return
        try:
            record = TrialRecord.model_validate_json(frozen.user_attrs[RECORD])
            yield trial_from_record(record, self.store.space.engines)
        except (ValueError, UnknownEngine) as error:
            log.warning("trial %d of the study is not used: %s", frozen.number, error)

    def wait(self) -> bool:
        """Take back points that no worker has begun; wait for a moment if all are being measured."""
        if not self._out:
            return False
        if not any(self._take_back(frozen) for frozen in self._waiting()):
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Close the study: workers leave, and points that they have not begun are withdrawn."""
        for frozen in self._waiting():
            self._take_back(frozen)
        self.store.study.set_user_attr(CLOSED, True)

    def _waiting(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return [frozen for frozen in self._out if frozen.state == TrialState.WAITING]

    def _take_back(self, frozen: FrozenTrial) -> bool:
        """Take a queued point back; False if a worker was quicker."""
        if not self.store.queue.claim(frozen.number):
            return False
        self.store.queue.fail(frozen.number, {WITHDRAWN: True})
        self._done.add(frozen.number)
        self._out.remove(frozen)
        self.store.away.discard(key_of(frozen.params))
        return True
