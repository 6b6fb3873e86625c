"""The Locust user that follows a schedule and never waits for a response, and the events of its requests.

Locust's statistics follow from the events. They are for its web UI, CSV files and plug-ins, not for decisions.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import gevent
from gevent import GreenletExit
from locust import User, task
from locust.exception import CatchResponseError, StopUser
from locust.user.task import LOCUST_STATE_RUNNING, LOCUST_STATE_STOPPING

from loadgen.errors import LoadError, UserError
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.request_table import GrowingLog, LogTable
from loadgen.status import UNFINISHED, outcome_name
from loadgen.wire.poller import Poller

log = logging.getLogger("tritune.locust")


class OpenLoopUser(User):
    """One user sends a whole schedule: it replaces Locust's wait time and many users who wait.

    Subclasses send the schedule in `replay`. Between two requests the user does not give way to other greenlets,
    because they would delay the next request; `give_way` does, and is called about every 50 ms. So a process runs
    one such user, and a second one logs an error and ends.
    """

    abstract = True
    timeout_s = 10.0
    _running: ClassVar[bool] = False

    @task
    def follow_schedule(self) -> None:
        """Send the schedule once, then end this user. After an error Locust exits with code 2."""
        if OpenLoopUser._running:
            log.error("An open-loop user is the whole load of a process, so a second one does not start.")
            log.error("Raise rate_per_s, or run with --processes N.")
            raise StopUser
        OpenLoopUser._running = True
        try:
            self.replay()
        except (LoadError, UserError) as error:
            log.error("%s", error)  # noqa: TRY400 - two lines that say what to do, not a traceback
            self.environment.process_exit_code = 2
            self.environment.events.user_error.fire(user_instance=self, exception=error, tb=error.__traceback__)
        finally:
            OpenLoopUser._running = False
        raise StopUser

    def replay(self) -> None:
        """Send all requests of the schedule; return when the last has ended."""
        raise NotImplementedError

    def stop(self, force: bool = False) -> bool:
        """Send nothing that is due later. Wait for the requests in flight if Locust would kill them (`force`)."""
        if self._state == LOCUST_STATE_RUNNING:
            self._state = LOCUST_STATE_STOPPING
            if force:
                self.greenlet.join(self.timeout_s + 5.0)  # 5 s for the events that wait
        return bool(super().stop(force=True)) if force else False

    @staticmethod
    def give_way() -> None:
        """Let Locust's own greenlets run: statistics, heartbeat, web UI, stop."""
        gevent.sleep(1e-6)  # after sleep(0), gevent looks at its timers only every 50th time


METHOD = "infer"
_MOST_WAITING = 2_000


class RequestEvents:
    """Fires Locust's `request` event once for each request, in the order of the schedule.

    `take` queues requests that have ended, and `fire` fires the event of one of them: listeners are code of Locust
    and of its plug-ins, so they run while no request is due. A slow request holds back those after it until it has
    ended. `order` is an exception by which a listener ends the test, such as StopUser.
    """

    def __init__(self, user: User, table: LogTable, *, name: str) -> None:
        self.order: Exception | None = None
        self._request = user.environment.events.request
        self._context = user.context()
        self._table = table
        self._growing = GrowingLog(table, late_ns=None)
        self._waiting: deque[tuple[float, float, int]] = deque()
        self._taken = 0
        self._name = name

    def take(self, now_ns: int) -> None:
        """Queue the next requests that have ended, `now_ns` after the start, if no other waits."""
        if not self._waiting:
            self._queue(self._growing.at(now_ns), now_ns)

    def fire(self) -> bool:
        """Fire the event of the request that has waited for longest; False if none waits."""
        if not self._waiting:
            return False
        start_s, latency_ms, outcome = self._waiting.popleft()
        try:
            self._request.fire(
                request_type=METHOD,
                name=self._name,
                response_time=latency_ms,
                response_length=0,
                response=None,
                context=self._context,
                exception=CatchResponseError(outcome_name(outcome)) if outcome else None,
                start_time=start_s,
            )
        except Exception as order:  # Locust lets only those out of a listener that order something
            self.order = order
        return True

    def finish(self, now_ns: int) -> None:
        """Fire all other events. A request without an end has failed: Locust ended this user before."""
        sent = self._table.finished(self._table.rows)
        unfinished = sent.done_ns == 0
        sent.done_ns[unfinished], sent.outcome[unfinished] = now_ns, UNFINISHED
        while self._waiting or self._taken < len(sent):
            self._queue(sent, now_ns)
            with suppress(GreenletExit):  # it ends anyway
                while self.fire():
                    pass
                OpenLoopUser.give_way()

    def _queue(self, ended: RequestLog, now_ns: int) -> None:
        new = ended.rows(self._taken, min(len(ended), self._taken + _MOST_WAITING))
        self._taken += len(new)
        start_s = time.time() + (new.scheduled_ns - now_ns) / 1e9
        self._waiting.extend(
            zip(start_s.tolist(), (new.latency_ns / 1e6).tolist(), new.outcome.tolist(), strict=True)
        )


_GAP_NS = 50_000


class GapPoller(Poller):
    """A poller that works while it would wait: it calls `work` in waits of over 50 µs until that returns False.

    It looks for ready sockets before each call, so a call delays a request or a response for as long as it takes.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        super().__init__()
        self._work = work
        self._sleep_on = self.sleep
        self.sleep = self._work_and_sleep

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """Return (file descriptor, events) of ready sockets; empty after `timeout_ns`, at once for 0 or less."""
        end_ns = time.monotonic_ns() + timeout_ns
        while not (ready := super().wait(0)) and timeout_ns > _GAP_NS and self._work():
            timeout_ns = end_ns - time.monotonic_ns()
        return ready or super().wait(timeout_ns)

    def _work_and_sleep(self, seconds: float) -> None:
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        while (left_ns := end_ns - time.monotonic_ns()) > _GAP_NS and self._work():
            pass
        if left_ns > 0:
            self._sleep_on(left_ns * 1e-9)
