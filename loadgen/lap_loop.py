"""The loop that follows a schedule which is written into a circular table while it is carried out."""

from __future__ import annotations

from typing import Unpack

from loadgen.laps import NOT_WRITTEN_NS
from loadgen.send_loop import NEVER_NS, LoopParts, SendLoop


class LapLoop(SendLoop):
    """Begins again at the first row after the last; `loadgen.laps.Laps` writes and empties them.

    Where the next row is not written yet it waits; a schedule that gets late that way shows as send lag.
    """

    def __init__(self, *, max_in_flight: int | None = None, **common: Unpack[LoopParts]) -> None:
        super().__init__(max_in_flight=max_in_flight, **common)
        self._places = self._end_row
        self._end_row = NEVER_NS  # unknown until the schedule says that it has ended
        self._last_due_ns = NOT_WRITTEN_NS
        self._before_this_lap = 0

    @property
    def rows_sent(self) -> int:
        """How many rows of this part have left, or tried to."""
        return self._before_this_lap + self._next_row

    def _set_due(self) -> None:
        self._due_ns = NEVER_NS
        if self._next_row == self._places:
            self._next_row = 0
            self._before_this_lap += self._places
        due_ns = self._scheduled[self._next_row]
        if due_ns > self._last_due_ns:
            self._end_row = 0
        elif due_ns < NOT_WRITTEN_NS and len(self._wire.in_flight) < self._cap:
            self._due_ns = due_ns

    def _housekeep(self, now: int) -> None:
        super()._housekeep(now)
        if self._due_ns == NEVER_NS and self._end_row:
            self._set_due()

    def _stop(self, now: int) -> None:
        self._last_due_ns = now
        self._set_due()
