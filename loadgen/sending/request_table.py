"""The request log while it grows: a table in memory that the load processes write and the parent reads."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PlanError
from loadgen.measurement.request_log import ROW_BYTES, RequestLog
from loadgen.measurement.streams import STREAM_DTYPE
from loadgen.memory import memory_bytes
from loadgen.spec.plan import LoadPlan
from loadgen.status import UNFINISHED
from loadgen.traffic.arrivals import schedule
from loadgen.wire.stream_wire import Reply

BYTES_PER_REQUEST = 2 * ROW_BYTES
"""The memory that a run needs per request: its row, and as much again while the figures are computed."""


def check_memory(plan: LoadPlan, parts: int = 1, *, streamed: bool = False) -> None:
    """Raise PlanError if one of `parts` equal shares of the plan does not fit into the memory that is free."""
    requests, free = plan.expected_requests / parts, memory_bytes(kind="MemAvailable")
    row_bytes = _size(1, streamed=streamed)
    needed = requests * row_bytes * BYTES_PER_REQUEST // ROW_BYTES
    if needed > free:
        raise PlanError(
            f"{requests:,.0f} requests take {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free: "
            f"{row_bytes} bytes each for their times, and as many for the figures.\n"
            f"Use a duration of at most {plan.duration_s * free / needed:.0f} s, or a lower rate."
        )


class LogTable:
    """`rows` requests in anonymous shared memory, one column after the other, 25 bytes per row, or more.

    Nothing is copied between processes: every worker writes its own rows, and the log of a finished run is a
    view. A time of 0 means "not yet": the loop never records a send or an end at 0.
    """

    def __init__(self, fd: int, rows: int, *, streamed: bool = False) -> None:
        self.rows = rows
        self._map = mmap.mmap(fd, _size(rows, streamed=streamed))
        self.scheduled_ns: NDArray[np.int64] = self._column(0)
        self.sent_ns: NDArray[np.int64] = self._column(1)
        self.done_ns: NDArray[np.int64] = self._column(2)
        self.outcome: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, rows, 24 * rows)
        self.streams: NDArray[np.void] | None = None
        if streamed:
            self.streams = np.frombuffer(self._map, STREAM_DTYPE, rows, ROW_BYTES * rows)

    def _column(self, number: int) -> NDArray[np.int64]:
        return np.frombuffer(self._map, np.int64, self.rows, 8 * self.rows * number)

    def notes_replies(self, part: int, parts: int, origin_ns: int) -> Callable[[int, Reply], None]:
        """Return what writes the replies of a shard into its rows, with times since `origin_ns`."""
        assert self.streams is not None
        rows = self.streams[part::parts]

        def note(row: int, reply: Reply) -> None:
            first_ns, last_ns = (at_ns - origin_ns if at_ns else 0 for at_ns in (reply.first_ns, reply.last_ns))
            counts = (reply.tokens_in, reply.tokens_out, reply.cached_tokens, reply.chunks, *reply.streamed_tokens)
            rows[row] = (first_ns, last_ns, reply.longest_gap_ns, *counts, reply.finish_kind.encode())

        return note

    def finished(self, rows: int) -> RequestLog:
        """Return all requests that were sent, in the order of the schedule; they are among the first `rows`.

        Call it after the workers have written their last row.
        """
        log = self.rows_until(rows)
        count = int(np.count_nonzero(log.sent_ns))
        without_holes = bool(log.sent_ns[:count].all())  # else: several workers, stopped at different rows
        log = log.rows(0, count) if without_holes else log.part(np.flatnonzero(log.sent_ns != 0))
        if np.any(log.scheduled_ns[1:] < log.scheduled_ns[:-1]):  # closed loop: users of several workers
            log = log.part(np.argsort(log.scheduled_ns, kind="stable"))
        return log

    def rows_until(self, end: int) -> RequestLog:
        """Return the first rows as they are now, as views."""
        return RequestLog(
            scheduled_ns=self.scheduled_ns[:end],
            sent_ns=self.sent_ns[:end],
            done_ns=self.done_ns[:end],
            outcome=self.outcome[:end],
            streams=None if self.streams is None else self.streams[:end],
        )


def _size(rows: int, *, streamed: bool) -> int:
    return max(1, rows * (ROW_BYTES + streamed * STREAM_DTYPE.itemsize))


def create_table_fd(rows: int, *, streamed: bool = False) -> int:
    """Return a file descriptor of zeroed memory for so many rows. It has no name, so nothing can stay behind."""
    fd = os.memfd_create("request-log")
    os.ftruncate(fd, _size(rows, streamed=streamed))
    return fd


def planned_table(plan: LoadPlan) -> LogTable:
    """Return a log with a plan's schedule that only this process uses. Raises PlanError if it does not fit."""
    check_memory(plan)
    due_ns = schedule(plan)
    table = own_table(len(due_ns))
    table.scheduled_ns[:] = due_ns
    return table


def own_table(rows: int, *, streamed: bool = False) -> LogTable:
    """Return an empty log that only this process uses."""
    fd = create_table_fd(rows, streamed=streamed)
    try:
        return LogTable(fd, rows, streamed=streamed)
    finally:
        os.close(fd)


class GrowingLog:
    """The part of a growing table that can be judged without bias.

    A log without the requests in flight would be a log without the slow ones. So the part ends at the first
    request that is neither done nor older than `late_ns`. An older one is in it as `UNFINISHED`, with the time
    that it has taken so far.
    """

    def __init__(self, table: LogTable, late_ns: int | None) -> None:
        self._table = table
        self._late_ns = late_ns
        self._settled = 0  # all rows before this one are done

    def at(self, now_ns: int) -> RequestLog:
        """Return the part that is known at `now_ns` after the start of the run."""
        table = self._table
        due = int(np.searchsorted(table.scheduled_ns, now_ns))
        waiting = self._settled + np.flatnonzero(table.done_ns[self._settled : due] == 0)
        self._settled = int(waiting[0]) if len(waiting) else due
        young = waiting
        if self._late_ns is not None:
            young = waiting[table.scheduled_ns[waiting] >= now_ns - self._late_ns]
        end = int(young[0]) if len(young) else due
        part, late = table.rows_until(end), waiting[waiting < end]
        if not len(late):
            return part
        sent, done, outcome = part.sent_ns.copy(), part.done_ns.copy(), part.outcome.copy()
        sent[late[sent[late] == 0]] = now_ns
        done[late] = now_ns
        outcome[late] = UNFINISHED
        return replace(part, sent_ns=sent, done_ns=done, outcome=outcome)


class ClosedLog:
    """The requests of a closed loop that are done, without the one that each user has in flight."""

    _BLOCK = 4096

    def __init__(self, table: LogTable) -> None:
        self._table = table
        self._started = 0  # no row after this one has been looked at

    def at(self, now_ns: int) -> RequestLog:  # noqa: ARG002 - as a GrowingLog
        """Return the requests that are done now."""
        while self._table.sent_ns[self._started : self._started + self._BLOCK].any():
            self._started += self._BLOCK
        log = self._table.rows_until(self._started)
        # numpy counts before it collects, and fails if another process writes in between: hence a copy.
        return log.part(np.flatnonzero(log.done_ns != 0))
