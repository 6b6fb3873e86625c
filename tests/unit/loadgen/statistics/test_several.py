import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.find_capacity import find_capacity
from loadgen.statistics.slo_test import (
    certify,
    certify_each,
    certify_together,
    combined_answer,
    confidence_of_each,
    deciding_verdict,
    least_headroom,
)

P99 = LatencyLimit(quantile=0.99, limit_ms=50)
P50 = LatencyLimit(quantile=0.5, limit_ms=20)
KNEE = BATCHING_GPU.rate_at_limit_per_s


def steady_log(latency_ms: float, *, seconds: float = 20, rate: float = 300) -> RequestLog:
    times = np.arange(0, seconds, 1 / rate)
    return log_of(times, times + latency_ms / 1e3)


@given(confidence=st.floats(0.5, 0.9999), count=st.integers(1, 8))
def test_the_chances_of_error_of_all_together_are_those_that_were_asked_for(confidence: float, count: int) -> None:
    each = confidence_of_each(confidence, count)
    assert count * (1 - each) == pytest.approx(1 - confidence)
    assert confidence_of_each(confidence, 1) == confidence


def test_one_limit_is_judged_as_it_always_was() -> None:
    log = steady_log(20)
    assert certify_each(log, (P99,)) == (certify(log, LatencyLimit(limit_ms=50)),)


def test_all_are_met_only_if_each_is() -> None:
    assert combined_answer(certify_each(steady_log(10), (P99, P50))) == "met"
    over_median = certify_each(steady_log(30), (P99, P50))
    assert combined_answer(over_median) == "violated"
    assert deciding_verdict(over_median) is over_median[1] is least_headroom(over_median)
    too_short = certify_each(steady_log(10, seconds=1.2), (P99, P50))
    assert combined_answer(too_short) == "inconclusive"


def test_the_tightest_of_runs_without_requests_is_the_first() -> None:
    empty = certify_each(steady_log(10).rows(0, 0), (P99, P50))
    assert math.isnan(empty[0].latency_ms)
    assert least_headroom(empty) is empty[0]


def median_limit_rate() -> float:
    """Where half of the requests take longer than the limit of the median, by bisection over long runs."""
    median = replace(BATCHING_GPU, limit_ms=P50.limit_ms)
    low, high = 0.3 * KNEE, KNEE
    while high / low > 1.01:
        rate = math.sqrt(low * high)
        over = median.share_over_limit(rate, seed=5, requests=1e5, runs=20)
        low, high = (rate, high) if over <= 0.5 else (low, rate)
    return low


def test_the_rate_is_sought_where_the_tighter_limit_breaks() -> None:
    truth, load = median_limit_rate(), SimulatedLoad(BATCHING_GPU)
    assert truth < 0.9 * KNEE
    estimate = find_capacity(load, limits=(LatencyLimit(limit_ms=50), P50), budget_s=60, seed=1)
    assert 0.75 * truth < estimate.rate_per_s < 1.02 * truth  # short runs say little about a median


def test_a_limit_for_which_nothing_was_measured_is_not_the_tightest() -> None:
    """The warm-up is three limits long: a run of two seconds has requests after that of 50 ms, but not of 1 s."""
    slow = LatencyLimit(quantile=0.99, limit_ms=1000)
    verdicts = certify_each(steady_log(10, seconds=2), (slow, P99))
    assert [math.isnan(verdict.latency_ms) for verdict in verdicts] == [True, False]
    assert least_headroom(verdicts) is verdicts[1] is least_headroom(verdicts[::-1])


def runs_at(share: float, count: int, *, seconds: float = 8.0) -> list[RequestLog]:
    return list(BATCHING_GPU.logs(share * KNEE, seconds, seed=4, runs=count))


def test_runs_judged_together_have_the_counts_of_all_without_each_ones_beginning() -> None:
    logs = runs_at(0.9, 3)
    (together,) = certify_together(logs, (P99,))
    each = [certify(log, P99) for log in logs]
    assert together.n == sum(one.n for one in each)
    assert together.violations == sum(one.violations for one in each)
    assert certify_together(logs[:1], (P99, P50)) == certify_each(logs[0], (P99, P50))
    assert [one.confidence for one in certify_together(logs, (P99, P50))] == [0.975, 0.975]


def test_runs_of_which_none_is_long_enough_decide_together() -> None:
    logs = [steady_log(10, seconds=2.5) for _ in range(5)]
    assert {certify(log, P99).answer for log in logs} == {"inconclusive"}
    (together,) = certify_together(logs, (P99,))
    (one_long,) = certify_each(steady_log(10, seconds=1 + 5 * 1.5), (P99,))
    assert together.answer == one_long.answer == "met"


def test_an_overload_in_one_run_is_one_of_all() -> None:
    times = np.arange(0, 6, 1 / 300)
    overload = log_of(times, times + 0.01 + 2 * times)
    (found,) = certify_together([steady_log(10, seconds=60), overload], (P99,))
    assert (found.answer, found.overloaded) == ("violated", True)
