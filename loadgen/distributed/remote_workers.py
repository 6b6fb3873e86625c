"""Workers on other machines as one group: their clocks, shards, rows, and losses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gevent
import numpy as np
from gevent.pool import Group

from loadgen.distributed.messages import ROW, Order, Report, Task, job_to_send
from loadgen.errors import LoadError, WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending.children import error_from
from loadgen.sending.plan_run import LoadJob
from loadgen.sending.request_table import LogTable, planned_table
from loadgen.spec.plan import LoadPlan
from loadgen.status import NAMES

_START_DELAY_NS = 1_000_000_000
_CLOCK_ROUNDS = 10
_ANSWER_S = 30.0
_DRAWING_S = 1e-6  # per request of the schedule: ten times what it takes
_REPORTED = ("sent_ns", "done_ns", "outcome")


@dataclass(slots=True, kw_only=True)
class _Part:
    """One worker's shard, as far as it is known."""

    worker: str
    number: int
    offset_ns: int = 0  # its clock minus ours
    n: int = 0  # requests that are known: its first ones
    result: ShardResult | None = None
    lost: bool = False

    @property
    def ended(self) -> bool:
        return self.lost or self.result is not None


@dataclass(slots=True, kw_only=True)
class RemoteWorkers:
    """Workers on other machines that send one plan: a `WorkerGroup`.

    `ask` sends a worker an order, and returns its report; None if the worker is lost, or late by so many seconds.
    """

    ask: Callable[[str, Order, float], Report | None]
    workers: Sequence[str]
    job: LoadJob
    _parts: list[_Part] = field(default_factory=list)
    _table: LogTable = field(init=False)
    _origin_ns: int = 0

    def prepare(self) -> None:
        """Compare clocks, and give each worker its shard. Return when all have tried a request."""
        assert isinstance(self.job.plan, LoadPlan)
        # In a thread: to draw a long schedule takes seconds, in which Locust's heartbeats must go on.
        self._table = gevent.get_hub().threadpool.apply(planned_table, (self.job.plan,))
        job, files = job_to_send(self.job)
        self._parts = [_Part(worker=worker, number=number) for number, worker in enumerate(self.workers)]
        for part in self._parts:
            self._compare_clocks(part)
        self._ask(self._parts, "prepare", job=job, files=files)
        lost = ", ".join(part.worker for part in self._parts if part.lost)
        if lost:
            raise WorkerDied(f"the worker {lost} was stopped, is gone, or gave no answer.\nStart it again.")

    def read_statistics(self) -> dict[str, Any] | None:
        """Ask the first worker that is left for the server's counters."""
        left = [part for part in self._parts if not part.lost]
        return next((report.statistics for _, report in self._ask(left[:1], "statistics")), None)

    def start(self) -> int:
        """Start all workers at the same moment, each by its own clock; return it by ours."""
        self._origin_ns = time.monotonic_ns() + _START_DELAY_NS
        self._ask(self._parts, "start")
        return self._origin_ns

    def _compare_clocks(self, part: _Part) -> None:
        """Note the worker's clock minus ours, from the quickest of several answers.

        The error is at most half of the time that this answer took.
        """
        answers = []
        for _ in range(_CLOCK_ROUNDS):
            asked_ns = time.monotonic_ns()
            for _, report in self._ask([part], "clock"):
                now_ns = time.monotonic_ns()
                answers.append((now_ns - asked_ns, report.here_ns - (asked_ns + now_ns) // 2))
        part.offset_ns = min(answers, default=(0, 0))[1]

    def wait(self, timeout_s: float) -> bool:
        """Sleep, and ask for the requests that ended meanwhile; False when each worker has ended or is lost.

        Raises the error that a worker reports, and WorkerDied if all are lost.
        """
        gevent.sleep(timeout_s)
        for part, report in self._ask([part for part in self._parts if not part.ended], "look"):
            self._write(part, report.rows)
            part.result = report.result
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
        if not planned or not all(number in NAMES for number in np.unique(sent["outcome"]).tolist()):
            raise WorkerDied(
                f"the worker {part.worker} sent other requests than the plan has.\n"
                "Install the same versions of tritune and NumPy on all machines, and start again."
            )
        table.sent_ns[rows], table.done_ns[rows], table.outcome[rows] = (sent[name] for name in _REPORTED)
        part.n += count

    def stop(self) -> None:
        """Ask the workers that have not ended to send nothing that is due later."""
        self._ask([part for part in self._parts if not part.ended], "stop")

    def abandon(self) -> None:
        """Stop the workers: they take a new plan at any time."""
        with suppress(LoadError):  # the first error matters more
            self.stop()

    def _ask(self, parts: Sequence[_Part], do: Task, **more: Any) -> list[tuple[_Part, Report]]:
        """Give workers an order at the same time; return the reports of those that are not lost.

        Raises the error that a worker reports.
        """
        plan = self.job.plan
        assert isinstance(plan, LoadPlan)
        within_s = _ANSWER_S + 2 * plan.timeout_s + _DRAWING_S * plan.expected_requests

        def ask(part: _Part) -> Report | None:
            where: dict[str, Any] = {"part": part.number, "parts": len(self._parts), "known": part.n}
            order = Order(do=do, origin_ns=self._origin_ns + part.offset_ns, **where, **more)
            return self.ask(part.worker, order, within_s)

        reports = []
        for part, report in zip(parts, Group().map(ask, parts), strict=True):
            part.lost = part.lost or report is None
            if report is not None and report.failure is not None:
                raise error_from(*report.failure)
            if report is not None:
                reports.append((part, report))
        return reports
