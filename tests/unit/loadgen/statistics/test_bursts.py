from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_queues import LONG_BURSTS

from loadgen.statistics.dependence import bursts

MS = 1_000_000


def evenly(n: int, seconds: float) -> NDArray[Any]:
    return (np.arange(n) * seconds * 1e9 / n).astype(np.int64)


def test_independent_requests_have_no_bursts() -> None:
    latency_ns = np.random.default_rng(1).exponential(3 * MS, 40_000).astype(np.int64)
    found = bursts(evenly(40_000, 100), latency_ns, limit_ns=10 * MS, start_ns=0)
    assert 1 <= found.vif < 4
    assert found.size < 2
    assert found.size_to_break == 1


@pytest.mark.parametrize("together", [20, 100])
def test_requests_that_suffer_together_are_seen_to(together: int) -> None:
    """Blocks of equal latencies: the variance of their mean is `together` times that of independent ones."""
    one_each = np.random.default_rng(2).exponential(3 * MS, 100_000 // together).astype(np.int64)
    found = bursts(evenly(100_000, 100), np.repeat(one_each, together), limit_ns=10 * MS, start_ns=0)
    assert together < found.vif < 2.5 * together
    assert found.size == pytest.approx(found.vif / 2)


def test_bursts_are_measured_where_nothing_exceeds_the_limit() -> None:
    log = next(LONG_BURSTS.logs(0.9 * LONG_BURSTS.rate_at_limit_per_s, 30, seed=3, runs=1))
    limit_ns = int(2 * log.latency_ns.max())
    found = bursts(log.scheduled_ns, log.latency_ns, limit_ns=limit_ns, start_ns=0)
    seen = bursts(log.scheduled_ns, log.latency_ns, limit_ns=limit_ns // 4, start_ns=0)
    assert found.vif > seen.vif / 4 > 10


def test_a_server_that_could_stall_is_given_bursts_of_a_quarter_limit() -> None:
    constant = np.full(10_000, 5 * MS)
    found = bursts(evenly(10_000, 10), constant, limit_ns=400 * MS, start_ns=0)
    assert found.size == pytest.approx(0.4 / 4 * 1000, rel=0.01)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_a_short_run_cannot_tell(seconds: float) -> None:
    assert bursts(evenly(1000, seconds), np.full(1000, MS), limit_ns=10 * MS, start_ns=0) is None


def test_few_requests_cannot_tell() -> None:
    assert bursts(evenly(100, 60), np.full(100, MS), limit_ns=10 * MS, start_ns=0) is None
    assert bursts(evenly(0, 60), np.full(0, MS), limit_ns=10 * MS, start_ns=0) is None


def test_a_run_with_nothing_but_violations_still_has_figures() -> None:
    found = bursts(evenly(5000, 10), np.full(5000, 90 * MS), limit_ns=10 * MS, start_ns=0)
    assert np.isfinite(found.vif)


@pytest.mark.parametrize(
    ("slow_ms", "slowest_ms", "counts"), [(9, 21, False), (11, 21, True), (11, 19, False), (30, 30, True)]
)
def test_levels_of_a_quarter_of_the_limit_count_if_any_request_took_half_of_it(
    slow_ms: int, slowest_ms: int, counts: bool
) -> None:
    """Sixty slow requests among 800 of 0.8 s, all in the last tenth."""
    latency_ns = np.where(np.arange(801) >= 740, slow_ms * MS, 0) + np.arange(801)
    latency_ns[770] = slowest_ms * MS
    latency_ns[800] = 0  # due when the last block is over
    found = bursts(np.arange(801) * MS, latency_ns, limit_ns=40 * MS, start_ns=0)
    at_least = 0.040 / 4 * 801 / 0.8  # a quarter of the limit's worth of requests
    assert (found.size > 40) is counts
    assert counts or found.size == pytest.approx(at_least)
