import math

import numpy as np
import pytest
from simulated_queues import log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.confirm import served_per_s

S = 1_000_000_000


def queue(rate_per_s: float, service_s: float, seconds: float, seed: int = 0) -> RequestLog:
    """One server, Poisson arrivals: the log of everything that was due within so many seconds."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate_per_s, round(rate_per_s * seconds)))
    done = np.empty_like(due)
    free = 0.0
    for index, at in enumerate(due):
        free = done[index] = max(free, at) + service_s
    return log_of(due, done)


@pytest.mark.parametrize("overload", [1.2, 2.0, 4.0])
def test_an_overloaded_server_shows_its_own_speed(overload: float) -> None:
    assert served_per_s(queue(100 * overload, 0.01, 20.0), 50.0) == pytest.approx(100, rel=0.02)


def test_a_server_that_is_late_now_and_then_shows_the_rate_of_the_load() -> None:
    assert served_per_s(queue(80.0, 0.01, 60.0), 40.0) == pytest.approx(80, rel=0.1)


def test_a_server_that_is_hardly_ever_late_tells_nothing() -> None:
    assert served_per_s(queue(50.0, 0.01, 10.0), 100.0) == math.inf


def test_failures_are_no_answers() -> None:
    log = queue(200.0, 0.01, 20.0)
    log.outcome[::2] = 1
    assert served_per_s(log, 50.0) == pytest.approx(50, rel=0.05)


def test_answers_before_the_first_late_one_and_after_the_last_do_not_count() -> None:
    """Ten a second for ten seconds; those from second 4 to second 6 are late."""
    done_ns = np.arange(1, 101) * S // 10
    late = (done_ns >= 4 * S) & (done_ns <= 6 * S)
    scheduled_ns = done_ns - np.where(late, S // 5, S // 1000)
    log = RequestLog(
        scheduled_ns=scheduled_ns, sent_ns=scheduled_ns, done_ns=done_ns, outcome=np.zeros(100, np.uint8)
    )
    assert served_per_s(log, 50.0) == 10.0
