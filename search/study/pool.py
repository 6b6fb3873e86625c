"""The coordinator's side of the queue for workers: hands points out and collects their trials.

The queue is a study of its own next to the search's, in the same storage. Its trials are points that wait, are
measured or have a result; results get into the search's study as those of this process do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.errors import BadInput
from loadgen.printable import printable
from search.record import Record
from search.records.trial import TrialRecord, WhyRecord
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import profile_text
from search.simulator.surrogate import Kind
from search.space import Key, Knobs, key_of
from search.study.storage import RETRIES
from search.study.store import TrialStore, distributions_of
from search.trials.bench import Spent
from search.trials.trial import Trial, trial_from_record, trial_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


JOB, PROFILE, CLOSED, WORKER_PREFIX = "job", "profile", "closed", "worker "
"""User attributes of the queue. `closed` is true once the coordinator needs no more trials; `worker NAME` holds a
worker's hardware, or null when it has left."""

TASK, RECORD = "task", "record"
"""User attributes of a trial in the queue: what is asked of the worker, and its result (TrialRecord). A task whose
result has come, or that the coordinator took back, ends as pruned; one whose worker was lost as failed."""

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

    The job's `run` says whose study it is. `start` gets the study's name; its processes run until its block ends.
    """

    job: Mapping[str, Any]
    start: Callable[[str], AbstractContextManager[object]]


@contextmanager
def worker_pool(store: TrialStore, workers: Workers | None) -> Iterator[WorkerPool | None]:
    """Open the pool of these workers for a block. Raises BadInput if the study belongs to another run."""
    if workers is None:
        yield None
        return
    pool, study = open_pool(store), store.study.study_name
    before = pool.queue.user_attrs.get(JOB)
    if before is not None and before["run"] != workers.job["run"]:
        raise BadInput(
            f"The study {study} in this storage belongs to the run in {printable(str(before['run']))}.",
            "Give this run a study of its own with --study NAME, or go on with that one: --resume DIR.",
        )
    pool.publish(workers.job)
    with workers.start(study), closing(pool):
        yield pool


def queue_of(study: str) -> str:
    """Return the name of the queue of a search's study."""
    return f"{study} queue"


def waiting(queue: Study) -> list[FrozenTrial]:
    """Return the points that no worker has begun."""
    import optuna

    return queue.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,))


def open_pool(store: TrialStore) -> WorkerPool:
    """Open the queue of the store's study, with the points that an earlier process left in it."""
    import optuna

    name = queue_of(store.study.study_name)
    queue = optuna.create_study(study_name=name, storage=store.storage, load_if_exists=True)
    return WorkerPool(store=store, queue=queue)


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The workers of the store's study. Points that are out are kept in `store.away`."""

    store: TrialStore
    queue: Study

    def publish(self, job: Mapping[str, Any]) -> None:
        """Open the queue for workers."""
        self.queue.set_user_attr(JOB, dict(job))
        self.queue.set_user_attr(CLOSED, False)

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Publish the service times, from which workers make the same predictions."""
        self.queue.set_user_attr(PROFILE, profile_text(curves))

    def room(self) -> int:
        """Return how many more points may be offered: two per worker that has joined, less those that are out."""
        known = self.queue.user_attrs.items()
        workers = sum(name.startswith(WORKER_PREFIX) and at_work is not None for name, at_work in known)
        return max(0, AHEAD * workers - len(self.store.away))

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Put a point into the queue."""
        import optuna

        self.queue.add_trial(
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
        import optuna

        optuna.storages.fail_stale_trials(self.queue)
        tasks = [one for one in self.queue.get_trials(deepcopy=False) if TASK in one.user_attrs]
        known, found = self.store.tried().keys(), dict[Key, Trial]()
        for one in tasks:
            lost = one.state.name == "FAIL" and len(one.system_attrs.get("retry_history", ())) == RETRIES
            if (lost or RECORD in one.user_attrs) and (key := key_of(one.params)) not in known | found.keys():
                found[key] = self._result(one)
        out = [one for one in tasks if not one.state.is_finished()]
        for one in out:
            if one.state.name == "WAITING" and key_of(one.params) in known | found.keys():
                self._take_back(one)  # its worker was taken for lost, and came back
        self.store.away = {key_of(one.params) for one in out} - known - found.keys()
        return list(found.values())

    def _result(self, frozen: FrozenTrial) -> Trial:
        if RECORD in frozen.user_attrs:
            record = TrialRecord.model_validate_json(frozen.user_attrs[RECORD])
            return trial_from_record(record, self.store.space.engines)
        config = self.store.space.config(frozen.params)
        return trial_of(frozen.number, config, "failed", "every worker that measured it was lost", spent=Spent())

    def wait(self) -> bool:
        """Take a point back that no worker has begun, or wait for a moment; False if no points are out."""
        if not self.store.away:
            return False
        unbegun = waiting(self.queue)
        if unbegun:
            self._take_back(unbegun[0])
        else:
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Close the queue: workers leave, and points that they have not begun are withdrawn."""
        for one in waiting(self.queue):
            self._take_back(one)
        self.queue.set_user_attr(CLOSED, True)
        self.store.away.clear()

    def _take_back(self, frozen: FrozenTrial) -> None:
        """Take a queued point back. A worker that begins it in this moment reports it all the same."""
        self.store.storage.end(self.queue, frozen.number)
        self.store.away.discard(key_of(frozen.params))
