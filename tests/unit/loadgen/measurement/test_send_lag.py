"""When a run is given up because the client is late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from load_records import no_rows

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.send_lag import JUDGED_AFTER_S, is_hopelessly_late, most_send_lag_ms, stop_when_late
from loadgen.spec.plan import LoadPlan

MS = 1_000_000
LIMIT_MS = 50.0
PLAN = LoadPlan(rate_per_s=100.0, duration_s=8.0, seed=0)  # 800 requests, of which 8 may be late
OPEN = replace(PLAN, duration_s=300.0)


def log_of(n: int, *, late: int, lag_ms: float = 5.0, service_ms: float = 48.0) -> RequestLog:
    """n requests, one every 10 ms, of which the first so many left late, and are over the limit for that."""
    due = np.arange(n) * 10 * MS
    sent = due + (np.arange(n) < late) * round(lag_ms * MS)
    done = sent + round(service_ms * MS)
    return RequestLog(scheduled_ns=due, sent_ns=sent, done_ns=done, outcome=np.zeros(n, np.uint8))


@pytest.mark.parametrize(("late", "given_up"), [(0, False), (8, False), (9, True), (100, True)])
def test_a_run_ends_as_soon_as_more_are_late_than_all_of_it_may_have(late: int, given_up: bool) -> None:
    assert is_hopelessly_late(log_of(100, late=late), PLAN, LIMIT_MS) is given_up


@pytest.mark.parametrize(("late", "given_up"), [(8, False), (9, True)])
def test_a_run_with_an_open_end_would_have_to_last_for_twice_as_long(late: int, given_up: bool) -> None:
    assert is_hopelessly_late(log_of(440, late=late), OPEN, LIMIT_MS) is given_up


def test_a_run_with_an_open_end_is_not_judged_by_its_beginning() -> None:
    before, after = (log_of(round(100 * JUDGED_AFTER_S) + more, late=50) for more in (-1, 2))
    assert not is_hopelessly_late(before, OPEN, LIMIT_MS)
    assert is_hopelessly_late(after, OPEN, LIMIT_MS)


def test_what_counts_as_late_is_what_the_plan_says_or_depends_on_the_limit() -> None:
    log = log_of(100, late=100, lag_ms=5.0)
    assert most_send_lag_ms(LIMIT_MS) < 5.0 < most_send_lag_ms(3 * LIMIT_MS)
    assert not is_hopelessly_late(log, PLAN, 3 * LIMIT_MS)
    assert not is_hopelessly_late(log, replace(PLAN, most_send_lag_ms=6.0), LIMIT_MS)
    assert is_hopelessly_late(log, replace(PLAN, most_send_lag_ms=4.0), LIMIT_MS)


def test_a_server_far_beyond_the_limit_is_not_excused_by_its_client() -> None:
    assert not is_hopelessly_late(log_of(100, late=100, service_ms=900.0), PLAN, LIMIT_MS)


def test_a_run_that_meets_the_limit_all_the_same_goes_on() -> None:
    assert not is_hopelessly_late(log_of(100, late=100, service_ms=40.0), PLAN, LIMIT_MS)


def test_lag_that_was_asked_for_is_not_the_clients() -> None:
    assert not is_hopelessly_late(log_of(100, late=100), replace(PLAN, max_in_flight=4), LIMIT_MS)


def test_nothing_is_said_of_nothing() -> None:
    assert not is_hopelessly_late(no_rows(), PLAN, LIMIT_MS)


def test_whoever_watches_is_asked_besides() -> None:
    asked = []
    watch = stop_when_late(lambda log: asked.append(log) is None and len(asked) > 1, PLAN, LIMIT_MS)
    good, late = log_of(100, late=0), log_of(100, late=100)
    assert [watch(good), watch(good)] == [False, True]
    assert stop_when_late(None, PLAN, LIMIT_MS)(late)
    assert not stop_when_late(None, PLAN, LIMIT_MS)(good)
