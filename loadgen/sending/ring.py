"""A request log in a ring buffer: a schedule goes in piece by piece, and settled requests come out again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog, concatenate
from loadgen.sending.request_table import LogTable

NOT_WRITTEN_NS = 1 << 62
"""The due time of a row that the schedule has not reached yet."""

END_NS = NOT_WRITTEN_NS + 1
"""The due time of the row after the last one of each part."""

_ROWS_MIN = 1 << 16
_ROWS_MAX = 10_000_000
_SCHEDULE_AHEAD_S = 6.0  # the ring holds so much schedule beyond the requests that may be unanswered


def rows_for(rate_per_s: float, timeout_s: float, parts: int) -> int:
    """Return the rows for all requests that may be unanswered and a few seconds of schedule ahead.

    It is a multiple of `parts`. With fewer rows the schedule would get late, which shows as send lag.
    """
    rows = max(_ROWS_MIN, math.ceil(1.2 * rate_per_s * (timeout_s + _SCHEDULE_AHEAD_S)))
    return -(-min(rows, _ROWS_MAX) // parts) * parts


class RingLog:
    """One side of the log; the `RingSendLoop`s of `parts` processes are the other. Call `turn` every 0.5 s."""

    def __init__(self, table: LogTable, pieces: Iterator[NDArray[np.int64]], parts: int = 1) -> None:
        self._parts = parts
        self._table = table
        self._pieces = pieces
        self._drawn = np.zeros(0, np.int64)  # and not written yet
        self._written = 0
        self._taken = 0
        self._last_taken_ns = 0
        self._ended = False
        table.scheduled_ns[:] = NOT_WRITTEN_NS
        self._fill()

    def turn(self) -> RequestLog:
        """Return copies of the rows that have been settled since the last turn, in the order of the schedule.

        A row is settled if it and all before it have ended.
        """
        taken = [self._take(), self._take()]  # up to the end of the table, and on from its beginning
        self._fill()
        return concatenate(taken)

    def rest(self) -> RequestLog:
        """Return all requests that were sent and not taken yet, after all have ended."""
        rows = np.arange(self._taken, self._written) % self._table.rows
        rows = rows[self._table.sent_ns[rows] != 0]
        return self._copy(rows)

    @property
    def settled_until_ns(self) -> int:
        """The time before which all requests that were due have ended and were taken."""
        next_ns = int(self._table.scheduled_ns[self._taken % self._table.rows])
        return self._last_taken_ns if next_ns == NOT_WRITTEN_NS else next_ns

    def _take(self) -> RequestLog:
        start = self._taken % self._table.rows
        end = min(start + self._written - self._taken, self._table.rows)
        waiting = np.flatnonzero(self._table.done_ns[start:end] == 0)
        rows = slice(start, start + int(waiting[0]) if len(waiting) else end)
        log = self._copy(rows)
        self._table.scheduled_ns[rows] = NOT_WRITTEN_NS
        self._table.sent_ns[rows] = 0
        self._table.done_ns[rows] = 0
        self._table.outcome[rows] = 0
        self._taken += len(log)
        if len(log):
            self._last_taken_ns = int(log.scheduled_ns[-1])
        return log

    def _copy(self, rows: slice | NDArray[np.intp]) -> RequestLog:
        table = self._table
        return RequestLog(
            scheduled_ns=table.scheduled_ns[rows].copy(),
            sent_ns=table.sent_ns[rows].copy(),
            done_ns=table.done_ns[rows].copy(),
            outcome=table.outcome[rows].copy(),
        )

    def _fill(self) -> None:
        """Write more of the schedule, as far as there is room.

        The next row of each part then has the due time `NOT_WRITTEN_NS`, or `END_NS` if there is none.
        """
        rows = self._table.rows
        while not self._ended and (room := rows - self._parts - (self._written - self._taken)) > 0:
            start = self._written % rows
            if not len(self._drawn):
                piece = next(self._pieces, None)
                self._ended = piece is None
                self._drawn = self._drawn if piece is None else piece
                if self._ended:
                    self._table.scheduled_ns[np.arange(start, start + self._parts) % rows] = END_NS
            count = min(len(self._drawn), room, rows - start)
            self._table.scheduled_ns[start : start + count] = self._drawn[:count]
            self._drawn = self._drawn[count:]
            self._written += count
