"""The coordinator's side of a shared study: points put into its queue for workers, and what came back of them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from search.bench import Spent
from search.convert import UnknownEngine, trial_from_record
from search.ledger import key_of
from search.profile_file import profile_text
from search.records import TrialRecord
from search.storage import fail_lost_trials
from search.tasks import CLOSED, ORDER, PROFILE, RECORD, TASK, WITHDRAWN, WORKER_PREFIX, reading
from search.trial import failed_trial

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from optuna.trial import FrozenTrial

    from model_repo.spec import ServingConfig
    from search.forecast import Kind
    from search.ledger import Ledger
    from search.service_time import ServiceCurve
    from search.space import Knobs
    from search.tasks import OrderRecord, TaskRecord
    from search.trial import Trial

log = logging.getLogger("tritune.crew")

POLL_S = 0.5
MOST_WORKERS = 256
"""Names beyond are not counted: anybody who reaches the database can write some."""

AHEAD = 2
"""Points asked for at a time, for each worker: one to measure and one to go on with."""


class Crew(Protocol):
    """Whoever measures besides this process."""

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Let them predict what this process predicts."""
        ...

    def room(self) -> int:
        """How many more points may be offered."""
        ...

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Ask for a point to be measured."""
        ...

    def gather(self) -> list[Trial]:
        """Trials that came back since, without their final numbers."""
        ...

    def wait(self) -> bool:
        """Whether something may still come back, or was taken back to be measured here; False: nothing is out."""
        ...


class Nobody:
    """No crew: everything is measured here."""

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Nothing to do."""

    def room(self) -> int:
        """None."""
        return 0

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Nothing to do."""

    def gather(self) -> list[Trial]:
        """Nothing came back."""
        return []

    def wait(self) -> bool:
        """Nothing is out."""
        return False


@dataclass(slots=True, kw_only=True)
class SharedStudy:
    """The crew that works on the ledger's study; see `Crew`. Points that are out are kept in `ledger.away`."""

    ledger: Ledger
    _done: set[int] = field(default_factory=set)  # Optuna's numbers of tasks that need no more attention
    _out: list[FrozenTrial] = field(default_factory=list)

    def publish(self, order: OrderRecord) -> None:
        """Open the study for workers."""
        self.ledger.study.set_user_attr(ORDER, order.model_dump(mode="json"))
        self.ledger.study.set_user_attr(CLOSED, False)

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Publish the service times that predictions come from."""
        self.ledger.study.set_user_attr(PROFILE, profile_text(curves))

    def room(self) -> int:
        """By how many workers have come, less what is out."""
        workers = [
            name
            for name, at_work in self.ledger.study.user_attrs.items()
            if name.startswith(WORKER_PREFIX) and at_work
        ]
        return max(0, AHEAD * min(len(workers), MOST_WORKERS) - len(self.ledger.away))

    def offer(self, knobs: Knobs, task: TaskRecord) -> None:
        """Put a point into the study's queue."""
        attributes = {TASK: task.model_dump(mode="json")}
        self.ledger.queue.open_at(knobs, self.ledger.space, waiting=True, attributes=attributes)
        self.ledger.away.add(key_of(knobs))

    def gather(self) -> list[Trial]:
        """What workers have finished; what lost workers had begun goes back into the queue."""
        fail_lost_trials(self.ledger.study.study_name, self.ledger.storage)
        with reading(self.ledger.study.study_name):
            tasks = [
                frozen
                for frozen in self.ledger.study.get_trials(deepcopy=False)
                if TASK in frozen.user_attrs and self.ledger.space.has(frozen.params)
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
        once = {trial.config: trial for trial in reversed(found)}  # the first of those that were measured twice
        self._withdraw(once)
        self.ledger.away = {key_of(frozen.params) for frozen in self._out}
        return list(reversed(once.values()))

    def _withdraw(self, known: Collection[ServingConfig]) -> None:
        """Take back what is queued although it is known: its worker was taken for lost, and came back."""
        for frozen in self._waiting():
            knobs: Knobs = dict(frozen.params)
            tried = not self.ledger.untried(knobs, even_if_away=True)
            if tried or self.ledger.space.config(knobs) in known:
                self._take_back(frozen)

    def _came_back(self, frozen: FrozenTrial) -> Iterator[Trial]:
        knobs: Knobs = dict(frozen.params)
        if not self.ledger.untried(knobs, even_if_away=True):
            return  # measured twice, or merged before a restart
        if RECORD not in frozen.user_attrs:
            reason = "every worker that measured it was lost"
            yield failed_trial(frozen.number, self.ledger.space.config(knobs), reason, Spent())
            return
        try:
            record = TrialRecord.model_validate_json(frozen.user_attrs[RECORD])
            yield trial_from_record(record, self.ledger.space.engines)
        except (ValueError, UnknownEngine) as error:
            log.warning("trial %d of the study is not used: %s", frozen.number, error)

    def wait(self) -> bool:
        """Take back what nobody has begun; where all of it is being measured, wait for a moment."""
        if not self._out:
            return False
        if not any(self._take_back(frozen) for frozen in self._waiting()):
            time.sleep(POLL_S)
        return True

    def close(self) -> None:
        """Need nothing more: workers leave, and what they have not begun is withdrawn."""
        for frozen in self._waiting():
            self._take_back(frozen)
        self.ledger.study.set_user_attr(CLOSED, True)

    def _waiting(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return [frozen for frozen in self._out if frozen.state == TrialState.WAITING]

    def _take_back(self, frozen: FrozenTrial) -> bool:
        """Whether a queued point is ours again; False: a worker was quicker."""
        if not self.ledger.queue.claim(frozen.number):
            return False
        self.ledger.queue.fail(frozen.number, {WITHDRAWN: True})
        self._done.add(frozen.number)
        self._out.remove(frozen)
        self.ledger.away.discard(key_of(frozen.params))
        return True
