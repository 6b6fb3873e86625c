import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_queues import log_of

from loadgen.certify import certify
from loadgen.evidence import most_violations, share_at_least, share_at_most
from loadgen.measurement import RequestLog

LIMIT_MS = 20.0


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
def test_figures_fit_together(log):
    verdict = certify(log, limit_ms=LIMIT_MS)
    assert 0 <= verdict.violations <= verdict.n <= len(log.outcome)
    assert 0 <= verdict.share_lower <= verdict.share_upper <= 1
    assert verdict.latency_lower_ms <= verdict.latency_upper_ms
    if verdict.n:
        assert verdict.share_lower <= verdict.share <= verdict.share_upper
    if verdict.answer == "kept":
        assert verdict.share_upper <= 0.01
        assert verdict.latency_upper_ms <= LIMIT_MS


@settings(max_examples=60, deadline=None)
@given(log=logs(), share=st.sampled_from([0.001, 0.02, 0.5]), seed=st.integers(0, 2**32))
def test_more_violations_never_turn_no_into_yes(log, share, seed):
    worse = np.random.default_rng(seed).random(len(log.outcome)) < share
    spoilt = dataclasses.replace(log, outcome=np.where(worse, 1, log.outcome).astype(np.uint8))
    before, after = certify(log, limit_ms=LIMIT_MS).answer, certify(spoilt, limit_ms=LIMIT_MS).answer
    assert not (before == "broken" and after == "kept")


@settings(max_examples=40, deadline=None)
@given(log=logs())
def test_a_limit_that_is_kept_is_not_broken_when_it_is_looser(log):
    strict, loose = certify(log, limit_ms=LIMIT_MS), certify(log, limit_ms=50 * LIMIT_MS)
    assert not (strict.answer == "kept" and loose.answer == "broken")


@given(
    violations=st.integers(0, 500),
    n=st.integers(500, 10**6),
    burst=st.floats(1, 1e4),
    share=st.floats(1e-4, 0.5),
    confidence=st.floats(0.6, 0.999),
)
@settings(deadline=None)
def test_bounds_hold_for_all_counts(violations, n, burst, share, confidence):
    lower = share_at_least(violations, n, burst, confidence)
    upper = share_at_most(violations, n, burst, confidence)
    assert 0 <= lower <= violations / n <= upper <= 1
    most = most_violations(n, share, burst, confidence)
    assert -1 <= most < n * share
    assert most_violations(n, share, 2 * burst, confidence) <= most
