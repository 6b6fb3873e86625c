"""Runs load plans in processes of this machine, started once and used for many runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from loadgen.measurement.gpu import reader_for
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.memory import memory_bytes
from loadgen.sending.load_process import PATIENCE_S, LoadProcess, error_from
from loadgen.sending.messages import PAYLOAD, TARGET, Message
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun, Watch
from loadgen.sending.request_table import (
    BYTES_PER_REQUEST,
    ClosedLog,
    GrowingLog,
    LogTable,
    check_memory,
    create_table_fd,
)
from loadgen.sending.send_loop import PATIENCE_NS
from loadgen.sending.shard import shard_of
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

_START_DELAY_NS = 100_000_000
_CLOSED_LOOP_RATE_MAX_PER_S = 50_000  # one process sends fewer; memory that stays unused takes none


class Generator(Protocol):
    """Sends plans: `LoadGenerator` from this machine, or workers on other machines."""

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Watch | None = None,
    ) -> LoadRun:
        """See `LoadGenerator.run`."""
        ...


class LoadGenerator:
    """`processes` load processes, from `with` to the end of its block; construction is free.

    The processes ignore Ctrl-C, which only this process handles, and die with the thread that started them.
    `start` starts one.
    """

    def __init__(self, processes: int = 1, start: Callable[[], LoadProcess] = LoadProcess) -> None:
        self._count = processes
        self._start = start
        self._workers: list[LoadProcess] = []

    def __enter__(self) -> Self:
        self._workers = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Watch | None = None,
    ) -> LoadRun:
        """Send the plan's load to the target, and return when every request has ended.

        `limit_ms` is the latency limit: with it, a backlog that grows without end stops the run. `watch` is
        called about every 0.5 s with the log so far, which ends at the first request whose latency could
        still be under the limit; True stops the run. After a stop, requests that were sent still get their time.

        Raises PlanError if the times do not fit into memory, TargetUnreachable, TargetRefused or PayloadError
        before the load, and WorkerDied during it.
        """
        if not self._workers:
            raise RuntimeError(
                "LoadGenerator.run is called outside its with block.\nUse `with LoadGenerator() as g:`."
            )
        job = LoadJob(target, plan, payload or Payload(), limit_ms=limit_ms)
        workers = _LocalWorkers(workers=self._workers, job=job, start_one=self._start)
        return PlanRun(job=job, workers=workers, watch=watch, gpu=reader_for(target)).execute()


@dataclass(slots=True, kw_only=True)
class _LocalWorkers:
    """Load processes that write one table in shared memory, for one run."""

    workers: list[LoadProcess]
    job: LoadJob
    start_one: Callable[[], LoadProcess]
    results: list[ShardResult] = field(default_factory=list)
    _table: LogTable = field(init=False)
    _growing: GrowingLog | ClosedLog = field(init=False)
    _busy: bool = False  # a worker is not free for the next plan
    _unfinished: list[LoadProcess] = field(init=False)
    _origin_ns: int = 0
    _end_s: float = 0.0

    def prepare(self) -> None:
        fd = self._create_table()
        self._busy, self._unfinished = True, list(self.workers)
        try:
            for number, worker in enumerate(self.workers):
                worker.send(self._preparation(number), fd)
        finally:
            os.close(fd)
        answers = [worker.receive() for worker in self.workers]
        failed = next((answer for answer in answers if "error" in answer), None)
        if failed is not None:
            for worker, answer in zip(self.workers, answers, strict=True):
                if "error" not in answer:
                    worker.send({"do": "cancel"})
                    worker.receive()
            self._busy = False
            raise error_from(failed["error"], failed["text"])

    def _preparation(self, number: int) -> Message:
        shard = shard_of(self.job.plan, number, len(self.workers), limit_ms=self.job.limit_ms)
        return {
            "do": "prepare",
            "rows": self._table.rows,
            "streamed": self.job.payload.streamed is not None,
            "shard": asdict(shard),
            "target": TARGET.dump_python(self.job.target, mode="json"),
            "payload": PAYLOAD.dump_python(self.job.payload, mode="json"),
        }

    def _create_table(self) -> int:
        """Make a log with its schedule, empty for a closed loop; return its file descriptor."""
        plan, due_ns = self.job.plan, np.zeros(0, np.int64)
        streamed = self.job.payload.streamed is not None
        if isinstance(plan, ClosedLoopPlan):
            most = math.ceil(plan.duration_s * _CLOSED_LOOP_RATE_MAX_PER_S) * len(self.workers)
            rows = plan.concurrency + min(most, memory_bytes(kind="MemAvailable") // BYTES_PER_REQUEST)
        else:
            check_memory(plan, streamed=streamed)
            due_ns = schedule(plan)
            rows = len(due_ns)
        fd = create_table_fd(rows, streamed=streamed)
        self._table = LogTable(fd, rows, streamed=streamed)
        self._table.scheduled_ns[: len(due_ns)] = due_ns
        return fd

    def read_statistics(self) -> dict[str, Any] | None:
        if self.job.payload.streamed is not None:
            return None
        target = TARGET.dump_python(self.job.target, mode="json")
        self.workers[0].send({"do": "statistics", "target": target})
        statistics: dict[str, Any] | None = self.workers[0].receive()["statistics"]
        self._busy = bool(self._unfinished)
        return statistics

    def start(self) -> None:
        self._origin_ns = time.monotonic_ns() + _START_DELAY_NS
        for worker in self.workers:
            worker.send({"do": "start", "origin_ns": self._origin_ns})
        plan = self.job.plan
        closed = isinstance(plan, ClosedLoopPlan)
        late_ns = None
        if not closed and self.job.limit_ms is not None:
            late_ns = round(self.job.limit_ms * 1e6) + PATIENCE_NS  # a response in time may still be in the kernel
        self._growing = ClosedLog(self._table) if closed else GrowingLog(self._table, late_ns)
        self._end_s = time.monotonic() + plan.duration_s + plan.timeout_s + PATIENCE_S
        if isinstance(plan, LoadPlan):
            self._end_s += plan.tail_s

    def wait(self, timeout_s: float) -> bool:
        if not self._unfinished[0].waits(timeout_s):
            for worker in self.workers:
                worker.check()
        overdue = time.monotonic() >= self._end_s
        for worker in list(self._unfinished):
            if worker.waits(0.0) or overdue:
                answer = worker.receive(within_s=0.0)
                if "error" in answer:
                    raise error_from(answer["error"], answer["text"])
                self.results.append(ShardResult(**answer))
                self._unfinished.remove(worker)
        return bool(self._unfinished)

    def log(self) -> RequestLog:
        if self._unfinished:
            return self._growing.at(time.monotonic_ns() - self._origin_ns)
        rows = max(result.rows for result in self.results) * len(self.workers)
        return self._table.finished(min(self._table.rows, rows))

    @property
    def losses(self) -> tuple[str, ...]:
        most = self._table.rows // len(self.workers)
        if isinstance(self.job.plan, LoadPlan) or max(result.rows for result in self.results) < most:
            return ()
        return (f"the memory for times was full after {self._table.rows:,} requests, and the load ended early",)

    def stop(self) -> None:
        for worker in self.workers:
            worker.send({"do": "stop"})

    def abandon(self) -> None:
        """Replace the processes if one of them is not free: new ones are half a second away."""
        if self._busy:
            for worker in self.workers:
                worker.close()
            self.workers[:] = [self.start_one() for _ in self.workers]
