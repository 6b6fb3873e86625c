"""A circular request log: a schedule goes in piece by piece, and what is settled comes out again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from loadgen.measurement import RequestLog, concatenate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from loadgen.shared_log import LogTable

NOT_WRITTEN_NS = 1 << 62
"""Stands as the due time of a row until the schedule has got there."""

END_NS = NOT_WRITTEN_NS + 1
"""Stands as the due time of the row after each part's last."""

_LEAST_ROWS = 1 << 16
_MOST_ROWS = 10_000_000
_AHEAD_S = 6.0  # of schedule beyond what may still be unanswered


def rows_for(rate_per_s: float, timeout_s: float, parts: int) -> int:
    """Rows for all requests that may be unanswered and a few seconds of schedule ahead; a multiple of `parts`.

    With fewer the schedule would get late, which shows as send lag.
    """
    rows = max(_LEAST_ROWS, math.ceil(1.2 * rate_per_s * (timeout_s + _AHEAD_S)))
    return -(-min(rows, _MOST_ROWS) // parts) * parts


class Laps:
    """One side of the log; the other are the `LapLoop`s of `parts` load processes. Call `turn` twice a second."""

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
        """Copies of the rows that have been settled since the last turn, in the order of the schedule.

        Rows are settled when they and all before them have ended.
        """
        taken = [self._take(), self._take()]  # up to the end of the table, and on from its beginning
        self._fill()
        return concatenate(taken)

    def rest(self) -> RequestLog:
        """Every request that left and was not taken yet; for the end of the run, when all have ended."""
        rows = np.arange(self._taken, self._written) % self._table.rows
        rows = rows[self._table.sent_ns[rows] != 0]
        return self._copied(rows)

    @property
    def settled_until_ns(self) -> int:
        """All requests due before this time have ended, and were taken."""
        next_ns = int(self._table.scheduled_ns[self._taken % self._table.rows])
        return self._last_taken_ns if next_ns == NOT_WRITTEN_NS else next_ns

    def _take(self) -> RequestLog:
        start = self._taken % self._table.rows
        end = min(start + self._written - self._taken, self._table.rows)
        waiting = np.flatnonzero(self._table.done_ns[start:end] == 0)
        rows = slice(start, start + int(waiting[0]) if len(waiting) else end)
        log = self._copied(rows)
        self._table.scheduled_ns[rows] = NOT_WRITTEN_NS
        self._table.sent_ns[rows] = 0
        self._table.done_ns[rows] = 0
        self._table.outcome[rows] = 0
        self._taken += len(log)
        if len(log):
            self._last_taken_ns = int(log.scheduled_ns[-1])
        return log

    def _copied(self, rows: slice | NDArray[np.intp]) -> RequestLog:
        table = self._table
        return RequestLog(
            scheduled_ns=table.scheduled_ns[rows].copy(),
            sent_ns=table.sent_ns[rows].copy(),
            done_ns=table.done_ns[rows].copy(),
            outcome=table.outcome[rows].copy(),
        )

    def _fill(self) -> None:
        """Write the schedule on, as far as there is room.

        Each part's next row after it says that it is not written yet, or that there is none.
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
