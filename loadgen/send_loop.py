"""The loop that lets each request leave at its time and notes when its answer came."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

from loadgen.outcomes import OK, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loadgen.poller import Poller
    from loadgen.shared_log import LogTable

NEVER_NS = 1 << 62
TICK_NS = 50_000_000
_BURST = 8
PATIENCE_NS = 4_000_000
"""How long an answer may stay in the kernel: too short for any buffer or time-out to notice."""


class Wire(Protocol):
    """Connections to a server over one protocol. Rows name requests; the wire does not know their times."""

    @property
    def in_flight(self) -> Mapping[int, object]:
        """The rows that are on their way, in the order they were sent."""

    @property
    def answers_may_wait(self) -> bool:
        """Whether small answers, whose arrival the kernel notes, are all that is waited for.

        Also that the next request finds a connection on which no other answer is waited for.
        """

    def send(self, row: int) -> bool:
        """Start a request; False where `answers_may_wait` may no longer hold.

        Never blocks, never raises for what the network does: that ends the request.
        """

    def handle(self, fd: int, events: int) -> None:
        """Go on with a file descriptor that the poller reported."""

    def give_up(self, row: int) -> None:
        """Forget a request that is in flight; what still comes for it is thrown away."""


Tick = Callable[[int, int], bool]
Finished = Callable[[int, int, int], None]
"""Takes a row, its outcome, and when the kernel got its answer, in ns of the wall clock; 0: it does not say."""


class LoopParts(TypedDict):
    """What every loop is made of."""

    table: LogTable
    part: int
    parts: int
    wire: Wire
    poller: Poller
    timeout_ns: int
    tick: Tick


class SendLoop:
    """Sends rows `part`, `part + parts`, ... of a table at their scheduled times.

    One thread, no waiting for answers, no allocation that grows with the run. Sends go first: whenever one is
    due, it goes before the next answer is looked at. Where the kernel notes when answers arrive, small ones stay
    there for up to 4 ms and are read together: it saves wake-ups, and reading several at once costs little more
    than reading one with cold caches.

    About every 50 ms `tick(now_ns, in_flight)` is called; it returns True to stop, which lets what is in flight
    finish but sends nothing that is due later.
    """

    def __init__(
        self,
        *,
        max_in_flight: int | None = None,
        **common: Unpack[LoopParts],
    ) -> None:
        table, part, parts = common["table"], common["part"], common["parts"]
        # Plain Python ints in and out: indexing a memoryview costs a third of indexing an array.
        self._scheduled = table.scheduled_ns.data[part::parts]
        self._sent = table.sent_ns.data[part::parts]
        self._done = table.done_ns.data[part::parts]
        self._outcome = table.outcome.data[part::parts]
        self._wire = common["wire"]
        self._poller = common["poller"]
        self._timeout_ns = common["timeout_ns"]
        self._tick = common["tick"]
        self._clock = time.monotonic_ns
        self._cap = max_in_flight or NEVER_NS
        self._may_be_patient = max_in_flight is None  # else an answer lets the next request go
        self._stamped = False  # the last answer had its time from the kernel
        self._relaxed = False  # answers may stay in the kernel until `_read_by_ns`
        self._next_row = 0
        self._end_row = len(self._scheduled)
        self._origin_ns = 0
        self._due_ns = NEVER_NS
        self._next_tick_ns = 0
        self._tick_every_ns = min(TICK_NS, max(1_000_000, self._timeout_ns // 4))

    def run(self, origin_ns: int) -> None:
        """Carry the schedule out; time 0 is `origin_ns` on the monotonic clock. Returns when all is answered."""
        self._origin_ns = origin_ns
        self._set_due()
        wire, in_flight, handle = self._wire, self._wire.in_flight, self._wire.handle
        poll, sleep, clock = self._poller.wait, self._poller.sleep, time.monotonic_ns
        read_by_ns = 0
        while self._next_row < self._end_row or in_flight:
            now = clock() - origin_ns
            if now >= self._due_ns:
                now = self._send_due(now)
            due_ns = self._due_ns
            if self._relaxed and due_ns <= read_by_ns:
                if due_ns > now:
                    sleep((due_ns - now) * 1e-9)
                continue
            returns_at_once = self._relaxed and due_ns < min(now + PATIENCE_NS, self._next_tick_ns)
            for fd, events in poll(0 if returns_at_once else min(due_ns, self._next_tick_ns) - now):
                handle(fd, events)
                if (now := clock() - origin_ns) >= self._due_ns:
                    self._send_due(now)
            now = clock() - origin_ns
            if now >= self._next_tick_ns:  # right after all that came was read, so that it knows the true backlog
                self._housekeep(now)
            self._relaxed = self._stamped and wire.answers_may_wait
            read_by_ns = min(now + PATIENCE_NS, self._next_tick_ns - 1)

    @property
    def rows_sent(self) -> int:
        """How many rows of this part have left, or tried to."""
        return self._next_row

    def elapsed_ns(self) -> int:
        """The time since the run's start."""
        return time.monotonic_ns() - self._origin_ns

    def finished(self, row: int, outcome: int, arrived_ns: int) -> None:
        """The wire reports the end of a request here, see `Finished`."""
        now = self.elapsed_ns()
        if arrived_ns:
            age_ns = time.time_ns() - arrived_ns
            if 0 < age_ns < now - self._sent[row]:  # else somebody has set the clock in between
                now -= age_ns
        self._stamped = self._may_be_patient and arrived_ns > 0
        if outcome == OK and now - self._scheduled[row] > self._timeout_ns:
            outcome = TIMED_OUT
        if outcome:
            self._outcome[row] = outcome
        self._done[row] = now
        if self._due_ns == NEVER_NS:
            self._set_due()

    def _send_due(self, now: int) -> int:
        """Send what is due, but not so much at once that answers wait long; returns the time after it."""
        left = _BURST
        while left:
            left -= 1
            row = self._next_row
            self._next_row = row + 1
            self._sent[row] = now or 1
            if not self._wire.send(row):
                self._relaxed = False
            self._set_due()
            now = self._clock() - self._origin_ns
            if now < self._due_ns:
                break
        return now

    def _set_due(self) -> None:
        row = self._next_row
        if row < self._end_row and (self._cap == NEVER_NS or len(self._wire.in_flight) < self._cap):
            self._due_ns = self._scheduled[row]
        else:
            self._due_ns = NEVER_NS

    def _housekeep(self, now: int) -> None:
        self._next_tick_ns = now + self._tick_every_ns
        too_old_ns = now - self._timeout_ns
        expired = []
        for row in self._wire.in_flight:
            if self._scheduled[row] > too_old_ns:
                break
            expired.append(row)
        for row in expired:
            self._wire.give_up(row)
            self.finished(row, TIMED_OUT, 0)
        if self._tick(now, len(self._wire.in_flight)):
            self._stop(now)

    def _stop(self, now: int) -> None:
        self._end_row = bisect.bisect_right(self._scheduled, now, self._next_row, self._end_row)
        self._set_due()
