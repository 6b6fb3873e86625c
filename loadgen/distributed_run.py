"""One plan on its way through workers on other machines: clocks, shares, rows, and who was lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gevent
import numpy as np

from loadgen import distributed_messages as kinds
from loadgen.errors import WorkerDied
from loadgen.load_process import error_from
from loadgen.measurement import RequestLog, concatenate, no_rows
from loadgen.runner import LoadRun
from loadgen.server_stats import statistics_remarks, timings_between
from loadgen.share import ShareResult
from loadgen.summary import circumstances_of, measurement_of, measurement_of_tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from loadgen.distributed_messages import Message
    from loadgen.plan import LoadPlan, Payload, Target
    from loadgen.runner import Watch
    from loadgen.tally import Tally

_START_IN_NS = 1_000_000_000
_CLOCK_ROUNDS = 10
_ANSWER_S = 10.0
_WATCH_EVERY_S = 0.5
_WATCH_SHARE = 0.1  # of the master's time, at most, goes into looking at the growing log
_POLL_S = 0.01


class Workers(Protocol):
    """How a run reaches its workers."""

    @property
    def connected(self) -> list[str]:
        """Who is there now."""

    def send(self, kind: str, worker: str, message: Message) -> None:
        """To one worker."""

    def receive(self, kind: str, worker: str) -> Message | None:
        """The oldest message of a kind that was not taken yet."""

    def awaited(self, kind: str, worker: str, timeout_s: float) -> Message:
        """The next message of a kind. Raises what the worker reports instead, or WorkerDied after the time-out."""


@dataclass(slots=True, kw_only=True)
class _Part:
    """What has come of one worker's share."""

    worker: str
    offset_ns: int  # its clock minus ours
    rows: list[RequestLog] = field(default_factory=list)
    n: int = 0  # requests that are known
    until_ns: int = 0  # all its requests that were due before have ended, and their rows are here
    result: ShareResult | None = None
    lost: bool = False

    @property
    def ended(self) -> bool:
        return self.lost or self.result is not None


class DistributedRun:
    """One plan on its way through the workers."""

    def __init__(
        self,
        generator: Workers,
        number: int,
        workers: Sequence[str],
        target: Target,
        plan: LoadPlan,
        payload: Payload,
        *,
        limit_ms: float | None,
        watch: Watch | None,
        tally: Tally | None,
    ) -> None:
        self._tally = tally
        self._generator = generator
        self._number = number
        self._target = target
        self._plan = plan
        self._payload = payload
        self._limit_ms = limit_ms
        self._watch = watch
        self._stopped: Literal["overloaded", "watch"] | None = None
        self._parts = [_Part(worker=worker, offset_ns=self._clock_offset_ns(worker)) for worker in workers]

    def carried_out(self) -> LoadRun:
        """The run with the logs of all workers. See `DistributedGenerator.run`."""
        try:
            self._prepare()
            before = self._statistics()
            self._load()
            after = self._statistics()
        except BaseException:
            self._tell_to_stop()
            raise
        results = [part.result for part in self._parts if part.result is not None]
        if not results:
            raise WorkerDied("every worker was lost while the load ran.\nNothing is known; start them again.")
        circumstances = circumstances_of(
            results,
            limit_ms=self._limit_ms,
            server=timings_between(before, after),
            remarks=statistics_remarks(before, after),
            gpu=None,
            stopped=self._stopped is not None,
        )
        if self._tally is None:
            log = self._log_until(None)
            measurement = measurement_of(log, self._plan, **circumstances)
        else:
            log = no_rows()
            self._count_until(None)
            measurement = measurement_of_tally(self._tally, self._plan, **circumstances)
        lost = tuple(
            f"the worker {part.worker} was lost: only {part.n} of its requests are known"
            for part in self._parts
            if part.lost
        )
        measurement = replace(measurement, problems=(*measurement.problems, *lost))
        return LoadRun(log=log, measurement=measurement, stopped=self._stopped, tally=self._tally)

    def _clock_offset_ns(self, worker: str) -> int:
        """The worker's clock minus ours, from the quickest of several questions; wrong by half its way at most."""
        answers = []
        for _ in range(_CLOCK_ROUNDS):
            asked_ns = time.monotonic_ns()
            self._generator.send(kinds.CLOCK, worker, {"run": self._number})
            there_ns: int = self._generator.awaited(kinds.CLOCK, worker, _ANSWER_S)["here_ns"]
            now_ns = time.monotonic_ns()
            answers.append((now_ns - asked_ns, there_ns - (asked_ns + now_ns) // 2))
        return min(answers)[1]

    def _prepare(self) -> None:
        """Give every worker its share; returns when all have connected and tried a request."""
        message = {
            "run": self._number,
            "parts": len(self._parts),
            "plan": kinds.plan_to_message(self._plan),
            "target": kinds.target_to_message(self._target),
            "payload": kinds.payload_to_message(self._payload),
            "limit_ms": self._limit_ms,
            "laps": self._tally is not None,
        }
        for number, part in enumerate(self._parts):
            self._generator.send(kinds.PREPARE, part.worker, {**message, "part": number})
        for part in self._parts:
            self._generator.awaited(kinds.PREPARED, part.worker, _ANSWER_S + 2 * self._plan.timeout_s)

    def _statistics(self) -> dict[str, Any] | None:
        """The server's counters, asked by the first worker that is there; None where nobody can tell."""
        for part in self._parts:
            if part.lost:
                continue
            question = {"run": self._number, "target": kinds.target_to_message(self._target)}
            self._generator.send(kinds.STATISTICS, part.worker, question)
            try:
                answer = self._generator.awaited(kinds.STATISTICS, part.worker, _ANSWER_S)
            except WorkerDied:
                return None
            statistics: dict[str, Any] | None = answer["statistics"]
            return statistics
        return None

    def _load(self) -> None:
        origin_ns = time.monotonic_ns() + _START_IN_NS
        for part in self._parts:
            self._generator.send(
                kinds.START, part.worker, {"run": self._number, "origin_ns": origin_ns + part.offset_ns}
            )
        next_look = time.monotonic() + _WATCH_EVERY_S
        while not all(part.ended for part in self._parts):
            gevent.sleep(_POLL_S)
            self._collect()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + self._look()

    def _collect(self) -> None:
        """Take what the workers have sent, and notice who is gone."""
        there = self._generator.connected
        for part in self._parts:
            for message in self._messages(kinds.ROWS, part.worker):
                rows = kinds.rows_from_message(message["rows"])
                part.rows.append(rows)
                part.n += len(rows)
                part.until_ns = message["until_ns"]
            for message in self._messages(kinds.DONE, part.worker):
                part.result = ShareResult(**message["result"])
                if part.result.overloaded:
                    self._stop("overloaded")
            failure = self._generator.receive(kinds.FAILED, part.worker)
            if failure is not None:
                raise error_from(failure)
            if not part.ended and part.worker not in there:
                part.lost = True

    def _messages(self, kind: str, worker: str) -> Iterator[Message]:
        while (message := self._generator.receive(kind, worker)) is not None:
            if message["run"] == self._number:
                yield message

    def _look(self) -> float:
        """Show the log so far to whoever watches; returns in how many seconds to look again."""
        started = time.monotonic()
        until_ns = min((part.until_ns for part in self._parts if not part.lost), default=0)
        if self._tally is not None:
            log = self._count_until(until_ns)
            if self._watch is not None and self._stopped is None and self._watch(log):
                self._stop("watch")
        elif self._watch is not None and self._stopped is None and self._watch(self._log_until(until_ns)):
            self._stop("watch")
        return max(_WATCH_EVERY_S, (time.monotonic() - started) / _WATCH_SHARE)

    def _log_until(self, until_ns: int | None) -> RequestLog:
        """All rows so far in the order of the schedule, or those that were due before `until_ns`."""
        logs = [log for part in self._parts for log in part.rows]
        merged = concatenate(logs) if logs else no_rows()
        return merged if until_ns is None else merged.between(0.0, until_ns / 1e9)

    def _count_until(self, until_ns: int | None) -> RequestLog:
        """Put into the tally, and drop, what was due before `until_ns`; returns it."""
        assert self._tally is not None
        merged = self._log_until(None)
        end = len(merged) if until_ns is None else int(np.searchsorted(merged.scheduled_ns, until_ns))
        for part in self._parts:
            part.rows = []
        self._parts[0].rows = [merged.rows(end, len(merged))]
        known = merged.rows(0, end)
        self._tally.add(known)
        return known

    def _stop(self, reason: Literal["overloaded", "watch"]) -> None:
        if self._stopped is not None:
            return
        self._stopped = reason
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        for part in self._parts:
            if not part.ended:
                self._generator.send(kinds.STOP, part.worker, {"run": self._number})
