"""A limit that is violated is noticed while the log grows."""

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.statistics.checks import FailFast

LIMITS = Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),))


def log_of(latency_ms: float, n: int = 5000) -> RequestLog:
    due_ns = np.arange(n) * 2_000_000
    return RequestLog(
        scheduled_ns=due_ns,
        sent_ns=due_ns,
        done_ns=due_ns + round(latency_ms * 1e6),
        outcome=np.zeros(n, np.uint8),
    )


def test_a_violated_limit_is_noticed_and_stays_so() -> None:
    fail_fast = FailFast(LIMITS)
    assert not fail_fast.look(log_of(10.0))
    fail_fast = FailFast(LIMITS)
    assert fail_fast.look(log_of(60.0))
    assert fail_fast.violated_by[0].answer == "violated"
    assert fail_fast.look(log_of(10.0))
    assert fail_fast.violated_by[0].violations == fail_fast.violated_by[0].requests
