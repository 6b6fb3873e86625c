"""What a server that could not keep up did answer: how fast it is just now, whatever it was before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from loadgen.measurement import RequestLog

_LEAST_ANSWERS = 20


def served_per_s(log: RequestLog, limit_ms: float) -> float:
    """Answers per second from the first that was over the limit to the last one; inf where there were too few.

    A server with a backlog all the while shows its own speed. One that was late now and then shows the rate of
    the load, since it answered everything.
    """
    late_ns = log.done_ns[(log.latency_ns > limit_ms * 1e6) & ~log.failed]
    if len(late_ns) < _LEAST_ANSWERS:
        return math.inf
    first, last = int(late_ns.min()), int(late_ns.max())
    answered_ns = log.done_ns[~log.failed]
    between = np.count_nonzero((answered_ns > first) & (answered_ns <= last))
    return float(between) / ((last - first) / 1e9) if last > first else math.inf
