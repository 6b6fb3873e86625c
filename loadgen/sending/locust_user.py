"""The Locust user that follows a schedule and never waits for a response, and what it adds to Locust's statistics.

Those are for Locust's web UI and CSV files, never for a decision.
"""

from __future__ import annotations

import logging
import time
from typing import ClassVar

import gevent
import numpy as np
from locust import User, task
from locust.exception import StopUser
from locust.stats import RequestStats, StatsEntry, StatsError, bucket_response_time

from loadgen.errors import LoadError
from loadgen.measurement.request_log import RequestLog, errors_by_kind
from loadgen.sending.request_table import GrowingLog, LogTable

log = logging.getLogger("tritune.locust")


class OpenLoopUser(User):
    """One user sends a whole schedule: it replaces Locust's wait time and many users who wait.

    Subclasses send the schedule in `replay`. Between two requests the user does not give way to other greenlets,
    because they would delay the next request; `give_way` does, and is called about every 50 ms. So a process runs
    one such user, and a second one logs an error and ends.
    """

    abstract = True
    _running: ClassVar[bool] = False

    @task
    def follow_schedule(self) -> None:
        """Send the schedule once, then end this user. After an error Locust exits with code 2."""
        if OpenLoopUser._running:
            log.error("An open-loop user is the whole load of a process, so a second one does not start.")
            log.error("Raise rate_per_s, or run with --processes N --users N.")
            raise StopUser
        OpenLoopUser._running = True
        try:
            self.replay()
        except LoadError as error:
            log.error("%s", error)  # noqa: TRY400 - two lines that say what to do, not a traceback
            self.environment.process_exit_code = 2
        finally:
            OpenLoopUser._running = False
        raise StopUser

    def replay(self) -> None:
        """Send all requests of the schedule; return when the last has ended."""
        raise NotImplementedError

    @staticmethod
    def give_way() -> None:
        """Let Locust's own greenlets run: statistics, heartbeat, web UI, stop."""
        gevent.sleep(0)


_PERIOD_NS = 1_000_000_000
METHOD = "infer"


class LocustFeed:
    """Adds each request to Locust's statistics once, every second.

    Locust counts a request in the second in which it is added. Requests are added in the order of the schedule:
    a slow request holds back those after it until it has ended.
    """

    def __init__(self, stats: RequestStats, table: LogTable, *, name: str) -> None:
        self._stats = stats
        self._table = table
        self._growing = GrowingLog(table, late_ns=None)
        self._added = 0
        self._name = name
        self._next_ns = _PERIOD_NS

    def update(self, now_ns: int) -> None:
        """Add the requests that have ended, if the last update was a second ago."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _PERIOD_NS
            self._add(self._growing.at(now_ns))

    def finish(self) -> None:
        """Add all other requests that were sent."""
        self._add(self._table.finished(self._table.rows))

    def _add(self, log: RequestLog) -> None:
        new = log.rows(self._added, len(log))
        self._added = len(log)
        if len(new) == 0:
            return
        entry = self._entry(new)
        self._stats.entries[self._name, METHOD].extend(entry)
        self._stats.total.extend(entry)
        for error, count in errors_by_kind(new).items():
            self._note_errors(error, count)

    def _entry(self, new: RequestLog) -> StatsEntry:
        """Return the statistics of these requests as Locust would have kept them."""
        now = time.time()
        failures = int(np.count_nonzero(new.failed))
        latency_ms = new.latency_ns / 1e6
        entry = StatsEntry(self._stats, self._name, METHOD)
        entry.start_time = self._stats.total.start_time or now
        entry.last_request_timestamp = now
        entry.num_requests = len(new)
        entry.num_failures = failures
        entry.total_response_time = int(latency_ms.sum())
        entry.min_response_time = int(latency_ms.min())
        entry.max_response_time = int(latency_ms.max())
        entry.num_reqs_per_sec[int(now)] = len(new)
        if failures:
            entry.num_fail_per_sec[int(now)] = failures
        for whole_ms, count in zip(*np.unique(np.rint(latency_ms), return_counts=True), strict=True):
            entry.response_times[bucket_response_time(whole_ms)] += int(count)
        return entry

    def _note_errors(self, error: str, count: int) -> None:
        key = StatsError.create_key(METHOD, self._name, error)
        known = self._stats.errors.setdefault(key, StatsError(METHOD, self._name, error))
        known.occurred()  # counts one, and when
        known.occurrences += count - 1
