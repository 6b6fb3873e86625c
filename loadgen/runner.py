"""Runs load plans in processes of their own, started once and used for many runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from loadgen import errors
from loadgen.arrivals import peak_rate_per_s, schedule_pieces
from loadgen.gpu import GpuSampler, reader_for
from loadgen.laps import Laps, rows_for
from loadgen.load_process import PATIENCE_S, LoadProcess, error_from
from loadgen.measurement import Measurement, RequestLog, no_rows
from loadgen.messages import payload_to_json, target_to_json
from loadgen.plan import ClosedLoopPlan, LoadPlan, Payload, Target
from loadgen.send_loop import PATIENCE_NS
from loadgen.server_stats import statistics_remarks, timings_between
from loadgen.share import Share, ShareResult
from loadgen.shared_log import ClosedLog, GrowingLog, LogTable, create_table_fd
from loadgen.summary import circumstances_of, measurement_of, measurement_of_tally

if TYPE_CHECKING:
    from types import TracebackType

    from loadgen.tally import Tally

Watch = Callable[[RequestLog], bool]

_WATCH_EVERY_S = 0.5
_MOST_KEPT = 100_000_000
_START_IN_NS = 100_000_000
_FASTEST_CLOSED_LOOP_PER_S = 50_000  # by one process; memory that is not used is not taken


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One finished run. `stopped`: None when the plan was carried out to its end.

    `tally`: the run was too long to keep its rows, and the log is empty.
    """

    log: RequestLog
    measurement: Measurement
    stopped: Literal["overloaded", "watch"] | None
    tally: Tally | None = None


class LoadGenerator:
    """`processes` load processes, from `with` to the end of its block; construction is free.

    The processes ignore Ctrl-C, which reaches this process alone, and die with the thread that started them.
    """

    def __init__(self, processes: int = 1) -> None:
        if processes < 1:
            raise errors.PlanError(f"{processes} load processes send nothing.\nUse 1 or more.")
        self._count = processes
        self._workers: list[LoadProcess] = []

    def __enter__(self) -> Self:
        self._workers = [LoadProcess() for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the load processes; empty outside the `with` block."""
        return [worker.pid for worker in self._workers]

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Watch | None = None,
        tally: Tally | None = None,
    ) -> LoadRun:
        """Send the plan's load to the target, and return when every request has ended.

        `limit_ms` is the latency limit: with it, a backlog that grows without end stops the run. `watch` is
        called about every 0.5 s with the log so far, which ends at the first request whose latency could
        still be under the limit; True stops the run. What was sent is waited for in any case.

        With a `tally`, requests are counted there as they end, and none is kept: memory stays the same however
        long the run. `watch` then gets the requests that it has not seen yet, all of them ended.

        Raises TargetUnreachable, TargetRefused, PayloadError before the load, WorkerDied during it.
        """
        if not self._workers:
            raise RuntimeError(
                "LoadGenerator.run is called outside its with block.\nUse `with LoadGenerator() as g:`."
            )
        run = _Run(self._workers, target, plan, payload or Payload(), limit_ms, watch, tally)
        try:
            return run.carried_out()
        finally:
            if not run.workers_are_free:
                self._replace_workers()

    def _replace_workers(self) -> None:
        """After an interrupt or a death nobody knows where they stand; new ones are half a second away."""
        for worker in self._workers:
            worker.close()
        self._workers = [LoadProcess() for _ in range(self._count)]


class _Run:
    """One plan on its way through the workers."""

    def __init__(
        self,
        workers: list[LoadProcess],
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        payload: Payload,
        limit_ms: float | None,
        watch: Watch | None,
        tally: Tally | None,
    ) -> None:
        self._tally = tally
        self._laps: Laps | None = None
        self._workers = workers
        self._target = target
        self._plan = plan
        self._payload = payload
        self._limit_ms = limit_ms
        self._watch = watch
        self._stopped: Literal["overloaded", "watch"] | None = None
        self.workers_are_free = True  # to take the next plan

    def carried_out(self) -> LoadRun:
        table = self._prepare()
        before = self._statistics()
        with GpuSampler(reader_for(self._target)) as gpu:
            results = self._load(table)
        after = self._statistics()
        self.workers_are_free = True
        circumstances = circumstances_of(
            results,
            limit_ms=self._limit_ms,
            server=timings_between(before, after),
            remarks=statistics_remarks(before, after),
            gpu=gpu.use,
            stopped=self._stopped is not None,
        )
        if self._tally is not None and self._laps is not None:
            self._tally.add(self._laps.turn())
            self._tally.add(self._laps.rest())
            measurement = measurement_of_tally(self._tally, self._plan, **circumstances)
            return LoadRun(log=no_rows(), measurement=measurement, stopped=self._stopped, tally=self._tally)
        log = table.finished(self._rows_used(results, table.rows))
        measurement = measurement_of(log, self._plan, **circumstances)
        return LoadRun(log=log, measurement=measurement, stopped=self._stopped)

    def _prepare(self) -> LogTable:
        """Give every worker its share; returns when all have connected and tried a request."""
        table, fd = self._table()
        self.workers_are_free = False
        try:
            for number, worker in enumerate(self._workers):
                worker.send(
                    {
                        "do": "prepare",
                        "rows": table.rows,
                        "share": asdict(self._share(number)),
                        "target": target_to_json(self._target),
                        "payload": payload_to_json(self._payload),
                    },
                    fd,
                )
        finally:
            os.close(fd)
        answers = [worker.receive() for worker in self._workers]
        failed = next((answer for answer in answers if "error" in answer), None)
        if failed is not None:
            for worker, answer in zip(self._workers, answers, strict=True):
                if "error" not in answer:
                    worker.send({"do": "cancel"})
                    worker.receive()
            self.workers_are_free = True
            raise error_from(failed)
        return table

    def _share(self, number: int) -> Share:
        plan, parts = self._plan, len(self._workers)
        if isinstance(plan, ClosedLoopPlan):
            rate_per_s, cap, concurrency = None, None, (plan.concurrency + number) // parts
        else:
            rate_per_s, concurrency = peak_rate_per_s(plan) / parts, None
            cap = None if plan.max_in_flight is None else max(1, (plan.max_in_flight + number) // parts)
        return Share(
            part=number,
            parts=parts,
            timeout_s=plan.timeout_s,
            rate_per_s=rate_per_s,
            limit_ms=self._limit_ms,
            duration_s=plan.duration_s,
            max_in_flight=cap,
            concurrency=concurrency,
            laps=self._laps is not None,
        )

    def _table(self) -> tuple[LogTable, int]:
        """An empty log with its schedule, or the beginning of it, and its file descriptor."""
        plan, parts = self._plan, len(self._workers)
        if isinstance(plan, ClosedLoopPlan):
            return _empty_table(plan.concurrency + math.ceil(plan.duration_s * _FASTEST_CLOSED_LOOP_PER_S) * parts)
        if self._tally is not None:
            table, fd = _empty_table(rows_for(peak_rate_per_s(plan), plan.timeout_s, parts))
            self._laps = Laps(table, schedule_pieces(plan), parts)
            return table, fd
        if plan.expected_requests > _MOST_KEPT:
            raise errors.PlanError(
                f"{plan.expected_requests:.3g} requests are too many to keep every time of.\nGive a tally."
            )
        table, fd = _empty_table(sum(map(len, schedule_pieces(plan))))
        at = 0
        for piece in schedule_pieces(plan):
            table.scheduled_ns[at : at + len(piece)] = piece
            at += len(piece)
        return table, fd

    def _rows_used(self, results: list[ShareResult], rows: int) -> int:
        return min(rows, max(result.rows for result in results) * len(self._workers))

    def _statistics(self) -> dict[str, Any] | None:
        self._workers[0].send({"do": "statistics", "target": target_to_json(self._target)})
        statistics: dict[str, Any] | None = self._workers[0].receive()["statistics"]
        return statistics

    def _load(self, table: LogTable) -> list[ShareResult]:
        origin_ns = time.monotonic_ns() + _START_IN_NS
        for worker in self._workers:
            worker.send({"do": "start", "origin_ns": origin_ns})
        # An answer that came in time may still be in the kernel.
        late_ns = None if self._limit_ms is None else round(self._limit_ms * 1e6) + PATIENCE_NS
        closed = isinstance(self._plan, ClosedLoopPlan)
        growing = ClosedLog(table) if closed else GrowingLog(table, late_ns)
        results: list[ShareResult] = []
        give_up = time.monotonic() + self._plan.duration_s + self._plan.timeout_s + PATIENCE_S
        for worker in self._workers:
            next_look = time.monotonic() + _WATCH_EVERY_S
            while not worker.waits(max(0.0, next_look - time.monotonic())) and time.monotonic() < give_up:
                next_look = time.monotonic() + _WATCH_EVERY_S
                for each in self._workers:
                    each.check()
                self._look(growing, time.monotonic_ns() - origin_ns)
            answer = worker.receive(within_s=0.0)
            if "error" in answer:
                raise error_from(answer)
            result = ShareResult(**answer)
            results.append(result)
            if result.overloaded and self._stopped is None:
                self._stop("overloaded")
        return results

    def _look(self, growing: GrowingLog | ClosedLog, now_ns: int) -> None:
        """Count what has ended, and show whoever watches."""
        if self._tally is not None and self._laps is not None:
            log = self._laps.turn()
            self._tally.add(log)
            if self._watch is not None and self._stopped is None and self._watch(log):
                self._stop("watch")
        elif self._watch is not None and self._stopped is None and self._watch(growing.at(now_ns)):
            self._stop("watch")

    def _stop(self, reason: Literal["overloaded", "watch"]) -> None:
        self._stopped = reason
        for worker in self._workers:
            worker.send({"do": "stop"})


def _empty_table(rows: int) -> tuple[LogTable, int]:
    fd = create_table_fd(rows)
    return LogTable(fd, rows), fd
