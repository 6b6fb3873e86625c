import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_queues import LONG_BURSTS

from loadgen.statistics.dependence import Clustering, _bursts, bursts

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


UPPER = 1.6449  # of the standard normal, one-sided 95 %


def inflation(counts: NDArray[Any], slower: NDArray[Any]) -> float:
    """How much more the violations of blocks vary than independent ones of the same share; the upper bound of it.

    From the sample variance, and its relative standard error of sqrt(2 / blocks).
    """
    share = slower.sum() / counts.sum()
    ratio = np.var(slower - share * counts, ddof=1) / (counts.mean() * share * (1 - share))
    return ratio / max(1 - share, 0.5) * (1 + UPPER * math.sqrt(2 / len(counts)))


def of_blocks(
    counts: NDArray[np.int64], *slower: NDArray[Any], block_ns: int = 100 * MS, limit_ns: int = MS
) -> Clustering:
    return _bursts(counts, np.array(slower), counts.mean() / block_ns * 1e9, limit_ns)


UNLIKE = np.array([0, 9, 1, 9, 0, 8, 2, 7, 0, 9, 1, 9])
"""Violations of blocks whose neighbours differ, so that no block is joined to another."""


@pytest.mark.parametrize("each", [20, 60])
@pytest.mark.parametrize("blocks", [8, 9, 12])
def test_where_neighbours_do_not_correlate_the_variance_between_blocks_says_it(each: int, blocks: int) -> None:
    counts, slower = np.full(blocks, each), UNLIKE[:blocks]
    found = of_blocks(counts, slower)
    assert found.vif == pytest.approx(inflation(counts, slower), rel=1e-4)
    assert (found.size, found.size_to_break) == pytest.approx((found.vif / 2, max(1.0, found.vif / 6)))


def test_blocks_of_unlike_numbers_of_requests_vary_by_that_too() -> None:
    counts, slower = np.tile([20, 100, 60], 4), UNLIKE
    assert of_blocks(counts, slower).vif == pytest.approx(inflation(counts, slower), rel=1e-4)


def test_where_most_are_violations_it_is_no_more_than_doubled_for_a_level_that_few_exceed() -> None:
    counts = np.full(12, 20)
    assert of_blocks(counts, 20 - UNLIKE).vif == pytest.approx(inflation(counts, 20 - UNLIKE), rel=1e-4)


def test_the_level_that_varies_most_counts() -> None:
    counts = np.full(12, 20)
    even = np.full(12, 5)
    expected = of_blocks(counts, UNLIKE)
    assert of_blocks(counts, UNLIKE, even) == of_blocks(counts, even, UNLIKE) == expected


@pytest.mark.parametrize("slower", [0, 20])
def test_levels_that_none_or_all_exceed_say_nothing(slower: int) -> None:
    assert of_blocks(np.full(8, 20), np.full(8, slower)).vif == 1.0


@pytest.mark.parametrize(("joined", "blocks"), [(2, 24), (2, 25), (4, 48), (4, 50)])
def test_blocks_whose_neighbours_are_alike_are_joined(joined: int, blocks: int) -> None:
    """Neighbours correlate, until blocks are so long that what comes together is in one."""
    apart = np.array([0, 7, 1, 5, 8, 9, 2, 0, 4, 8, 6, 0])
    slower = np.append(np.repeat(apart, joined), [0, 0])[:blocks]
    expected = inflation(np.full(12, 20 * joined), apart * joined)
    assert of_blocks(np.full(blocks, 20), slower).vif == pytest.approx(expected, rel=0.05 if blocks % 12 else 1e-4)


def test_each_level_is_measured_at_blocks_of_its_own() -> None:
    """The first is done with at once; that the second goes on does not change it, whatever it would look like."""
    alike = np.repeat([3, 0, 3, 1, 2, 0, 3, 0, 3, 0, 2, 1], 2)
    pairs = np.tile([0, 20, 20, 0], 6)  # as unlike as can be, yet the same in any two
    alone = of_blocks(np.full(24, 40), pairs)
    assert alone.vif == pytest.approx(inflation(np.full(24, 40), pairs), rel=1e-4)
    assert of_blocks(np.full(24, 40), pairs, alike) == alone


def test_what_correlation_remains_in_the_fewest_blocks_is_made_up_for() -> None:
    counts, slower = np.full(12, 20), np.repeat([0, 4], 6)
    lag_1 = 9 / 12  # of the eleven pairs of neighbours ten are alike and one is not
    expected = inflation(counts, slower) * (1 + lag_1) / (1 - lag_1)
    assert of_blocks(counts, slower).vif == pytest.approx(expected, rel=1e-4)


def test_no_correlation_is_taken_for_more_than_nine_tenths() -> None:
    """In one slow wave of fifteen blocks, the smoothest there is."""
    counts = np.full(15, 2000)
    wave = np.round(1000 + 900 * np.sin(2 * np.pi * np.arange(1, 16) / 16)).astype(int)
    excess = wave - 1000
    assert excess[1:] @ excess[:-1] / (excess @ excess) > 0.91
    assert of_blocks(counts, wave).vif == pytest.approx(inflation(counts, wave) * 1.9 / 0.1, rel=1e-4)


def test_a_level_that_is_done_with_stays_so() -> None:
    """Its blocks of a sixth of these would correlate again, and say far more."""
    counts = np.full(48, 40)
    done = np.tile([0, 20] * 4 + [0] * 8, 3)
    goes_on = np.repeat([0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0], 4)
    assert of_blocks(counts, goes_on, limit_ns=MS).vif < inflation(counts, done)
    assert of_blocks(counts, done, goes_on).vif == pytest.approx(inflation(counts, done), rel=1e-4)


def test_neighbours_are_alike_from_a_correlation_of_a_fifth_on() -> None:
    excess = np.array([-2, 2, -1, 0, 3, 2, 3, 0, -3, -3, -2, 1, 3, -2, -3, 2])
    assert 5 * (excess[1:] @ excess[:-1]) == excess @ excess
    counts = np.full(16, 20)
    expected = inflation(counts.reshape(-1, 2).sum(axis=1), (5 + excess).reshape(-1, 2).sum(axis=1))
    assert of_blocks(counts, 5 + excess).vif == pytest.approx(expected, rel=1e-4)


def test_the_first_block_shows_levels_too() -> None:
    """Sixty slow requests among 800 of 0.8 s, all in the first tenth."""
    latency_ns = np.where(np.arange(800) < 60, 30 * MS, 0) + np.arange(800)
    found = bursts(np.arange(801) * MS, np.append(latency_ns, 0), limit_ns=40 * MS, start_ns=0)
    assert found.size > 40 > 2 * 0.040 / 4 * 1000


@pytest.mark.parametrize(("seconds", "least", "most"), [(102.4, 40, 45), (204.8, 1, 1)])
def test_a_run_has_no_more_than_1024_blocks(seconds: float, least: int, most: int) -> None:
    """Every other 0.1 s all requests are slow: the blocks of a run of 102.4 s differ, those of one twice as long
    are 0.2 s, and alike."""
    n = round(200 * seconds)
    latency_ns = np.where(np.arange(n + 1) // 20 % 2, 30 * MS, MS)
    found = bursts(np.arange(n + 1) * 5 * MS, latency_ns, limit_ns=5 * MS, start_ns=0)
    assert least <= found.vif <= most


@pytest.mark.parametrize(("slow_ms", "counts"), [(9, False), (11, True), (30, True)])
def test_levels_of_a_quarter_of_the_limit_or_more_count_wherever_they_are_exceeded(
    slow_ms: int, counts: bool
) -> None:
    """Sixty slow requests among 800 of 0.8 s, all in the last tenth."""
    latency_ns = np.where(np.arange(801) >= 740, slow_ms * MS, 0) + np.arange(801)
    latency_ns[800] = 0  # due when the last block is over
    found = bursts(np.arange(801) * MS, latency_ns, limit_ns=40 * MS, start_ns=0)
    at_least = 0.040 / 4 * 801 / 0.8  # a quarter of the limit's worth of requests
    assert (found.size > 40) is counts
    assert counts or found.size == pytest.approx(at_least)
