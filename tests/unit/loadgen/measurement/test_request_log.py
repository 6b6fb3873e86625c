import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_records import shard_result
from numpy.typing import NDArray

from loadgen.measurement.request_log import (
    Measurement,
    RequestLog,
    concatenate,
    errors_by_kind,
    percentiles_ns,
)
from loadgen.measurement.result import measurement_of
from loadgen.measurement.server_stats import ServerTimings
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.status import CLIENT_LIMIT, TIMED_OUT, outcome_of_http

MS = 1_000_000
PLAN = LoadPlan(rate_per_s=1000, duration_s=1.0, seed=0, timeout_s=2.0)


def log_of(
    latency_ms: NDArray[Any] | list[Any],
    *,
    lag_ms: float | list[float] = 0.0,
    outcome: list[Any] | None = None,
    gap_ms: float = 1.0,
) -> RequestLog:
    """Requests `gap_ms` apart with these latencies from their schedule."""
    latency_ns = (np.asarray(latency_ms, float) * MS).astype(np.int64)
    scheduled = (np.arange(len(latency_ns)) * gap_ms * MS).astype(np.int64)
    lag_ns = (np.broadcast_to(np.asarray(lag_ms, float), len(latency_ns)) * MS).astype(np.int64)
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled + lag_ns,
        done_ns=scheduled + latency_ns,
        outcome=np.zeros(len(latency_ns), np.uint8) if outcome is None else np.asarray(outcome, np.uint8),
    )


def measured(log: RequestLog, plan: LoadPlan | ClosedLoopPlan = PLAN, **options: Any) -> Measurement:
    return measurement_of(log, plan, [options.pop("sent_by", shard_result())], **options)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300), st.floats(0.001, 1.0))
def test_a_percentile_is_the_least_time_that_the_fraction_does_not_exceed(
    times: list[Any], quantile: float
) -> None:
    [found] = percentiles_ns(np.array(times, np.int64), [quantile])
    assert found in times
    assert sum(time <= found for time in times) >= quantile * len(times) - 1e-9
    assert sum(time < found for time in times) < quantile * len(times)


@pytest.mark.parametrize(("most_ms", "bad"), [(None, True), (8.9, True), (9.1, False)])
@pytest.mark.parametrize("plan", [PLAN, ClosedLoopPlan(concurrency=1, duration_s=1.0)])
def test_who_asks_for_it_may_send_later(plan: LoadPlan | ClosedLoopPlan, most_ms: float | None, bad: bool) -> None:
    plan = replace(plan, most_send_lag_ms=most_ms)
    problems = measured(log_of([20.0] * 100, lag_ms=9.0), plan, limit_ms=50.0).problems
    assert bool(problems) is bad


@pytest.mark.parametrize(("service_ms", "bad"), [(40.0, True), (70.0, True), (80.0, False), (800.0, False)])
def test_a_late_client_does_not_excuse_a_server_that_is_overloaded_far_beyond_it(
    service_ms: float, bad: bool
) -> None:
    problems = measured(log_of([9.0 + service_ms] * 100, lag_ms=9.0), limit_ms=50.0).problems
    assert bool(problems) is bad


def test_some_slow_answers_do_not_excuse_a_late_client() -> None:
    problems = measured(log_of([900.0] * 40 + [20.0] * 60, lag_ms=9.0), limit_ms=50.0).problems
    assert len(problems) == 1


def test_latency_counts_from_the_schedule_and_service_time_from_the_send() -> None:
    seen = measured(log_of([10.0] * 100, lag_ms=4.0))
    assert seen.p50_ms == seen.p99_ms == 10.0
    assert seen.service_p99_ms == 6.0
    assert seen.send_lag_p50_ms == seen.send_lag_p99_ms == 4.0


def test_failures_count_at_the_time_out_or_their_own_time_and_by_kind() -> None:
    refused, broken = 0.1, 2.5e3
    log = log_of([5.0] * 98 + [refused, broken], outcome=[0] * 98 + [outcome_of_http(503), TIMED_OUT])
    seen = measured(log)
    assert seen.p90_ms == 5.0
    assert seen.p99_ms == 2000.0
    assert seen.max_ms == 2500.0
    assert seen.errors == {"http 503": 1, "time-out": 1}
    assert log.done_ns[98] == log.scheduled_ns[98] + 0.1 * MS  # the log itself keeps what happened


def server_saw(requests: int) -> ServerTimings:
    stage: dict[str, Any] = dict.fromkeys(("queue_ms", "input_ms", "infer_ms", "output_ms", "total_ms"), 1.0)
    return ServerTimings(requests=requests, failures=0, mean_batch_size=1.0, batches=(), **stage)


@pytest.mark.parametrize(
    ("answered_by_server", "lost"),
    [(100, 10), (101, 10), (96, 6), (91, 0), (90, 0), (150, 0)],
    ids=["all", "and a check", "some", "a check", "none", "with those of others"],
)
def test_answers_that_the_server_sent_and_nobody_got_are_told(answered_by_server: int, lost: int) -> None:
    log = log_of([5.0] * 90 + [2.5e3] * 10, outcome=[0] * 90 + [TIMED_OUT] * 10)
    said = measured(log, server=server_saw(answered_by_server)).error_example
    assert (said or "").startswith(f"the server counts {lost} of them as answered") is bool(lost)


def test_the_most_frequent_error_comes_first() -> None:
    assert list(errors_by_kind(log_of([1.0] * 4, outcome=[1, 3, 3, 0]))) == ["connection closed", "time-out"]


@pytest.mark.parametrize(
    ("limit_ms", "lag_ms", "bad"), [(None, 0.9, 0), (None, 1.1, 1), (50, 2.4, 0), (50, 2.6, 1)]
)
def test_late_sends_are_a_problem_beyond_a_millisecond_or_a_twentieth_of_the_limit(
    limit_ms: int | None, lag_ms: float, bad: int
) -> None:
    problems = measured(log_of([20.0] * 100, lag_ms=lag_ms), limit_ms=limit_ms).problems
    assert len(problems) == bad
    assert not bad or f"{lag_ms:.2f} ms" in problems[0]


def test_one_late_send_in_two_hundred_is_not() -> None:
    assert measured(log_of([20.0] * 200, lag_ms=[0.0] * 199 + [15.0]), limit_ms=50.0).problems == ()


def test_a_busy_client_is_a_problem_and_named_as_the_cause_of_late_sends() -> None:
    busy = shard_result(cpu_s=0.93)
    problems = measured(log_of([20.0] * 100, lag_ms=9.0), sent_by=busy).problems
    assert len(problems) == 2
    assert "the load process was busy" in problems[0]
    assert "93%" in problems[1]


def test_another_run_is_named_as_a_cause_of_late_sends() -> None:
    beside = shard_result(beside=("optimize (process 7)", "loadtest (process 9)"))
    [problem] = measured(log_of([20.0] * 100, lag_ms=9.0), sent_by=beside).problems
    assert "optimize (process 7) and loadtest (process 9)" in problem
    assert measured(log_of([20.0] * 100), sent_by=beside).problems == ()


def test_a_client_out_of_files_is_a_problem() -> None:
    [problem] = measured(log_of([1.0] * 10, outcome=[CLIENT_LIMIT] * 10)).problems
    assert problem.startswith("10 requests found no free file or port")


def test_nothing_sent_is_nan_and_a_problem() -> None:
    seen = measured(log_of([]))
    assert seen.n == 0
    assert math.isnan(seen.p99_ms)
    assert seen.achieved_rate_per_s == 0
    assert len(seen.problems) == 1


def test_the_achieved_rate_of_a_stopped_run_counts_up_to_its_last_send() -> None:
    log = log_of([1.0] * 101)
    assert measured(log).achieved_rate_per_s == 101
    assert measured(log, stopped=True).achieved_rate_per_s == pytest.approx(1010)


def test_requests_that_a_cap_held_back_do_not_blame_the_client() -> None:
    plan = LoadPlan(rate_per_s=1000, duration_s=1.0, seed=0, max_in_flight=1)
    n = 100
    done_ms = 5.0 * np.arange(1, n + 1)
    sent_ms = np.concatenate(([0.0], done_ms[:-1]))
    log = RequestLog(
        scheduled_ns=np.arange(n) * MS,
        sent_ns=(sent_ms * MS).astype(np.int64),
        done_ns=(done_ms * MS).astype(np.int64),
        outcome=np.zeros(n, np.uint8),
    )
    seen = measured(log, plan, limit_ms=50.0)
    assert seen.problems == ()
    assert seen.send_lag_p99_ms == 0.0
    assert seen.p99_ms > 350


def test_parts_of_a_log_and_their_union() -> None:
    log = log_of(np.arange(10.0) + 1)
    early, late = log.between(0.0, 0.004), log.between(0.004, 1.0)
    assert (len(early), len(late)) == (4, 6)
    whole = concatenate([late, early])
    assert np.array_equal(whole.scheduled_ns, log.scheduled_ns)
    assert np.array_equal(whole.done_ns, log.done_ns)
