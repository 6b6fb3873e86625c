"""Runs load plans in processes of this machine, started once and used for many runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from loadgen.measurement.gpu import reader_for
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.measurement.server_stats import read_statistics
from loadgen.memory import memory_bytes
from loadgen.sending.children import PATIENCE_S, PAYLOAD, TARGET, LoadProcess, Message, error_from
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun, Watch, WorkerGroup
from loadgen.sending.request_table import (
    BYTES_PER_REQUEST,
    ClosedLog,
    GrowingLog,
    LogTable,
    check_memory,
    create_table_fd,
)
from loadgen.sending.send_loop import PATIENCE_NS, shard_of
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

_START_DELAY_NS = 100_000_000
_CLOSED_LOOP_RATE_MAX_PER_S = 50_000  # one process sends fewer; memory that stays unused takes none


class Generator:
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
        """Send the plan's load to the target, and return when every request has ended.

        `limit_ms` is the latency limit: with it, a backlog that grows without end stops the run. `watch` is
        called about every 0.5 s with the log so far, which ends at the first request whose latency could
        still be under the limit; True stops the run. After a stop, requests that were sent still get their time.

        Raises PlanError if the times do not fit into memory, TargetUnreachable, TargetRefused or PayloadError
        before the load, and WorkerDied during it.
        """
        job = LoadJob(target, plan, payload or Payload(), limit_ms=limit_ms)
        return PlanRun(job=job, workers=self.workers_for(job), watch=watch, gpu=reader_for(target)).execute()

    def workers_for(self, job: LoadJob) -> WorkerGroup:
        """Return the workers that send a plan. Raises PlanError if they cannot."""
        raise NotImplementedError


class LoadGenerator(Generator):
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

    def workers_for(self, job: LoadJob, part: int = 0, parts: int = 1) -> LocalWorkers:
        """Return the processes as a group that sends every `parts`-th request of a plan, from number `part` on.

        Raises PlanError if the times do not fit into memory.
        """
        if not self._workers:
            raise RuntimeError("LoadGenerator is used outside its with block.\nUse `with LoadGenerator() as g:`.")
        return LocalWorkers(workers=self._workers, job=job, start_one=self._start, part=part, parts=parts)


@dataclass(slots=True, kw_only=True)
class LocalWorkers:
    """Load processes that write one table in shared memory, for one run: a `WorkerGroup`."""

    workers: list[LoadProcess]
    job: LoadJob
    start_one: Callable[[], LoadProcess]
    part: int
    parts: int
    results: list[ShardResult] = field(default_factory=list)
    table: LogTable = field(init=False)
    origin_ns: int = 0  # when the load began or will, by the monotonic clock; 0: it was not started
    _fd: int = field(init=False)
    _growing: GrowingLog | ClosedLog = field(init=False)
    _unfinished: list[LoadProcess] = field(default_factory=list)  # they are not free for the next plan
    _end_s: float = 0.0

    def __post_init__(self) -> None:
        """Make a log with its schedule, empty for a closed loop."""
        plan, due_ns = self.job.plan, np.zeros(0, np.int64)
        streamed = self.job.payload.streamed is not None
        if isinstance(plan, ClosedLoopPlan):
            most = math.ceil(plan.duration_s * _CLOSED_LOOP_RATE_MAX_PER_S) * len(self.workers)
            rows = plan.concurrency + min(most, memory_bytes(kind="MemAvailable") // BYTES_PER_REQUEST)
        else:
            check_memory(plan, self.parts, streamed=streamed)
            due_ns = schedule(plan, self.part, self.parts)
            rows = len(due_ns)
        self._fd = create_table_fd(rows, streamed=streamed)
        self.table = LogTable(self._fd, rows, streamed=streamed)
        self.table.scheduled_ns[: len(due_ns)] = due_ns

    def prepare(self) -> None:
        """See `WorkerGroup`."""
        self._unfinished = list(self.workers)
        try:
            for number, worker in enumerate(self.workers):
                worker.send(self._preparation(number), self._fd)
        finally:
            os.close(self._fd)
        answers = [worker.receive() for worker in self.workers]
        failed = next((answer for answer in answers if "error" in answer), None)
        if failed is not None:
            for worker, answer in zip(self.workers, answers, strict=True):
                if "error" not in answer:
                    worker.send({"do": "cancel"})
                    worker.receive()
            self._unfinished = []
            raise error_from(failed["error"], failed["text"])

    def _preparation(self, number: int) -> Message:
        count = len(self.workers)
        shard = shard_of(self.job.plan, self.part * count + number, self.parts * count, limit_ms=self.job.limit_ms)
        payload, streamed = self.job.payload, self.job.payload.streamed is not None
        if streamed:  # a warm-up, a search's loads and other processes send prompts of their own
            payload = replace(payload, seed=self.job.plan.seed * shard.parts + shard.part)
        shard = replace(shard, part=number, parts=count)  # the table has only this group's rows
        return {
            "do": "prepare",
            "rows": self.table.rows,
            "streamed": streamed,
            "shard": asdict(shard),
            "target": TARGET.dump_python(self.job.target, mode="json"),
            "payload": PAYLOAD.dump_python(payload, mode="json"),
        }

    def read_statistics(self) -> dict[str, Any] | None:
        """See `WorkerGroup`."""
        return None if self.job.payload.streamed is not None else read_statistics(self.job.target)

    def start(self, origin_ns: int | None = None) -> int:
        """See `WorkerGroup`; `origin_ns` is the moment, by the monotonic clock, and else soon."""
        self.origin_ns = origin_ns or time.monotonic_ns() + _START_DELAY_NS
        for worker in self.workers:
            worker.send({"do": "start", "origin_ns": self.origin_ns})
        plan = self.job.plan
        closed = isinstance(plan, ClosedLoopPlan)
        late_ns = None
        if not closed and self.job.limit_ms is not None:
            late_ns = round(self.job.limit_ms * 1e6) + PATIENCE_NS  # a response in time may still be in the kernel
        self._growing = ClosedLog(self.table) if closed else GrowingLog(self.table, late_ns)
        self._end_s = time.monotonic() + plan.duration_s + plan.timeout_s + PATIENCE_S
        if isinstance(plan, LoadPlan):
            self._end_s += plan.tail_s
        return self.origin_ns

    def wait(self, timeout_s: float) -> bool:
        """See `WorkerGroup`."""
        if not self._unfinished[0].waits(timeout_s):
            for worker in self.workers:
                worker.check()
        overdue = time.monotonic() >= self._end_s
        for worker in list(self._unfinished):
            if worker.waits(0.0) or overdue:
                answer = worker.receive(within_s=0.0)
                if "error" in answer:
                    raise error_from(answer["error"], answer["text"])
                self.results.append(ShardResult(**{**answer, "notes": tuple(answer["notes"])}))
                self._unfinished.remove(worker)
        return bool(self._unfinished)

    def log(self) -> RequestLog:
        """See `WorkerGroup`."""
        if self._unfinished:
            return self._growing.at(time.monotonic_ns() - self.origin_ns)
        rows = max(result.rows for result in self.results) * len(self.workers)
        return self.table.finished(min(self.table.rows, rows))

    @property
    def losses(self) -> tuple[str, ...]:
        """See `WorkerGroup`."""
        most = self.table.rows // len(self.workers)
        if isinstance(self.job.plan, LoadPlan) or max(result.rows for result in self.results) < most:
            return ()
        return (f"the memory for times was full after {self.table.rows:,} requests, and the load ended early",)

    def stop(self) -> None:
        """See `WorkerGroup`."""
        for worker in self.workers:
            worker.send({"do": "stop"})

    def abandon(self) -> None:
        """Replace the processes if one of them is not free: new ones are half a second away."""
        if self._unfinished:
            for worker in self.workers:
                worker.close()
            self.workers[:] = [self.start_one() for _ in self.workers]
