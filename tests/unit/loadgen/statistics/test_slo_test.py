import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from simulated_queues import LONG_BURSTS, log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.dependence import Clustering, bursts
from loadgen.statistics.slo_test import (
    Verdict,
    certify,
    verdict_of_counts,
    verdict_of_steady,
)
from loadgen.statistics.steady_state import Steady


def steady_log(rate: float, seconds: float, *, mean_s: float = 0.005, seed: int = 0) -> RequestLog:
    """Independent latencies at evenly spaced times."""
    times = np.arange(0, seconds, 1 / rate)
    return log_of(times, times + mean_s * np.random.default_rng(seed).gamma(4, 1 / 4, len(times)))


def failing(log: RequestLog, rows: slice) -> RequestLog:
    outcome = log.outcome.copy()
    outcome[rows] = 3
    return dataclasses.replace(log, outcome=outcome)


def test_a_fast_server_keeps_its_limit() -> None:
    verdict = certify(steady_log(1000, 15), LatencyLimit(limit_ms=30))
    assert verdict.answer == "met"
    assert verdict.share_upper <= 0.01
    assert verdict.latency_lower_ms <= verdict.latency_ms <= verdict.latency_upper_ms <= 30
    assert verdict.steady_from_s >= 1


def test_a_slow_server_breaks_its_limit() -> None:
    verdict = certify(steady_log(1000, 15), LatencyLimit(limit_ms=5))
    assert verdict.answer == "violated"
    assert verdict.share_lower > 0.01
    assert verdict.latency_lower_ms > 5
    assert verdict.share == pytest.approx(0.43, abs=0.02)  # P(Gamma(4, 1/4) > 1)


def test_failed_requests_are_violations_however_fast_they_came_back() -> None:
    log = steady_log(1000, 15)
    verdict = certify(failing(log, slice(None, None, 20)), LatencyLimit(limit_ms=30))
    assert verdict.answer == "violated"
    assert verdict.violations == pytest.approx(verdict.n / 20, abs=1)
    assert verdict.latency_ms == math.inf


def test_a_few_failed_requests_leave_the_quantile_finite() -> None:
    verdict = certify(failing(steady_log(1000, 30), slice(None, None, 1000)), LatencyLimit(limit_ms=30))
    assert verdict.answer == "met"
    assert verdict.violations == pytest.approx(verdict.n / 1000, abs=1)
    assert math.isfinite(verdict.latency_upper_ms)


@pytest.mark.parametrize("seconds", [0, 0.5, 1.01, 1.5, 2])
def test_too_little_is_inconclusive_and_says_so(seconds: float) -> None:
    verdict = certify(steady_log(1000, seconds), LatencyLimit(limit_ms=30))
    assert verdict.answer == "inconclusive"
    assert "too short" in verdict.reason or "would be enough" in verdict.reason
    assert verdict.latency_upper_ms == math.inf
    assert verdict.share_upper > 0.01
    assert (verdict.latency_lower_ms > 0) is (seconds == 2)


def test_inconclusive_says_how_many_requests_would_do() -> None:
    log = next(LONG_BURSTS.logs(0.97 * LONG_BURSTS.rate_at_limit_per_s, 8, seed=2, runs=1))
    verdict = certify(log, LatencyLimit(limit_ms=LONG_BURSTS.limit_ms))
    assert verdict.answer == "inconclusive"
    assert "requests would be enough" in verdict.reason


def test_the_interval_of_the_quantile_is_where_the_answer_changes() -> None:
    log = steady_log(1000, 30, mean_s=0.02)
    verdict = certify(log, LatencyLimit(limit_ms=45))
    assert verdict.latency_lower_ms < verdict.latency_ms < verdict.latency_upper_ms
    for limit_ms in (20, 30, 40, 45, 50, 60, 80):
        verdict = certify(log, LatencyLimit(limit_ms=limit_ms))
        assert (verdict.answer == "met") == (verdict.latency_upper_ms <= limit_ms)
        assert (verdict.answer == "violated") == (verdict.latency_lower_ms > limit_ms)


@pytest.mark.parametrize("growing", [True, False])
def test_more_and_more_requests_that_wait_are_a_verdict_before_they_are_enough_violations(growing: bool) -> None:
    """The server stands still in the last two seconds of ten minutes, or after a crowd came at once."""
    log = steady_log(1000, 600)
    stands_still = log.scheduled_ns >= 598e9
    crowd = log.scheduled_ns if growing else np.where(stands_still, 598_000_000_000, log.scheduled_ns)
    done_ns = np.where(stands_still, 700_000_000_000, log.done_ns)
    verdict = certify(
        dataclasses.replace(log, scheduled_ns=crowd, sent_ns=crowd, done_ns=done_ns), LatencyLimit(limit_ms=30)
    )
    assert verdict.violations < verdict.n * 0.005
    assert verdict.overloaded is growing
    assert verdict.answer == ("violated" if growing else "met")


BURSTS = Clustering(vif=40.0, size=20.0, size_to_break=7.0)


def verdict_of(violations: int, n: int = 20_000, found: Clustering | None = BURSTS) -> Verdict:
    return verdict_of_counts(
        LatencyLimit(limit_ms=30),
        0.95,
        n=n,
        violations=violations,
        found=found,
        start_ns=0,
        order_statistics_ms=lambda thresholds: (20.0, 25.0, 15.0),
    )


STEADY: dict[str, Any] = {
    "earliest_ns": 1, "start_ns": 1, "stationary": True, "backed_up": False, "growing": False
}  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "after_cut", "answer"),
    [
        (0, 0, "met"),
        (0, 5000, "inconclusive"),
        (5000, 0, "inconclusive"),
        (5000, 5000, "violated"),
        (150, 0, "inconclusive"),
        (0, 150, "inconclusive"),
    ],
)
def test_what_mser_cuts_off_may_not_change_the_answer(whole: int, after_cut: int, answer: str) -> None:
    steady = Steady(**{**STEADY, "earliest_ns": 1_000_000_000, "start_ns": 3_000_000_000})
    verdict = verdict_of_steady(
        steady, {1_000_000_000: verdict_of(whole), 3_000_000_000: verdict_of(after_cut)}.get
    )
    assert verdict.answer == answer
    assert verdict.reason.startswith(verdict_of(whole if answer == "inconclusive" else after_cut).reason)
    unlike = "; the first 2 s after the warm-up are unlike the rest"
    assert verdict.reason.endswith(unlike) is (answer == "inconclusive")


@pytest.mark.parametrize(
    ("changes", "answer", "said"),
    [
        ({}, "met", ""),
        ({"stationary": False}, "inconclusive", "; but the latencies had not settled"),
        ({"backed_up": True}, "inconclusive", "; but the latencies had not settled"),
        ({"backed_up": True, "growing": True}, "violated", "were waiting, and more and more for a second"),
    ],
)
def test_no_rate_is_met_while_latencies_change_or_requests_wait(
    changes: dict[Any, Any], answer: str, said: str | tuple[str, ...]
) -> None:
    verdict = verdict_of_steady(Steady(**{**STEADY, **changes}), lambda _: verdict_of(0))
    assert (verdict.answer, verdict.stationary, verdict.overloaded) == (answer, not changes, "growing" in changes)
    assert verdict.reason.endswith(said)


def test_requests_belong_to_the_warm_up_by_when_they_were_due() -> None:
    """The client stood still until the warm-up was over: those that were due in it are still left out."""
    log = steady_log(1000, 15)
    late = np.maximum(log.sent_ns, 1_500_000_000)
    log = dataclasses.replace(log, sent_ns=late, done_ns=np.maximum(log.done_ns, late + 1))
    verdict = certify(log, LatencyLimit(limit_ms=30))
    assert verdict.n == 14_000
    latency_ns = log.latency_failures_last_ns[1000:]
    found = bursts(log.scheduled_ns[1000:], latency_ns, limit_ns=30_000_000, start_ns=1_000_000_000)
    assert verdict.vif == found.vif


def test_another_quantile_is_another_promise() -> None:
    log = steady_log(1000, 15, mean_s=0.02)
    assert certify(log, LatencyLimit(limit_ms=40, quantile=0.9)).answer == "met"
    assert certify(log, LatencyLimit(limit_ms=40, quantile=0.99)).answer == "violated"


def test_drifts_far_below_the_limit_decide_nothing() -> None:
    """Batches of a GPU near its capacity: latencies at a third of the limit, 10 % longer in each second second."""
    log = steady_log(7000, 12)
    latency_ns = np.where(log.scheduled_ns // 1_000_000_000 % 2, 33_000_000, 30_000_000) + log.latency_ns // 10
    verdict = certify(dataclasses.replace(log, done_ns=log.scheduled_ns + latency_ns), LatencyLimit(limit_ms=100))
    assert (verdict.answer, verdict.violations) == ("met", 0)


def test_a_server_that_slows_down_is_not_certified() -> None:
    log = steady_log(1000, 15)
    slower = (log.latency_ns * np.exp(log.scheduled_ns / 6e9)).astype(np.int64)
    verdict = certify(dataclasses.replace(log, done_ns=log.scheduled_ns + slower), LatencyLimit(limit_ms=200))
    assert verdict.violations < verdict.n / 1000
    assert verdict.answer == "inconclusive"
    assert not verdict.stationary
    assert certify(log, LatencyLimit(limit_ms=200)).stationary


@pytest.mark.parametrize("confidence", [0, 1])
def test_impossible_confidences_are_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        certify(steady_log(100, 2), LatencyLimit(limit_ms=30), confidence=confidence)


@pytest.mark.parametrize("limit_ms", [0.5, 1.0])
def test_a_limit_may_be_a_millisecond_or_less(limit_ms: float) -> None:
    verdict = certify(steady_log(1000, 15, mean_s=limit_ms / 6000), LatencyLimit(limit_ms=limit_ms))
    assert verdict.answer == "met"
    assert verdict.latency_upper_ms <= limit_ms
