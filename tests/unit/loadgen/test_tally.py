"""What is kept of a long run says the same as its rows would."""

import numpy as np
import pytest

from loadgen.arrivals import schedule
from loadgen.certify import certify
from loadgen.certify_tally import certify_failures, certify_tally, quantile_bounds_ms
from loadgen.measurement import ClientUse, RequestLog
from loadgen.plan import LoadPlan
from loadgen.summary import measurement_of, measurement_of_tally
from loadgen.tally import Tally
from loadgen.time_blocks import TimeBlocks

PLAN = LoadPlan(rate_per_s=1000, duration_s=40, seed=1, timeout_s=1.0)
CLIENT = ClientUse(cpu_share=0.1, cpu_s=4.0, bytes_sent=1, bytes_received=1, connections_opened=0)
MS = 1_000_000


def log_of(plan: LoadPlan = PLAN, seed: int = 2) -> RequestLog:
    due = schedule(plan)
    rng = np.random.default_rng(seed)
    sent = due + rng.integers(1000, 100_000, len(due))
    outcome = np.where(rng.random(len(due)) < 0.002, rng.integers(1, 4, len(due)), 0).astype(np.uint8)
    return RequestLog(
        scheduled_ns=due, sent_ns=sent, done_ns=sent + rng.exponential(5e6, len(due)).astype(int), outcome=outcome
    )


def tally_of(log: RequestLog, *, parts: int = 60, limits_ms=(20.0, 40.0), **options) -> Tally:
    tally = Tally(timeout_s=PLAN.timeout_s, limits_ms=limits_ms, bin_s=2.0, **options)
    for part in np.array_split(np.arange(len(log)), parts):
        tally.add(log.rows(int(part[0]), int(part[-1]) + 1))
    return tally


def test_the_figures_are_those_of_every_request_to_three_digits() -> None:
    log = log_of()
    every, counted = (
        measurement_of(log, PLAN, client=CLIENT),
        measurement_of_tally(tally_of(log), PLAN, client=CLIENT),
    )
    assert (every.percentiles_from, counted.percentiles_from) == ("every request", "histogram")
    assert (counted.n, counted.errors, counted.max_ms) == (every.n, every.errors, every.max_ms)
    assert counted.achieved_rate_per_s == every.achieved_rate_per_s
    for name in ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "mean_ms", "service_p99_ms", "send_lag_p99_ms"):
        assert getattr(counted, name) == pytest.approx(getattr(every, name), rel=1.1e-3)


@pytest.mark.parametrize("limit_ms", [20.0, 40.0])
def test_the_verdict_counts_the_same_violations_and_comes_to_the_same_answer(limit_ms: float) -> None:
    log = log_of()
    every, counted = certify(log, limit_ms=limit_ms), certify_tally(tally_of(log), limit_ms=limit_ms)
    assert counted.answer == every.answer
    # The last block of time may not be whole yet, and MSER-5 may cut elsewhere.
    assert counted.n == pytest.approx(every.n, rel=0.03)
    assert counted.share_lower == pytest.approx(every.share_lower, abs=5e-4)
    assert counted.share_upper == pytest.approx(every.share_upper, rel=0.1)
    assert counted.latency_upper_ms >= every.latency_ms
    assert counted.latency_lower_ms <= every.latency_ms


def test_bounds_of_p99_hold_it_whatever_the_limit() -> None:
    log = log_of()
    low_ms, high_ms = quantile_bounds_ms(tally_of(log, limits_ms=()), 0.99, 0.95)
    assert 0 < low_ms < measurement_of(log, PLAN, client=CLIENT).p99_ms < high_ms < 100


def test_failures_are_judged_by_their_own_share() -> None:
    tally = tally_of(log_of())
    assert certify_failures(tally, max_ratio=0.02, confidence=0.95).answer == "kept"
    assert certify_failures(tally, max_ratio=0.0002, confidence=0.95).answer == "broken"


def test_a_limit_that_nobody_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the limits"):
        certify_tally(tally_of(log_of()), limit_ms=21.0)


def test_bins_hold_every_request_once_and_what_was_known_by_their_end() -> None:
    log = log_of()
    bins = tally_of(log, parts=7).bins
    edges = np.searchsorted(log.scheduled_ns, np.arange(0, 41, 2) * 1_000_000_000)
    assert [each.n for each in bins] == np.diff(edges).tolist()
    assert [each.so_far_n for each in bins] == edges[1:].tolist()
    assert sum(each.failures for each in bins) == np.count_nonzero(log.failed) == bins[-1].so_far_failures


@pytest.mark.parametrize("parts", [1, 13, 400])
def test_what_a_cap_held_back_is_no_lag_wherever_the_rows_are_cut(parts: int) -> None:
    plan = LoadPlan(rate_per_s=1000, duration_s=10, seed=3, timeout_s=1.0, max_in_flight=4)
    due = schedule(plan)
    sent, done = due.copy(), due.copy()
    running: list[int] = []
    for row in range(len(due)):  # four at a time, 4 ms each
        free = due[row] if len(running) < 4 else max(due[row], running[-4])
        sent[row], done[row] = free, free + 4 * MS
        running.append(int(done[row]))
    log = RequestLog(scheduled_ns=due, sent_ns=sent, done_ns=done, outcome=np.zeros(len(due), np.uint8))
    every = measurement_of(log, plan, client=CLIENT)
    counted = measurement_of_tally(tally_of(log, parts=parts, max_in_flight=4), plan, client=CLIENT)
    assert log.send_lag_ns.max() > MS
    assert counted.send_lag_p99_ms == every.send_lag_p99_ms == 0


def test_blocks_are_joined_and_lose_nothing() -> None:
    plan = LoadPlan(rate_per_s=2, duration_s=5000, seed=4)
    log = log_of(plan)
    blocks = TimeBlocks([5 * MS, 20 * MS])
    for part in np.array_split(np.arange(len(log)), 50):
        blocks.add(log.rows(int(part[0]), int(part[-1]) + 1))
    assert blocks.block_ns == 400_000_000 * 8
    whole = log.between(0.0, blocks.block_ns / 1e9 * len(blocks.counts(0)))
    assert blocks.counts(0).sum() == len(whole)
    assert blocks.failed(0).sum() == np.count_nonzero(whole.failed)
    over = whole.failed | (whole.latency_ns > 20 * MS)
    assert blocks.over(0)[1].sum() == np.count_nonzero(over)
