"""The shard of a load that one process sends, and its loops: a schedule, and a closed loop of users."""

from __future__ import annotations

import bisect
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from loadgen.sending.request_table import LogTable
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.status import OK, REFUSED, TIMED_OUT
from loadgen.traffic.arrivals import peak_rate_per_s
from loadgen.wire.load_wire import Wire
from loadgen.wire.poller import Poller

NEVER_NS = 1 << 62
TICK_NS = 50_000_000
_BURST = 8
_CONNECTIONS_AHEAD_MAX = 256
PATIENCE_NS = 4_000_000
"""A response stays in the kernel for this time at most: too short for any buffer or time-out to matter."""

Tick = Callable[[int, int], bool]


class Clock(Protocol):
    """The clocks of the module `time`, which is one."""

    def monotonic_ns(self) -> int:
        """Return the time of a clock that nobody sets."""

    def time_ns(self) -> int:
        """Return the time of the wall clock, with which the kernel records when responses arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Rows `part`, `part + parts`, ... of a table, and the rules for them.

    `rate_per_s` is the highest rate of this shard. Without `limit_ms` no backlog stops the run. `concurrency` is
    the number of this shard's users in a closed loop of `duration_s`.
    """

    part: int
    parts: int
    timeout_s: float
    rate_per_s: float | None
    limit_ms: float | None
    duration_s: float
    max_in_flight: int | None = None
    refuse_above: int | None = None
    concurrency: int | None = None

    @property
    def connections_ahead(self) -> int:
        """The connections to open before the load: 1.5 times as many as are in flight at the latency limit."""
        if self.concurrency is not None:
            return self.concurrency
        expected = 1.5 * (self.rate_per_s or 0.0) * (self.limit_ms or 50.0) / 1e3
        cap = self.max_in_flight or self.refuse_above or _CONNECTIONS_AHEAD_MAX
        most = min(cap, _CONNECTIONS_AHEAD_MAX)
        return min(4 + math.ceil(expected), most)


def shard_of(plan: LoadPlan | ClosedLoopPlan, part: int, parts: int, *, limit_ms: float | None) -> Shard:
    """Return the shard `part` of `parts` of a plan."""
    rate_per_s = cap = refuse_above = concurrency = None
    if isinstance(plan, ClosedLoopPlan):
        concurrency = (plan.concurrency + part) // parts
    else:
        rate_per_s = peak_rate_per_s(plan) / parts
        cap, refuse_above = (
            None if most is None else max(1, (most + part) // parts)
            for most in (plan.max_in_flight, plan.refuse_above)
        )
    return Shard(
        part=part,
        parts=parts,
        timeout_s=plan.timeout_s,
        rate_per_s=rate_per_s,
        limit_ms=limit_ms,
        duration_s=plan.duration_s,
        max_in_flight=cap,
        refuse_above=refuse_above,
        concurrency=concurrency,
    )


class SendLoop:
    """Sends rows `part`, `part + parts`, ... of a table at their scheduled times.

    It is one thread, which waits for no response, and no memory that it takes grows with the run. A request that
    is due leaves before the next response is read. If the kernel records when responses arrive, small ones stay
    there for up to 4 ms and are read together: that saves wake-ups, and to read several costs little more than to
    read one with cold caches.

    About every 50 ms `tick(now_ns, in_flight)` is called. If it returns True, the loop sends nothing that is due
    later, and ends when the requests in flight have ended.
    """

    def __init__(
        self, shard: Shard, table: LogTable, wire: Wire, poller: Poller, tick: Tick, clock: Clock = time
    ) -> None:
        part, parts = shard.part, shard.parts
        # Plain Python ints in and out: indexing a memoryview costs a third of indexing an array.
        self._scheduled = table.scheduled_ns.data[part::parts]
        self._sent = table.sent_ns.data[part::parts]
        self._done = table.done_ns.data[part::parts]
        self._outcome = table.outcome.data[part::parts]
        self._wire = wire
        self._poller = poller
        self._timeout_ns = round(shard.timeout_s * 1e9)
        self._tick = tick
        self._clock = clock.monotonic_ns
        self._wall_clock = clock
        self._cap = shard.max_in_flight or NEVER_NS
        self._refuse_above = shard.refuse_above or NEVER_NS
        capped = shard.max_in_flight or shard.refuse_above
        self._may_be_patient = not capped  # else what comes of the next request depends on a response
        self._stamped = False  # the kernel recorded the time of the last response
        self._relaxed = False  # responses may stay in the kernel until `read_by_ns`
        self._next_row = 0
        self._end_row = len(self._scheduled)
        self._origin_ns = 0
        self._due_ns = NEVER_NS
        self._next_tick_ns = 0
        self._tick_every_ns = min(TICK_NS, max(1_000_000, self._timeout_ns // 4))

    def run(self, origin_ns: int) -> None:
        """Send the schedule from `origin_ns` (monotonic clock) on. Return when all requests have ended."""
        self._origin_ns = origin_ns
        self._set_due()
        wire, in_flight, handle = self._wire, self._wire.in_flight, self._wire.handle
        poll, sleep, clock = self._poller.wait, self._poller.sleep, self._clock
        read_by_ns = 0
        while self._next_row < self._end_row or in_flight:
            now = clock() - origin_ns
            if now >= self._due_ns:
                now = self._send_due(now)
            due_ns = self._due_ns
            if self._relaxed and due_ns <= read_by_ns >= now:
                if due_ns > now:
                    sleep((due_ns - now) * 1e-9)
                continue
            returns_at_once = self._relaxed and due_ns < min(now + PATIENCE_NS, self._next_tick_ns)
            for fd, events in poll(0 if returns_at_once else min(due_ns, self._next_tick_ns) - now):
                handle(fd, events)
                if (now := clock() - origin_ns) >= self._due_ns:
                    self._send_due(now)
            now = clock() - origin_ns
            if now >= self._next_tick_ns:  # after all that came was read: the backlog is the true one
                self._housekeep(now)
            self._relaxed = self._stamped and wire.answers_may_wait
            read_by_ns = min(now + PATIENCE_NS, self._next_tick_ns - 1)

    @property
    def rows_sent(self) -> int:
        """The number of rows of this part that were sent, or that failed to be sent."""
        return self._next_row

    def elapsed_ns(self) -> int:
        """Return the time since the start of the run."""
        return self._clock() - self._origin_ns

    def finished(self, row: int, outcome: int, arrived_ns: int) -> None:
        """Take the end of a request, which the wire reports; see `Finished`."""
        now = self.elapsed_ns()
        if arrived_ns:
            age_ns = self._wall_clock.time_ns() - arrived_ns
            if 0 < age_ns < now - self._sent[row]:  # else the clock was set in between
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
        """Send what is due, 8 requests at most; return the time after it.

        The next answer is read only then, so answers never wait long. After the last answer of several, `run`
        calls this twice before it looks for more.
        """
        for _ in range(_BURST):
            row = self._next_row
            self._next_row = row + 1
            self._sent[row] = now or 1
            if len(self._wire.in_flight) >= self._refuse_above:
                self.finished(row, REFUSED, 0)
            elif not self._wire.send(row):
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
        for row in list(takewhile(lambda row: self._scheduled[row] <= too_old_ns, self._wire.in_flight)):
            self._wire.give_up(row)
            self.finished(row, TIMED_OUT, 0)
        if self._tick(now, len(self._wire.in_flight)):
            self._stop(now)

    def _stop(self, now: int) -> None:
        self._end_row = bisect.bisect_right(self._scheduled, now, self._next_row, self._end_row)
        self._set_due()


_PAUSE_NS = 10_000_000  # after a failure a user waits, or a dead server would get requests without end


class ClosedLoop(SendLoop):
    """Keeps `concurrency` requests in flight for a duration; a row is due when its user became free.

    Ends early if the table has no row left.
    """

    def __init__(self, shard: Shard, *parts: Any) -> None:
        super().__init__(shard, *parts)
        self._duration_ns = round(shard.duration_s * 1e9)
        self._may_be_patient = False
        self._free_at_ns = [0] * (shard.concurrency or 0)  # a heap: when each waiting user sends its next request
        if not self._free_at_ns:  # fewer users than load processes: this one has nothing to do
            self._end_row = 0

    def finished(self, row: int, outcome: int, arrived_ns: int) -> None:
        """Take the end of a request. Its user is free at once, or after a pause if the request failed."""
        free_at = self.elapsed_ns() + (0 if outcome == OK else _PAUSE_NS)
        heapq.heappush(self._free_at_ns, free_at)
        if free_at < self._due_ns < NEVER_NS:  # the next row is that of a user who still pauses
            heapq.heappush(self._free_at_ns, self._due_ns)
            self._due_ns = NEVER_NS
        super().finished(row, outcome, arrived_ns)

    def _set_due(self) -> None:
        self._due_ns, row = NEVER_NS, self._next_row
        if self._free_at_ns and self._free_at_ns[0] >= self._duration_ns:
            self._end_row = row
        if self._free_at_ns and row < self._end_row:
            self._due_ns = self._scheduled[row] = heapq.heappop(self._free_at_ns)

    def _stop(self, now: int) -> None:  # noqa: ARG002 - nothing is due later than now
        self._end_row = self._next_row
        self._due_ns = NEVER_NS
