"""Workers on other machines as one group: their clocks, shards, rows, and losses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gevent
import numpy as np

from loadgen.distributed.messages import ROW, Order, Report, Task, order_of_job
from loadgen.errors import WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.processes import Silence
from loadgen.sending.load_process import error_from
from loadgen.sending.plan_run import LoadJob
from loadgen.sending.request_table import LogTable, planned_table
from loadgen.spec.plan import LoadPlan
from loadgen.status import is_outcome

_START_DELAY_NS = 1_000_000_000
_CLOCK_ROUNDS = 10
_ANSWER_S = 10.0
_DRAWING_S = 1e-6  # per request of the schedule: ten times what it takes
_POLL_S = 0.01
_REPORTED = ("sent_ns", "done_ns", "outcome")


class Messenger(Protocol):
    """How a run reaches its workers."""

    @property
    def connected(self) -> list[str]:
        """The workers that are connected now."""

    def give(self, worker: str, order: Order) -> None:
        """Send an order to a worker."""

    def take(self, worker: str) -> Report | None:
        """Return the oldest report of a worker that was not taken yet; None if there is none."""


@dataclass(slots=True, kw_only=True)
class _Part:
    """One worker's shard, as far as it is known."""

    worker: str
    number: int
    offset_ns: int  # its clock minus ours
    n: int = 0  # requests that are known: its first ones
    result: ShardResult | None = None
    lost: bool = False

    @property
    def ended(self) -> bool:
        return self.lost or self.result is not None


@dataclass(slots=True, kw_only=True)
class RemoteWorkers:
    """Workers on other machines that send one plan."""

    messenger: Messenger
    run: int
    workers: Sequence[str]
    job: LoadJob
    _parts: list[_Part] = field(default_factory=list)
    _table: LogTable = field(init=False)

    def prepare(self) -> None:
        """Compare clocks, and give each worker its shard. Return when all have tried a request."""
        assert isinstance(self.job.plan, LoadPlan)
        # In a thread: to draw a long schedule takes seconds, in which Locust's heartbeats must go on.
        self._table = gevent.get_hub().threadpool.apply(planned_table, (self.job.plan,))
        self._parts = [
            _Part(worker=worker, number=number, offset_ns=self._clock_offset_ns(worker))
            for number, worker in enumerate(self.workers)
        ]
        order = order_of_job(self.run, self.job, len(self._parts))
        for part in self._parts:
            self.messenger.give(part.worker, order.model_copy(update={"part": part.number}))
        ready_s = _ANSWER_S + 2 * self.job.plan.timeout_s + _DRAWING_S * self.job.plan.expected_requests
        for part in self._parts:
            self._answer(part.worker, ready_s)

    def read_statistics(self) -> dict[str, Any] | None:
        """Ask the first worker that is left for the server's counters."""
        part = next((part for part in self._parts if not part.lost), None)
        if part is None:
            return None
        self._order(part.worker, "statistics")
        try:
            return self._answer(part.worker, _ANSWER_S).statistics
        except WorkerDied:
            return None

    def start(self) -> None:
        """Start all workers at the same moment, each by its own clock."""
        origin_ns = time.monotonic_ns() + _START_DELAY_NS
        for part in self._parts:
            self._order(part.worker, "start", origin_ns=origin_ns + part.offset_ns)

    def _clock_offset_ns(self, worker: str) -> int:
        """Return the worker's clock minus ours, from the quickest of several answers.

        The error is at most half of the time that this answer took.
        """
        answers = []
        for _ in range(_CLOCK_ROUNDS):
            asked_ns = time.monotonic_ns()
            self._order(worker, "clock")
            there_ns = self._answer(worker, _ANSWER_S).here_ns
            now_ns = time.monotonic_ns()
            answers.append((now_ns - asked_ns, there_ns - (asked_ns + now_ns) // 2))
        return min(answers)[1]

    def wait(self, timeout_s: float) -> bool:
        """Take the messages of 10 ms or less; False when each worker has ended or is lost.

        Raises the error that a worker reports, and WorkerDied if all are lost.
        """
        gevent.sleep(min(timeout_s, _POLL_S))
        connected = self.messenger.connected
        for part in self._parts:
            while (report := self._next(part.worker)) is not None:
                self._write(part, report.rows)
                part.result = report.result or part.result
            part.lost = part.lost or not (part.ended or part.worker in connected)
        if not all(part.ended for part in self._parts):
            return True
        if not self.results:
            raise WorkerDied("every worker was lost while the load ran.\nNothing is known; start them again.")
        return False

    @property
    def results(self) -> list[ShardResult]:
        """The results that workers have sent."""
        return [part.result for part in self._parts if part.result is not None]

    @property
    def losses(self) -> tuple[str, ...]:
        """One sentence for each worker that was lost."""
        return tuple(
            f"the worker {part.worker} was lost: only {part.n} of its requests are known"
            for part in self._parts
            if part.lost
        )

    def log(self) -> RequestLog:
        """Return the requests before the first that may still be missing; all that came, after the run."""
        missing = (part.number + part.n * len(self._parts) for part in self._parts if not part.ended)
        return self._table.finished(min(missing, default=self._table.rows))

    def _write(self, part: _Part, data: bytes) -> None:
        """Write the next requests of a worker: it has every n-th row of the table, from its own number on."""
        count, parts, table = len(data) // ROW.itemsize, len(self._parts), self._table
        sent = np.frombuffer(data, ROW, count)
        rows = slice(part.number + part.n * parts, part.number + (part.n + count) * parts, parts)
        planned = np.array_equal(table.scheduled_ns[rows], sent["scheduled_ns"])
        if not planned or not all(is_outcome(number) for number in np.unique(sent["outcome"]).tolist()):
            raise WorkerDied(
                f"the worker {part.worker} sent other requests than the plan has.\n"
                "Install the same versions of tritune and NumPy on all machines, and start again."
            )
        table.sent_ns[rows], table.done_ns[rows], table.outcome[rows] = (sent[name] for name in _REPORTED)
        part.n += count

    def stop(self) -> None:
        """Ask the workers that have not ended to send nothing that is due later."""
        for part in self._parts:
            if not part.ended:
                self._order(part.worker, "stop")

    def abandon(self) -> None:
        """Stop the workers: they take a new plan at any time."""
        self.stop()

    def _order(self, worker: str, do: Task, *, origin_ns: int = 0) -> None:
        self.messenger.give(worker, Order(run=self.run, do=do, origin_ns=origin_ns))

    def _answer(self, worker: str, timeout_s: float) -> Report:
        """Wait for the next report.

        Raises the error that the worker reports, or WorkerDied if it is stopped or gone, or after the time-out.
        """
        deadline = time.monotonic() + timeout_s
        silence = Silence(lambda: worker in self.messenger.connected)
        while time.monotonic() < deadline:
            report = self._next(worker)
            if report is not None:
                return report
            if silence.too_long():
                raise WorkerDied(f"the worker {worker} was stopped, or is gone.\nStart it again.")
            gevent.sleep(0.001)
        raise WorkerDied(f"the worker {worker} gave no answer in {timeout_s:g} s.\nStart it again.")

    def _next(self, worker: str) -> Report | None:
        """Return the next report of this run; None if there is none. Raises the error that a worker reports."""
        while (report := self.messenger.take(worker)) is not None:
            if report.run not in (0, self.run):
                continue
            if report.failure is not None:
                raise error_from(*report.failure)
            return report
        return None
