"""A run that changed in its middle: nearly all late requests in one half, and not in a single burst."""

import numpy as np
import pytest

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.checks import change_of

LIMITS = (LatencyLimit(limit_ms=50.0),)
WARM, MIDDLE, END = 100, 2100, 4100
"""The first request after the warm-up of 1 s, the first of the second half, and the number of all."""


def log_of(*late: slice, requests: int = END) -> RequestLog:
    """A request every 10 ms, answered in 1 ms but for those that are late: they take 80 ms."""
    scheduled = np.arange(requests) * 10_000_000
    taken = np.full(requests, 1_000_000)
    for rows in late:
        taken[rows] = 80_000_000
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled,
        done_ns=scheduled + taken,
        outcome=np.zeros(requests, np.uint8),
    )


@pytest.mark.parametrize(
    ("rows", "half"),
    [(slice(MIDDLE, END, 20), "second"), (slice(WARM, MIDDLE, 20), "first")],
    ids=["later", "sooner"],
)
def test_nearly_all_late_requests_in_one_half_are_a_change(rows: slice, half: str) -> None:
    assert change_of(log_of(rows), LIMITS) == (
        f"100 of the 100 requests over p99 <= 50 ms came in the {half} half of the run"
    )


def test_late_requests_in_both_halves_are_no_change() -> None:
    assert change_of(log_of(slice(WARM, END, 20)), LIMITS) is None


def test_the_warm_up_does_not_count() -> None:
    assert change_of(log_of(slice(0, WARM)), LIMITS) is None


def test_no_more_late_requests_than_allowed_are_no_change() -> None:
    """1 % of the 4,000 requests after the warm-up are 40."""
    assert change_of(log_of(slice(MIDDLE, MIDDLE + 41 * 48, 48)), LIMITS) is not None
    assert change_of(log_of(slice(MIDDLE, MIDDLE + 39 * 48, 48)), LIMITS) is None


def test_a_single_burst_is_no_change() -> None:
    """It covers two of the four parts of a half, or a little of a third."""
    assert change_of(log_of(slice(MIDDLE, MIDDLE + 1000)), LIMITS) is None
    assert change_of(log_of(slice(MIDDLE, MIDDLE + 1001)), LIMITS) is not None


def test_the_first_limit_that_shows_a_change_names_it() -> None:
    log = log_of(slice(MIDDLE, END, 20))
    found = change_of(log, (LatencyLimit(limit_ms=90.0), LatencyLimit(limit_ms=60.0), *LIMITS))
    assert found is not None
    assert "over p99 <= 60 ms" in found


@pytest.mark.parametrize("requests", [0, 1, WARM - 10])
def test_a_run_that_ended_in_its_warm_up_shows_nothing(requests: int) -> None:
    assert change_of(log_of(slice(0, END), requests=requests), LIMITS) is None
