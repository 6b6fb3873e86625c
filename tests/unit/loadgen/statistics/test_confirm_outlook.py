"""How long a run takes until its limit is met, when that is hopeless, and how much lower the next rate is."""

import dataclasses
import math
from typing import Any

import pytest
from simulated_queues import BATCHING_GPU

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import (
    is_hopeless,
    seconds_needed,
    shortest_s,
)
from loadgen.statistics.sequential import log_evidence_below, most_violations
from loadgen.statistics.slo_test import Verdict, certify

KNEE = BATCHING_GPU.rate_at_limit_per_s


P99, P50 = LatencyLimit(quantile=0.99, limit_ms=40.0), LatencyLimit(quantile=0.5, limit_ms=800.0)
GOOD = certify(next(BATCHING_GPU.logs(0.8 * KNEE, 20, seed=3, runs=1)), LatencyLimit(limit_ms=50))


def verdict(n: int, violations: int, *, burst: float = 1.0, **changes: Any) -> Verdict:
    """Of a limit of 40 ms at the p99 where nothing else is said."""
    given: dict[str, Any] = {
        "n": n,
        "violations": violations,
        "vif": 2 * burst,
        "limit": P99,
        "answer": "inconclusive",
    }
    return dataclasses.replace(GOOD, **{**given, **changes})


@pytest.mark.parametrize(
    ("n", "violations", "burst"), [(0, 0, 1.0), (1000, 5, 1.0), (4000, 10, 12.0), (50, 0, 6.0)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_seconds_needed_are_those_in_which_the_evidence_comes_to_suffice(
    n: int, violations: int, burst: float, confidence: float
) -> None:
    found_s = seconds_needed(verdict(n, violations, burst=burst, confidence=confidence), 200.0)
    later = n + 200.0 * found_s
    share = violations / max(n, 1)
    evidence = log_evidence_below(share * later, later, 0.01, burst)
    assert evidence == pytest.approx(-math.log(1 - confidence), rel=1e-4)
    assert evidence >= -math.log(1 - confidence) - 1e-9


@pytest.mark.parametrize("never", [verdict(1000, 10), verdict(1000, 500), verdict(1000, 0, vif=math.nan)])
def test_a_share_that_is_not_below_what_is_allowed_is_never_met(never: Verdict) -> None:
    assert seconds_needed(never, 200.0) == math.inf


@pytest.mark.parametrize(("rate_per_s", "burst"), [(10.0, 1.0), (1000.0, 12.5)])
@pytest.mark.parametrize(("quantile", "confidence"), [(0.99, 0.95), (0.9, 0.95), (0.99, 0.8)])
def test_the_shortest_run_is_that_in_which_no_violation_is_just_few_enough(
    rate_per_s: float, burst: float, quantile: float, confidence: float
) -> None:
    """In bursts of a quarter of the limit's worth of requests, of one at the least."""
    limit = LatencyLimit(quantile=quantile, limit_ms=50.0)
    n = round(shortest_s(limit, rate_per_s, confidence) * rate_per_s)
    assert most_violations(n, 1 - quantile, burst, confidence) >= 0
    assert most_violations(n - 1, 1 - quantile, burst, confidence) == -1


def test_a_run_is_hopeless_if_it_takes_longer_than_is_left_though_one_burst_was_bad_luck() -> None:
    seen = verdict(4000, 36, burst=12.0)
    needed_s = seconds_needed(verdict(4000, 24, burst=12.0), 200.0)
    assert not is_hopeless(seen, 200.0, 1.001 * needed_s)
    assert is_hopeless(seen, 200.0, 0.999 * needed_s)
