"""Send the queries that a foreign load generator issues, and report their ends to it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

from loadgen.sending.send_loop import LoopParts, SendLoop
from loadgen.status import OK
from loadgen.transport.poller import original

_WAIT_MOST_NS = 20_000_000  # the end of the test is noticed so late
_BEYOND_NS = 1_000_000


class QueryLoop(SendLoop):
    """Sends row r of a table when the r-th query is issued, and completes the query when its response is there.

    Two threads use it. `issue` runs in the thread of the foreign generator, which waits for the times of the
    schedule, and `run_until` in that of the caller, which reads the responses. The wire belongs to whichever holds
    the lock. The clock starts with the first query.

    A failed query has no end that such a generator knows. It is completed late: when its time-out or `limit_ms`,
    whichever is longer, has passed since it was due.
    """

    def __init__(self, *, limit_ms: float, complete: Callable[[Sequence[int]], object], parts: LoopParts) -> None:
        super().__init__(**parts)
        self._complete = complete
        self._held_ns = max(parts["timeout_ns"], round(limit_ms * 1e6)) + _BEYOND_NS
        self._lock = original("_thread", "allocate_lock")()
        self._names = [0] * len(self._scheduled)
        self._ended: list[int] = []
        self._held: list[tuple[int, int]] = []  # a heap: when a failed query is completed, and its name
        self.error: BaseException | None = None
        """What went wrong in the thread of the generator; no exception may pass through its C++."""

    def issue(self, names: Sequence[int], samples: Sequence[int]) -> None:  # noqa: ARG002 - rows choose the inputs
        """Send the next requests now. `names` are what `complete` takes."""
        try:
            with self._lock:
                if not self._origin_ns:
                    self._origin_ns = time.monotonic_ns()
                for name in names:
                    row = self._next_row
                    self._names[row] = name
                    self._next_row = row + 1
                    self._sent[row] = self.elapsed_ns() or 1
                    self._wire.send(row)
        except Exception as error:
            self.error = self.error or error

    def finished(self, row: int, outcome: int, arrived_ns: int) -> None:
        """Take the end of a request; see `Finished`."""
        super().finished(row, outcome, arrived_ns)
        if self._outcome[row] == OK:
            self._ended.append(self._names[row])
        else:
            heapq.heappush(self._held, (self._scheduled[row] + self._held_ns, self._names[row]))

    def run_until(self, over: Callable[[], bool]) -> None:
        """Read responses and complete queries until the generator is over. Raises an error of its thread."""
        poll, handle, lock = self._poller.wait, self._wire.handle, self._lock
        while not over():
            if self.error is not None:
                raise self.error
            for fd, events in poll(self._wait_ns()):
                with lock:
                    handle(fd, events)
                    ended, self._ended = self._ended, []
                if ended:
                    self._complete(ended)
            if self._origin_ns:
                self._look_after(self.elapsed_ns())
        if self.error is not None:
            raise self.error

    def set_clock_back(self) -> int:
        """Let the clock start as the schedule did; return by how many ns.

        The first query was taken a moment after it was due, so the others seem to be early. None left before it
        was due, and the one with the least delay had none.
        """
        rows = range(self._next_row)
        late_ns = max(0, -min((self._sent[row] - self._scheduled[row] for row in rows), default=0))
        for row in rows:
            self._sent[row] += late_ns
            self._done[row] += late_ns
        return late_ns

    def _wait_ns(self) -> int:
        if not self._held:
            return _WAIT_MOST_NS
        return min(_WAIT_MOST_NS, self._held[0][0] - self.elapsed_ns())

    def _look_after(self, now: int) -> None:
        """Give up requests whose time is over, and complete the failed ones that have been held long enough."""
        with self._lock:
            if now >= self._next_tick_ns:
                self._housekeep(now)
            while self._held and self._held[0][0] <= now:
                self._ended.append(heapq.heappop(self._held)[1])
            ended, self._ended = self._ended, []
        if ended:
            self._complete(ended)
