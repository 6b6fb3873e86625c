"""When the client sent so late that a run says nothing of the server, and how soon that is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog
    from loadgen.plan import LoadPlan

LATENESS_COUNTS = 3
"""Requests that leave together because the client was late wait for each other about as long as it was late. Where
most take longer than the limit and this multiple of the lag, counted from when they left, it was the server:
overloaded, it makes clients late as well, by thousands of requests in flight."""

AT_MOST_LATE = 0.01
"""Of a run's requests: its p99 of the send lag is judged."""

JUDGED_AFTER_S = 4.0
UNTIL_TWICE_AS_LONG = 2.0
"""A run whose end is open is given up from then on, where it would have to last so many times as long as it has,
and send in time throughout, to be trusted after all."""


def most_send_lag_ms(limit_ms: float | None) -> float:
    """The send lag p99 over which the client was measured, not the server: 1 ms or 5 % of the limit."""
    return max(1.0, 0.05 * (limit_ms or 0.0))


def servers_fault(service_p50_ms: float, lag_p99_ms: float, limit_ms: float | None) -> bool:
    """Whether the server is so overloaded that a late client changes nothing."""
    return limit_ms is not None and service_p50_ms > limit_ms + LATENESS_COUNTS * lag_p99_ms


def until_late(
    watch: Callable[[RequestLog], bool] | None, plan: LoadPlan, limit_ms: float
) -> Callable[[RequestLog], bool]:
    """A watch that besides ends a run that will not be trusted: what keeps the client from sending often lasts."""

    def ends(log: RequestLog) -> bool:
        return (watch is not None and watch(log)) or is_hopelessly_late(log, plan, limit_ms)

    return ends


def is_hopelessly_late(log: RequestLog, plan: LoadPlan, limit_ms: float) -> bool:
    """Whether more requests have left late than the plan's run may have in all, or, where it has gone on for a
    while, than one of twice its length may have. Never where a cap on those in flight holds requests back.
    """
    if not len(log) or plan.max_in_flight is not None:
        return False
    most_ns = 1e6 * (plan.most_send_lag_ms or most_send_lag_ms(limit_ms))
    late = int(np.count_nonzero(log.send_lag_ns > most_ns))
    enough = plan.expected_requests
    if log.scheduled_ns[-1] >= 1e9 * JUDGED_AFTER_S:
        enough = min(enough, UNTIL_TWICE_AS_LONG * len(log))
    return late > AT_MOST_LATE * enough and float(np.median(log.service_ns)) <= 1e6 * limit_ms
