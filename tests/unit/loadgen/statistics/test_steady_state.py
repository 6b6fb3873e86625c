from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_queues import LONG_BURSTS, log_of

from loadgen.statistics.steady_state import left_out_ns, steady_state


def arrivals(rate: float, seconds: float, seed: int = 0) -> NDArray[Any]:
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(1.2 * rate * seconds) + 50))
    return times[times < seconds]


def noisy(times: NDArray[Any], mean_s: NDArray[Any] | float, seed: int = 1) -> NDArray[Any]:
    return times + mean_s * np.random.default_rng(seed).gamma(4, 1 / 4, len(times))


@pytest.mark.parametrize(("limit_ms", "expected_s"), [(10, 1), (500, 1.5), (900, 2.7)])
def test_the_first_second_and_three_limits_are_dropped(limit_ms: float, expected_s: float) -> None:
    times = arrivals(300, 10)
    steady = steady_state(log_of(times, noisy(times, 0.005)), limit_ms=limit_ms)
    assert steady.earliest_ns == left_out_ns(limit_ms) == expected_s * 1e9
    assert steady.start_ns >= steady.earliest_ns
    assert steady.stationary
    assert not steady.backed_up


def test_a_slow_beginning_is_cut() -> None:
    times = arrivals(300, 20)
    steady = steady_state(log_of(times, noisy(times, np.where(times < 4, 0.05, 0.005))), limit_ms=100)
    assert 3.7e9 <= steady.start_ns <= 5e9
    assert steady.stationary


def test_a_run_that_keeps_getting_slower_is_not_stationary() -> None:
    times = arrivals(300, 20)
    steady = steady_state(log_of(times, noisy(times, 0.005 * np.exp(times / 4))), limit_ms=1000)
    assert not steady.stationary


def test_a_growing_queue_is_overloaded() -> None:
    log = next(LONG_BURSTS.logs(1300, 6, seed=1, runs=1))
    steady = steady_state(log, limit_ms=LONG_BURSTS.limit_ms)
    assert steady.backed_up
    assert steady.growing


def test_a_queue_at_its_limit_is_not_overloaded() -> None:
    for log in LONG_BURSTS.logs(LONG_BURSTS.rate_at_limit_per_s, 10, seed=1, runs=20):
        assert not steady_state(log, limit_ms=LONG_BURSTS.limit_ms).growing


@pytest.mark.parametrize("seconds", [0, 0.5, 1.02, 2])
def test_any_beginning_of_a_run_can_be_asked_about(seconds: float) -> None:
    times = arrivals(300, seconds) if seconds else np.empty(0)
    steady = steady_state(log_of(times, noisy(times, 0.005)), limit_ms=20)
    assert steady.start_ns == steady.earliest_ns
    assert steady.stationary
    assert not steady.backed_up
    assert not steady.growing


def test_empty_bins_are_no_obstacle() -> None:
    times = np.concatenate([np.linspace(0, 2, 50), np.linspace(6, 20, 200)])
    assert steady_state(log_of(times, times + 0.01), limit_ms=20).stationary


def test_at_most_half_of_a_run_is_cut() -> None:
    times = arrivals(300, 21.2)
    steady = steady_state(log_of(times, noisy(times, np.where(times < 11.2, 0.05, 0.005))), limit_ms=100)
    assert steady.start_ns == 11e9
    assert steady.stationary


RATE = 200.0


def last_second(waiting: Any, limit_ms: float) -> tuple[bool, bool]:
    """What is said of 20 s at 200/s, where `waiting` tells by the seconds before the end how many wait."""
    times = np.arange(0, 20, 1 / RATE) + 1 / RATE
    before_end_s = times[-1] - times
    ahead = (
        np.broadcast_to(waiting(before_end_s), times.shape) / RATE
    )  # a request of that time is done so much later
    steady = steady_state(log_of(times, times + ahead), limit_ms=limit_ms)
    return steady.backed_up, steady.growing


@pytest.mark.parametrize(("limit_ms", "most"), [(5, 8), (20, 12), (50, 30)])
def test_more_than_three_limits_worth_of_requests_that_wait_all_the_time_are_a_backlog(
    limit_ms: float, most: int
) -> None:
    """`most` is 3 x limit x rate, eight at the least."""
    assert last_second(lambda _: most + 1.5, limit_ms) == (True, False)
    assert last_second(lambda _: most - 0.5, limit_ms) == (False, False)


def test_a_backlog_that_grows_throughout_the_last_second_is_an_overload() -> None:
    assert last_second(lambda before_s: 30 - 20 * np.minimum(before_s, 0.3), 20) == (
        True,
        False,
    )  # in the end only
    assert last_second(lambda before_s: 40 - 10 * np.minimum(before_s, 2), 20) == (True, True)
    assert last_second(lambda before_s: 20 + 10 * np.minimum(before_s, 2), 20) == (True, False)
    assert last_second(lambda before_s: 40 - 10 * np.abs(0.5 - np.minimum(before_s, 1)), 20) == (True, False)


@pytest.mark.parametrize(("gone_s", "backed_up"), [(0.95, False), (1.4, True)])
def test_a_backlog_is_judged_by_the_last_second_alone(gone_s: float, backed_up: bool) -> None:
    """For a moment, so long before the end, nothing waits."""
    found = last_second(lambda before_s: np.where(np.abs(before_s - gone_s) < 0.12, 0.1, 20), 20)
    assert found == (backed_up, False)
