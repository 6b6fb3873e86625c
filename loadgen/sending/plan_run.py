"""One run of a plan, whichever workers send it: prepare, start, look, stop, collect, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from loadgen.measurement.gpu import GpuSampler, ReadSample
from loadgen.measurement.request_log import Measurement, RequestLog
from loadgen.measurement.result import ShardResult, measurement_of
from loadgen.measurement.server_stats import cold_text, stand_still, statistics_remarks, timings_between
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target, stranger_text
from loadgen.status import UNFINISHED
from loadgen.traffic.arrivals import schedule

Watch = Callable[[RequestLog], bool]
StopReason = Literal["overloaded", "watch"]

WARMER = "test again, or warm it up (--warmup, or model_warmup in its config.pbtxt)"
_LOOK_PERIOD_S = 0.5
_UNCOUNTED_MIN = 10
_WATCH_TIME_FRACTION = 0.1  # a watch takes at most a tenth of the time: after a slow look the next one waits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One finished run. `stopped`: None if the plan was sent to its end. `began_ns`: its start, monotonic."""

    log: RequestLog
    measurement: Measurement
    stopped: StopReason | None
    began_ns: int = 0


@dataclass(frozen=True, slots=True)
class LoadJob:
    """All that the workers of a run need."""

    target: Target
    plan: LoadPlan | ClosedLoopPlan
    payload: Payload
    limit_ms: float | None


class WorkerGroup(Protocol):
    """Workers that send one plan together: processes of this machine, or workers on several machines."""

    def prepare(self) -> None:
        """Give each worker its shard. Return when all have connected and have tried a request."""

    def read_statistics(self) -> dict[str, Any] | None:
        """Return the server's counters; None if they cannot be read."""

    def start(self) -> int:
        """Start all workers at the same moment; return it, in ns of the monotonic clock."""

    def wait(self, timeout_s: float) -> bool:
        """Return when a worker reports something, or after the time-out; False when all shards have ended.

        Raises WorkerDied, and the errors that workers report.
        """

    @property
    def results(self) -> Sequence[ShardResult]:
        """The results of the shards that have ended."""

    @property
    def losses(self) -> tuple[str, ...]:
        """One sentence for each worker that was lost after the start, or for a load that ended early."""

    def log(self) -> RequestLog:
        """Return the requests before the first whose latency is not known yet; all of them after the run."""

    def stop(self) -> None:
        """Ask all workers to send nothing that is due later."""

    def abandon(self) -> None:
        """Make the workers ready for another plan after a run that failed."""


@dataclass(slots=True, kw_only=True)
class PlanRun:
    """A job, the workers that do it, and what looks at it. See `LoadGenerator.run`."""

    job: LoadJob
    workers: WorkerGroup
    watch: Watch | None
    gpu: ReadSample | None
    _stopped: StopReason | None = field(default=None, init=False)
    _next_watch_s: float = field(default=0.0, init=False)
    _tail_ended: bool = field(default=False, init=False)
    _began_ns: int = field(default=0, init=False)
    _measured: int | None = field(default=None, init=False)  # the requests before the tail; None: all

    def execute(self) -> LoadRun:
        """Send the plan, and return when every request has ended."""
        workers, plan = self.workers, self.job.plan
        if isinstance(plan, LoadPlan) and plan.tail_s:
            self._measured = int(np.searchsorted(schedule(plan), round(plan.duration_s * 1e9)))
        try:
            workers.prepare()
            before = workers.read_statistics()
            with GpuSampler(self.gpu) as gpu:
                self._send()
            after = workers.read_statistics()
        except BaseException:
            workers.abandon()
            raise
        server = timings_between(before, after)
        cold = cold_text(server) or next((one.cold for one in workers.results if one.cold), "")
        notes = dict.fromkeys(note for result in workers.results for note in result.notes)
        log, cold_remarks = self._log(), [f"{cold}: {WARMER}"] if cold else []
        measurement = measurement_of(
            log,
            self.job.plan,
            workers.results,
            limit_ms=self.job.limit_ms,
            server=server,
            gpu=gpu.use,
            remarks=(*notes, *statistics_remarks(before, after), *cold_remarks),
            stopped=self._stopped is not None,
        )
        in_front = (*_uncounted(measurement, still=stand_still(before, after)), *measurement.in_front)
        measurement = replace(
            measurement,
            problems=(*measurement.problems, *workers.losses),
            cold=cold,
            in_front=tuple(stranger_text(text, self.job.target.headers) for text in in_front),
        )
        return LoadRun(log=log, measurement=measurement, stopped=self._stopped, began_ns=self._began_ns)

    def _send(self) -> None:
        self._began_ns = self.workers.start()
        next_look_s = time.monotonic() + _LOOK_PERIOD_S
        while self.workers.wait(max(0.0, next_look_s - time.monotonic())):
            self._stop_if_overloaded()
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + _LOOK_PERIOD_S
                self._show()
                self._end_tail()
        self._stop_if_overloaded()

    def _show(self) -> None:
        """Let the watch look at the log so far."""
        began_s = time.monotonic()
        if self.watch is None or self._stopped is not None or began_s < self._next_watch_s:
            return
        log = self._log()
        if self.watch(log):
            if self._measured is not None:
                self._measured = len(log)  # the others end without load behind them
            self._stop("watch")
        self._next_watch_s = began_s + (time.monotonic() - began_s) / _WATCH_TIME_FRACTION

    def _log(self) -> RequestLog:
        """Return the requests that are measured, as far as they are known."""
        log = self.workers.log()
        return log if self._measured is None else log.rows(0, self._measured)

    def _end_tail(self) -> None:
        """Stop the load when all requests that are measured have ended."""
        if self._measured is None or self._stopped is not None or self._tail_ended:
            return
        log = self._log()
        if len(log) >= self._measured and UNFINISHED not in log.outcome:
            self._tail_ended = True
            self.workers.stop()

    def _stop_if_overloaded(self) -> None:
        if self._stopped is None and any(result.overloaded for result in self.workers.results):
            self._stop("overloaded")

    def _stop(self, reason: StopReason) -> None:
        self._stopped = reason
        self.workers.stop()


def _uncounted(measurement: Measurement, *, still: bool) -> tuple[str, ...]:
    """Return a sentence if requests succeeded of which the server's counters know nothing."""
    answered = measurement.n - sum(measurement.errors.values())
    if not still or answered < _UNCOUNTED_MIN:
        return ()
    return (
        f"{answered:,} requests succeeded, and the server's own counters did not move: something else answered",
    )
