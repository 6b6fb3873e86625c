"""Decide if the client sent so late that a run does not measure the server, and stop such a run early."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import LoadPlan

LATENESS_COUNTS = 3
"""The server is overloaded if most requests, counted from when they left, take longer than the limit plus this
multiple of the lag; below that, the client is the cause. Requests that leave together because the client was late
wait for each other about as long as it was late. An overloaded server makes clients late as well, by thousands of
requests in flight."""

MAX_LATE = 0.01
"""A run is not trusted if more than this fraction of its requests left late: its p99 of the send lag counts."""

JUDGED_AFTER_S = 4.0
UNTIL_TWICE_AS_LONG = 2.0
"""From 4 s on, a run is stopped early if it could be trusted only after lasting twice as long as it has, all of
its further requests in time."""


def most_send_lag_ms(limit_ms: float | None) -> float:
    """Return the highest trusted p99 of the send lag, in ms: 1 ms or 5 % of the limit, whichever is more."""
    return max(1.0, 0.05 * (limit_ms or 0.0))


def server_is_overloaded(service_p50_ms: float, lag_p99_ms: float, limit_ms: float | None) -> bool:
    """True if the server is so overloaded that a late client changes nothing."""
    return limit_ms is not None and service_p50_ms > limit_ms + LATENESS_COUNTS * lag_p99_ms


def stop_when_late(
    watch: Callable[[RequestLog], bool] | None, plan: LoadPlan, limit_ms: float
) -> Callable[[RequestLog], bool]:
    """Return a watch that also stops a run whose send lag disqualifies it: the cause rarely goes away in a run."""
    return lambda log: (watch is not None and watch(log)) or is_hopelessly_late(log, plan, limit_ms)


def is_hopelessly_late(log: RequestLog, plan: LoadPlan, limit_ms: float) -> bool:
    """True if more requests have left late, and more are over the limit, than the planned run may have in all, or,
    from 4 s on, than a run of twice the present length may have. False if a cap holds requests back.
    """
    if not len(log) or plan.max_in_flight is not None:
        return False
    most_ns = 1e6 * (plan.most_send_lag_ms or most_send_lag_ms(limit_ms))
    late = min(np.count_nonzero(log.send_lag_ns > most_ns), np.count_nonzero(log.latency_ns > 1e6 * limit_ms))
    enough = plan.expected_requests
    if log.scheduled_ns[-1] >= 1e9 * JUDGED_AFTER_S:
        enough = min(enough, UNTIL_TWICE_AS_LONG * len(log))
    return late > MAX_LATE * enough and float(np.median(log.service_ns)) <= 1e6 * limit_ms
