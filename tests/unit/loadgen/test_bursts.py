import math

import numpy as np
import pytest
from simulated_queues import LONG_BURSTS

from loadgen.bursts import _inflation, bursts, bursts_of_blocks
from loadgen.times import Times

MS = 1_000_000


def times(array):
    return Times(len(array), lambda rows: array[rows])


def evenly(n: int, seconds: float) -> np.ndarray:
    return (np.arange(n) * seconds * 1e9 / n).astype(np.int64)


def test_independent_requests_have_no_bursts():
    latency_ns = np.random.default_rng(1).exponential(3 * MS, 40_000).astype(np.int64)
    found = bursts(evenly(40_000, 100), times(latency_ns), limit_ns=10 * MS, start_ns=0)
    assert 1 <= found.vif < 4
    assert found.size < 2
    assert found.size_to_break == 1


@pytest.mark.parametrize("together", [20, 100])
def test_requests_that_suffer_together_are_seen_to(together):
    """Blocks of equal latencies: the variance of their mean is `together` times that of independent ones."""
    one_each = np.random.default_rng(2).exponential(3 * MS, 100_000 // together).astype(np.int64)
    found = bursts(evenly(100_000, 100), times(np.repeat(one_each, together)), limit_ns=10 * MS, start_ns=0)
    assert together < found.vif < 2.5 * together
    assert found.size == pytest.approx(found.vif / 2)


def test_bursts_are_measured_where_nothing_exceeds_the_limit():
    log = next(LONG_BURSTS.logs(0.9 * LONG_BURSTS.rate_at_limit_per_s, 30, seed=3, runs=1))
    limit_ns = int(2 * log.latency_ns.max())
    found = bursts(log.scheduled_ns, log.latency, limit_ns=limit_ns, start_ns=0)
    seen = bursts(log.scheduled_ns, log.latency, limit_ns=limit_ns // 4, start_ns=0)
    assert found.vif > seen.vif / 4 > 10


def test_a_server_that_could_stall_is_given_bursts_of_a_quarter_limit():
    constant = np.full(10_000, 5 * MS)
    found = bursts(evenly(10_000, 10), times(constant), limit_ns=400 * MS, start_ns=0)
    assert found.size == pytest.approx(0.4 / 4 * 1000, rel=0.01)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_a_short_run_cannot_tell(seconds):
    assert bursts(evenly(1000, seconds), times(np.full(1000, MS)), limit_ns=10 * MS, start_ns=0) is None


def test_few_requests_cannot_tell():
    assert bursts(evenly(100, 60), times(np.full(100, MS)), limit_ns=10 * MS, start_ns=0) is None
    assert bursts(evenly(0, 60), times(np.full(0, MS)), limit_ns=10 * MS, start_ns=0) is None


def test_a_run_with_nothing_but_violations_still_has_figures():
    found = bursts(evenly(5000, 10), times(np.full(5000, 90 * MS)), limit_ns=10 * MS, start_ns=0)
    assert np.isfinite(found.vif)


UPPER = 1.6449  # of the standard normal, one-sided 95 %


def inflation(counts, slower) -> float:
    """How much more the violations of blocks vary than independent ones of the same share; the upper bound of it.

    From the sample variance, and its relative standard error of sqrt(2 / blocks).
    """
    share = slower.sum() / counts.sum()
    ratio = np.var(slower - share * counts, ddof=1) / (counts.mean() * share * (1 - share))
    return ratio / max(1 - share, 0.5) * (1 + UPPER * math.sqrt(2 / len(counts)))


def of_blocks(counts, *slower, block_ns=100 * MS, limit_ns=MS):
    return bursts_of_blocks(np.array(counts), np.array(slower), block_ns=block_ns, limit_ns=limit_ns)


UNLIKE = np.array([0, 9, 1, 9, 0, 8, 2, 7, 0, 9, 1, 9])
"""Violations of blocks whose neighbours differ, so that no block is joined to another."""


@pytest.mark.parametrize("each", [20, 60])
@pytest.mark.parametrize("blocks", [8, 9, 12])
def test_where_neighbours_do_not_correlate_the_variance_between_blocks_says_it(each, blocks):
    counts, slower = np.full(blocks, each), UNLIKE[:blocks]
    found = of_blocks(counts, slower)
    assert found.vif == pytest.approx(inflation(counts, slower), rel=1e-4)
    assert (found.size, found.size_to_break) == pytest.approx((found.vif / 2, max(1.0, found.vif / 6)))


def test_blocks_of_unlike_numbers_of_requests_vary_by_that_too():
    counts, slower = np.tile([20, 100, 60], 4), UNLIKE
    assert of_blocks(counts, slower).vif == pytest.approx(inflation(counts, slower), rel=1e-4)


def test_where_most_are_violations_it_is_no_more_than_doubled_for_a_level_that_few_exceed():
    counts = np.full(12, 20)
    assert of_blocks(counts, 20 - UNLIKE).vif == pytest.approx(inflation(counts, 20 - UNLIKE), rel=1e-4)


def test_the_level_that_varies_most_counts():
    counts = np.full(12, 20)
    even = np.full(12, 5)
    expected = of_blocks(counts, UNLIKE)
    assert of_blocks(counts, UNLIKE, even) == of_blocks(counts, even, UNLIKE) == expected


@pytest.mark.parametrize("slower", [0, 20])
def test_levels_that_none_or_all_exceed_say_nothing(slower):
    assert of_blocks(np.full(8, 20), np.full(8, slower)).vif == 1.0


@pytest.mark.parametrize(("joined", "blocks"), [(2, 24), (2, 25), (4, 48), (4, 50)])
def test_blocks_whose_neighbours_are_alike_are_joined(joined, blocks):
    """Neighbours correlate, until blocks are so long that what comes together is in one."""
    apart = np.array([0, 7, 1, 5, 8, 9, 2, 0, 4, 8, 6, 0])
    slower = np.append(np.repeat(apart, joined), [0, 0])[:blocks]
    expected = inflation(np.full(12, 20 * joined), apart * joined)
    assert of_blocks(np.full(blocks, 20), slower).vif == pytest.approx(expected, rel=0.05 if blocks % 12 else 1e-4)


def test_each_level_is_measured_at_blocks_of_its_own():
    """The first is done with at once; that the second goes on does not change it, whatever it would look like."""
    alike = np.repeat([3, 0, 3, 1, 2, 0, 3, 0, 3, 0, 2, 1], 2)
    pairs = np.tile([0, 20, 20, 0], 6)  # as unlike as can be, yet the same in any two
    alone = of_blocks(np.full(24, 40), pairs)
    assert alone.vif == pytest.approx(inflation(np.full(24, 40), pairs), rel=1e-4)
    assert of_blocks(np.full(24, 40), pairs, alike) == alone


def test_what_correlation_remains_in_the_fewest_blocks_is_made_up_for():
    counts, slower = np.full(12, 20), np.repeat([0, 4], 6)
    lag_1 = 9 / 12  # of the eleven pairs of neighbours ten are alike and one is not
    expected = inflation(counts, slower) * (1 + lag_1) / (1 - lag_1)
    assert of_blocks(counts, slower).vif == pytest.approx(expected, rel=1e-4)


def test_no_correlation_is_taken_for_more_than_nine_tenths():
    """In one slow wave of fifteen blocks, the smoothest there is."""
    counts = np.full(15, 2000)
    wave = np.round(1000 + 900 * np.sin(2 * np.pi * np.arange(1, 16) / 16)).astype(int)
    excess = wave - 1000
    assert excess[1:] @ excess[:-1] / (excess @ excess) > 0.91
    assert of_blocks(counts, wave).vif == pytest.approx(inflation(counts, wave) * 1.9 / 0.1, rel=1e-4)


def test_a_level_that_is_done_with_stays_so():
    """Its blocks of a sixth of these would correlate again, and say far more."""
    counts = np.full(48, 40)
    done = np.tile([0, 20] * 4 + [0] * 8, 3)
    goes_on = np.repeat([0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0], 4)
    assert of_blocks(counts, goes_on, limit_ns=MS).vif < inflation(counts, done)
    assert of_blocks(counts, done, goes_on).vif == pytest.approx(inflation(counts, done), rel=1e-4)


def test_neighbours_are_alike_from_a_correlation_of_a_fifth_on():
    excess = np.array([-2, 2, -1, 0, 3, 2, 3, 0, -3, -3, -2, 1, 3, -2, -3, 2])
    assert 5 * (excess[1:] @ excess[:-1]) == excess @ excess
    counts = np.full(16, 20)
    expected = inflation(counts.reshape(-1, 2).sum(axis=1), (5 + excess).reshape(-1, 2).sum(axis=1))
    assert of_blocks(counts, 5 + excess).vif == pytest.approx(expected, rel=1e-4)


def test_sixteen_blocks_of_too_few_requests_are_joined_and_fifteen_are_not():
    """What every other one is late by is the same in any two."""
    few = np.full(16, 2)
    assert of_blocks(few, np.tile([0, 2], 8)).vif == 1.0
    assert of_blocks(few[:15], np.tile([0, 2], 8)[:15]).vif > 1.5


def test_the_first_block_shows_levels_too():
    """Sixty slow requests among 800 of 0.8 s, all in the first tenth."""
    latency_ns = np.where(np.arange(800) < 60, 30 * MS, 0) + np.arange(800)
    found = bursts(np.arange(801) * MS, times(np.append(latency_ns, 0)), limit_ns=40 * MS, start_ns=0)
    assert found.size > 40 > 2 * 0.040 / 4 * 1000


@pytest.mark.parametrize(("blocks", "joined"), [(15, 1), (16, 2), (31, 2), (32, 4)])
def test_no_fewer_than_eight_blocks_are_left(blocks, joined):
    counts = np.full(blocks, 2)
    slower = np.append(np.repeat(UNLIKE % 2, 4), [0] * 4)[:blocks]
    both = [rows[: blocks // joined * joined].reshape(-1, joined).sum(axis=1) for rows in (counts, slower)]
    expected = _inflation(*(rows.astype(float) for rows in (both[0], both[1][None])))
    assert of_blocks(counts, slower).vif == pytest.approx(max(1.0, *expected))


@pytest.mark.parametrize(("each", "joined"), [(20, 1), (19, 2), (10, 2), (9, 4)])
def test_blocks_are_joined_until_they_hold_twenty_requests(each, joined):
    counts = np.full(50, each)
    slower = np.repeat(np.tile(UNLIKE, 5), joined)[:50]
    both = [rows[: 50 // joined * joined].reshape(-1, joined).sum(axis=1) for rows in (counts, slower)]
    assert of_blocks(counts, slower).vif == pytest.approx(inflation(*both), rel=0.02)


def test_joined_blocks_take_longer_and_say_the_same_of_the_rate():
    """A stall of the limit's quarter, which is all that is assumed where no request is late."""
    for each in (5, 20, 80):
        found = of_blocks(np.full(64, each), np.zeros(64, int), limit_ns=4000 * MS)
        assert found.size == pytest.approx(each / 0.1)


@pytest.mark.parametrize("each", [1, 20])
def test_fewer_than_eight_blocks_cannot_tell(each):
    assert of_blocks(np.full(8, each), np.zeros(8, int)) is not None
    assert of_blocks(np.full(7, each), np.zeros(7, int)) is None
    assert of_blocks(np.zeros(8, int), np.zeros(8, int)) is None


@pytest.mark.parametrize(
    ("rate_per_s", "seconds", "block_s"), [(400, 30, 0.1), (50, 30, 0.4), (200, 204.8, 0.2), (400, 0.8, 0.1)]
)
@pytest.mark.parametrize("start_s", [0.0, 0.35])
def test_a_run_is_cut_into_blocks_of_a_tenth_of_a_second_or_twenty_requests_or_a_thousandth(
    rate_per_s, seconds, block_s, start_s
):
    rng = np.random.default_rng(5)
    scheduled_ns = np.sort(rng.integers(0, round(seconds * 1e9), round(rate_per_s * seconds))) + round(
        start_s * 1e9
    )
    scheduled_ns[[0, -1]] = round(start_s * 1e9), round((start_s + seconds) * 1e9)
    late = rng.random(len(scheduled_ns)) < 0.03
    latency_ns = np.where(late, 5 * MS, MS // 9)  # nothing in between, so that the limit is the only level
    blocks = round(seconds / block_s)
    edges_ns = [math.ceil(start_s * 1e9 + block * block_s * 1e9) for block in range(blocks + 1)]
    counts, slower = (np.histogram(rows, edges_ns)[0] for rows in (scheduled_ns, scheduled_ns[late]))
    counts[-1] -= scheduled_ns[-1] == edges_ns[-1]  # numpy counts the last edge, too
    slower[-1] -= late[-1] and scheduled_ns[-1] == edges_ns[-1]
    found = bursts(scheduled_ns, times(latency_ns), limit_ns=MS, start_ns=round(start_s * 1e9))
    expected = _inflation(counts.astype(float), slower[None].astype(float))
    assert found.vif == pytest.approx(max(1.0, *expected))


@pytest.mark.parametrize(("share_of_limit", "taken"), [(0.27, True), (0.23, False), (0.95, True)])
def test_levels_from_a_quarter_of_the_limit_show_bursts_that_the_limit_does_not(share_of_limit, taken):
    """Every five seconds, and not at the beginning, a stall of a second and a half. None exceeds the limit."""
    slow_ns = share_of_limit * 100 * MS * np.random.default_rng(6).uniform(0.95, 1.05, 8000)
    latency_ns = np.where(np.arange(8000) % 1000 // 300 == 1, slow_ns, MS).astype(np.int64)
    found = bursts(evenly(8000, 40), times(latency_ns), limit_ns=100 * MS, start_ns=0)
    assert (found.size > 50) is taken
    assert taken or found.size == pytest.approx(5.0, rel=1e-3)  # a quarter of the limit's worth of requests
