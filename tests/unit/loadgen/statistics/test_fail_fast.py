"""A limit that is violated is noticed while the log grows, and nobody waits for the verdict on a long log."""

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from waiting import wait_until

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


@pytest.mark.parametrize("most_at_once", [10_000, 1000])
def test_a_violated_limit_is_noticed_and_stays_so(most_at_once: int) -> None:
    fail_fast = FailFast(LIMITS, most_at_once)
    assert not fail_fast.look(log_of(10.0))
    fail_fast = FailFast(LIMITS, most_at_once)
    wait_until(lambda: fail_fast.look(log_of(60.0)))
    assert fail_fast.violated_by[0].answer == "violated"
    assert fail_fast.look(log_of(10.0))
    assert fail_fast.violated_by[0].violations == fail_fast.violated_by[0].requests


def test_the_verdict_on_a_long_log_is_reached_aside() -> None:
    may_end = threading.Event()

    class Long(RequestLog):
        def part(self, rows: slice | NDArray[np.intp]) -> RequestLog:
            assert may_end.wait(240)
            return super().part(rows)

    fail_fast, whole = FailFast(LIMITS, most_at_once=1000), log_of(60.0)
    long = Long(
        scheduled_ns=whole.scheduled_ns, sent_ns=whole.sent_ns, done_ns=whole.done_ns, outcome=whole.outcome
    )
    assert not fail_fast.look(long)
    assert not fail_fast.look(long)
    may_end.set()
    wait_until(lambda: fail_fast.look(long))


def test_an_error_of_the_thread_is_one_of_the_next_look() -> None:
    fail_fast, whole = FailFast(LIMITS, most_at_once=1000), log_of(60.0)
    violated = RequestLog(
        scheduled_ns=whole.scheduled_ns, sent_ns=whole.sent_ns, done_ns=whole.done_ns[:10], outcome=whole.outcome
    )
    with pytest.raises(ValueError, match="broadcast"):
        wait_until(lambda: fail_fast.look(violated))
