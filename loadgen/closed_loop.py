"""The loop of users who wait: each asks again when its answer is there."""

from __future__ import annotations

import heapq
from typing import Unpack

from loadgen.outcomes import OK
from loadgen.send_loop import NEVER_NS, LoopParts, SendLoop

_PAUSE_NS = 10_000_000  # after a failure, or a dead server would be asked as fast as the client can


class ClosedLoop(SendLoop):
    """Keeps `concurrency` requests in flight for a duration; a row's scheduled time is when its user became free.

    Ends early when the table has no row left.
    """

    def __init__(self, *, concurrency: int, duration_ns: int, **common: Unpack[LoopParts]) -> None:
        super().__init__(**common)
        self._duration_ns = duration_ns
        self._may_be_patient = False
        self._free_at_ns = [0] * concurrency  # a heap: when each waiting user wants to ask
        if concurrency == 0:  # fewer users than load processes: this one has nothing to do
            self._end_row = 0

    def finished(self, row: int, outcome: int, arrived_ns: int) -> None:
        """The user of this row is free: at once, or a moment later when it got no answer."""
        free_at = self.elapsed_ns() + (0 if outcome == OK else _PAUSE_NS)
        heapq.heappush(self._free_at_ns, free_at)
        super().finished(row, outcome, arrived_ns)

    def _set_due(self) -> None:
        row = self._next_row
        if row >= self._end_row or not self._free_at_ns or self._free_at_ns[0] >= self._duration_ns:
            self._due_ns = NEVER_NS
            if self._free_at_ns and self._free_at_ns[0] >= self._duration_ns:
                self._end_row = row
            return
        self._due_ns = self._scheduled[row] = heapq.heappop(self._free_at_ns)

    def _stop(self, now: int) -> None:  # noqa: ARG002 - nothing is due later than now
        self._end_row = self._next_row
        self._due_ns = NEVER_NS
