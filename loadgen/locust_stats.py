"""Locust's own statistics, fed from a log in batches: for its web UI and its CSV files, never for a decision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from locust.stats import RequestStats, StatsEntry, StatsError, bucket_response_time

from loadgen.measurement import RequestLog, errors_by_kind

if TYPE_CHECKING:
    from loadgen.laps import Laps

_EVERY_NS = 1_000_000_000
METHOD = "infer"


class LocustFeed:
    """Hands each request to Locust once, a second's worth at a time, and makes room for more.

    Locust counts a request in the second in which it is told of it. In the order of the schedule, so that one
    slow request holds back those after it until it has ended.
    """

    def __init__(self, stats: RequestStats, laps: Laps, *, name: str) -> None:
        self._stats = stats
        self._laps = laps
        self._name = name
        self._next_ns = _EVERY_NS

    def go_on(self, now_ns: int) -> None:
        """Tell Locust what is new, when a second has passed since it was told last."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _EVERY_NS
            self._tell(self._laps.turn())

    def finish(self) -> None:
        """Tell Locust the rest: all that left."""
        self._tell(self._laps.turn())
        self._tell(self._laps.rest())

    def _tell(self, new: RequestLog) -> None:
        if len(new) == 0:
            return
        entry = self._entry(new)
        self._stats.entries[self._name, METHOD].extend(entry)
        self._stats.total.extend(entry)
        for error, count in errors_by_kind(new).items():
            self._note_errors(error, count)

    def _entry(self, new: RequestLog) -> StatsEntry:
        """The statistics of these requests alone, as Locust would have kept them."""
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
