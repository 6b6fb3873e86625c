"""Compare the halves of a run that was sent at one rate: nearly all late requests in one half are a change.

A test of a limit takes the requests of a run for those of one machine and one server. If the machine became slower
while the run was on, more of the same load decides nothing: the figures are those of two machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.steady_state import left_out_ns

MIN_LATE, NEARLY_ALL = 20, 0.9
"""A run changed in its middle if a half has 90 % of 20 or more late requests, and these are more than allowed."""

PARTS = 8
MIN_PARTS = 3
"""At least 3 of the 4 parts of that half have late requests: a single burst is no change.

Of 450 runs of 8 s on simulated servers that stay the same, at 0.95 to 1.02 of their capacity, 28 had nearly all
late requests in one half, and 12 had them in 3 parts of it.
"""


def change_of(log: RequestLog, limits: Sequence[LatencyLimit]) -> str | None:
    """Return how a run changed in its middle, in words, by the first limit that shows it; None if it did not.

    Late requests are those that failed or took longer than the limit. The warm-up does not count.
    """
    return next((text for limit in limits if (text := _change(log, limit)) is not None), None)


def _change(log: RequestLog, limit: LatencyLimit) -> str | None:
    rows, late = _late_in_parts(log, limit)
    total, halves = sum(late), (late[: PARTS // 2], late[PARTS // 2 :])
    most = max(halves, key=sum)
    if total < max(MIN_LATE, limit.allowed * rows) or sum(most) < NEARLY_ALL * total:
        return None
    if sum(part > 0 for part in most) < MIN_PARTS:
        return None
    half = "first" if most is halves[0] else "second"
    return f"the run changed: {sum(most):,} of {total:,} requests over {limit.text} were due in its {half} half"


def _late_in_parts(log: RequestLog, limit: LatencyLimit) -> tuple[int, list[int]]:
    """Return the number of requests after the warm-up, and how many were late in each part of equal length."""
    if not len(log):
        return 0, [0] * PARTS
    start_ns, end_ns = left_out_ns(limit.limit_ms), int(log.scheduled_ns[-1])
    edges_ns = np.linspace(start_ns, max(start_ns, end_ns), PARTS + 1)[:-1]
    edges = [*np.searchsorted(log.scheduled_ns, edges_ns).tolist(), len(log)]
    late = log.latency_failures_last_ns > limit.limit_ns
    return len(log) - edges[0], [int(np.count_nonzero(late[first:last])) for first, last in pairwise(edges)]
