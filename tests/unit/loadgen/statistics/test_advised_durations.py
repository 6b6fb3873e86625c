"""Equal runs are advised about the same duration, however near to the limit the server is."""

import numpy as np
import pytest
from fast_queue import batched_queue
from simulated_queues import log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.statistics.checks import judge

LIMITS = Limits(latency=(LatencyLimit(limit_ms=300.0),))
SERVICE_S = np.array([[1.0, 1.0], [1.0, 0.012]])
"""12 ms per request, one at a time: 83/s at most."""


def run_of(rate_per_s: float, duration_s: float, seed: int) -> RequestLog:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, int(1.2 * rate_per_s * duration_s) + 20))
    arrivals = arrivals[arrivals < duration_s]
    noise = np.exp(rng.normal(0.0, 0.05, 4093))
    return log_of(arrivals, batched_queue(arrivals, service_s=SERVICE_S, noise=noise, delay_s=0.0))


@pytest.mark.parametrize("rate_per_s", [70.0, 74.0, 78.0, 80.0])
def test_equal_runs_near_the_limit_are_advised_two_to_eight_times_their_length(rate_per_s: float) -> None:
    checks = [judge(run_of(rate_per_s, 20.0, seed), LIMITS)[0] for seed in range(12)]
    advised = [check.needed_s for check in checks if check.answer == "inconclusive"]
    assert len(advised) > 6
    assert all(needed_s is not None and 35.0 < needed_s < 165.0 for needed_s in advised)


def test_a_run_that_is_far_too_short_is_advised_what_a_run_without_violations_takes() -> None:
    """Eight times 2 s would not be enough: 300 ms at 10/s and p99 take 40 s and more."""
    (check,) = judge(run_of(10.0, 2.5, 1), LIMITS)
    assert check.answer == "inconclusive"
    assert check.needed_s > 60.0
    (longer,) = judge(run_of(10.0, 1.3 * check.needed_s, 2), LIMITS)
    assert longer.answer == "met"
