import numpy as np
import pytest
from simulated_queues import LONG_BURSTS, log_of

from loadgen.warmup import steady_state


def arrivals(rate: float, seconds: float, seed: int = 0) -> np.ndarray:
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(1.2 * rate * seconds) + 50))
    return times[times < seconds]


def noisy(times: np.ndarray, mean_s: np.ndarray | float, seed: int = 1) -> np.ndarray:
    return times + mean_s * np.random.default_rng(seed).gamma(4, 1 / 4, len(times))


@pytest.mark.parametrize(
    ("limit_ms", "warmup_s", "expected_s"), [(10, 0, 1), (500, 0, 1.5), (10, 4, 4), (500, 1.2, 1.5)]
)
def test_the_first_second_three_limits_and_the_given_time_are_dropped(limit_ms, warmup_s, expected_s):
    times = arrivals(300, 10)
    steady = steady_state(log_of(times, noisy(times, 0.005)), limit_ms=limit_ms, warmup_s=warmup_s)
    assert steady.earliest_ns == expected_s * 1e9
    assert steady.start_ns >= steady.earliest_ns
    assert steady.stationary
    assert not steady.backed_up


def test_a_slow_beginning_is_cut():
    times = arrivals(300, 20)
    steady = steady_state(log_of(times, noisy(times, np.where(times < 4, 0.05, 0.005))), limit_ms=100)
    assert 3.7e9 <= steady.start_ns <= 5e9
    assert steady.stationary


def test_a_run_that_keeps_getting_slower_is_not_stationary():
    times = arrivals(300, 20)
    steady = steady_state(log_of(times, noisy(times, 0.005 * np.exp(times / 4))), limit_ms=1000)
    assert not steady.stationary


def test_a_growing_queue_is_overloaded():
    log = next(LONG_BURSTS.logs(1300, 6, seed=1, runs=1))
    steady = steady_state(log, limit_ms=LONG_BURSTS.limit_ms)
    assert steady.backed_up
    assert steady.growing


def test_a_queue_at_its_limit_is_not_overloaded():
    for log in LONG_BURSTS.logs(LONG_BURSTS.rate_at_limit_per_s, 10, seed=1, runs=20):
        assert not steady_state(log, limit_ms=LONG_BURSTS.limit_ms).growing


@pytest.mark.parametrize("seconds", [0, 0.5, 1.02, 2])
def test_any_beginning_of_a_run_can_be_asked_about(seconds):
    times = arrivals(300, seconds) if seconds else np.empty(0)
    steady = steady_state(log_of(times, noisy(times, 0.005)), limit_ms=20)
    assert steady.start_ns == steady.earliest_ns
    assert not steady.backed_up


def test_empty_bins_are_no_obstacle():
    times = np.concatenate([np.linspace(0, 2, 50), np.linspace(6, 20, 200)])
    assert steady_state(log_of(times, times + 0.01), limit_ms=20).stationary
