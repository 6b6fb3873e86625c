import dataclasses
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_queues import log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.sequential import most_violations, share_at_least, share_at_most
from loadgen.statistics.slo_test import certify

LIMIT_MS = 20.0
LIMIT = LatencyLimit(limit_ms=LIMIT_MS)


@st.composite
def logs(draw: st.DrawFn) -> RequestLog:
    """Runs of 0 to 20 s with bursts of slow requests of all lengths and depths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seconds, rate = draw(st.sampled_from([0, 2, 8, 20])), draw(st.sampled_from([20, 300, 2000]))
    times = np.sort(rng.uniform(0, seconds, int(seconds * rate)))
    latency = rng.exponential(draw(st.sampled_from([0.001, 0.004, 0.008])), len(times))
    for _ in range(draw(st.integers(0, 6))):
        start, length = rng.uniform(0, 20), rng.exponential(draw(st.sampled_from([0.01, 0.5])))
        latency[(times >= start) & (times < start + length)] += draw(st.sampled_from([0.01, 0.03, 3]))
    log = log_of(times, times + latency)
    failed = rng.random(len(times)) < draw(st.sampled_from([0, 0, 0.002, 0.5]))
    return dataclasses.replace(log, outcome=failed.astype(np.uint8))


@settings(max_examples=60, deadline=None)
@given(log=logs())
def test_figures_fit_together(log: RequestLog) -> None:
    verdict = certify(log, LIMIT)
    assert 0 <= verdict.violations <= verdict.n <= len(log.outcome)
    assert 0 <= verdict.share_lower <= verdict.share_upper <= 1
    assert verdict.latency_lower_ms <= verdict.latency_upper_ms
    if verdict.n:
        assert verdict.share_lower <= verdict.share <= verdict.share_upper
    if verdict.answer == "met":
        assert verdict.share_upper <= 0.01
        assert verdict.latency_upper_ms <= LIMIT_MS


@settings(max_examples=60, deadline=None)
@given(log=logs(), share=st.sampled_from([0.001, 0.02, 0.5]), seed=st.integers(0, 2**32))
def test_more_violations_never_turn_no_into_yes(log: RequestLog, share: Any, seed: int) -> None:
    worse = np.random.default_rng(seed).random(len(log.outcome)) < share
    spoilt = dataclasses.replace(log, outcome=np.where(worse, 1, log.outcome).astype(np.uint8))
    before, after = (
        certify(log, LIMIT).answer,
        certify(spoilt, LatencyLimit(limit_ms=LIMIT_MS)).answer,
    )
    assert not (before == "violated" and after == "met")


@settings(max_examples=40, deadline=None)
@given(log=logs())
def test_a_limit_that_is_met_is_not_violated_when_it_is_looser(log: RequestLog) -> None:
    strict, loose = (
        certify(log, LIMIT),
        certify(log, LatencyLimit(limit_ms=50 * LIMIT_MS)),
    )
    assert not (strict.answer == "met" and loose.answer == "violated")


@given(
    violations=st.integers(0, 500),
    n=st.integers(500, 10**6),
    burst=st.floats(1, 1e4),
    share=st.floats(1e-4, 0.5),
    confidence=st.floats(0.6, 0.999),
)
@settings(deadline=None)
def test_bounds_hold_for_all_counts(
    violations: int, n: int, burst: float, share: float, confidence: float
) -> None:
    lower = share_at_least(violations, n, burst, confidence)
    upper = share_at_most(violations, n, burst, confidence)
    assert 0 <= lower <= violations / n <= upper <= 1
    most = most_violations(n, share, burst, confidence)
    assert -1 <= most < n * share
    assert most_violations(n, share, 2 * burst, confidence) <= most
