"""The posterior of the capacity: what runs teach, and which test is worth most."""

import math
from dataclasses import replace

import pytest
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS, Queue

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import Capacity, Response
from loadgen.statistics.probe import ProbeResult, evaluate_probe


def run_at(share: float, queue: Queue = BATCHING_GPU, *, seconds: float = 6.0, seed: int = 1) -> ProbeResult:
    """A run at a share of the queue's capacity."""
    rate_per_s = share * queue.rate_at_limit_per_s
    return evaluate_probe(
        SimulatedLoad(queue)(rate_per_s, seconds, seed), rate_per_s, (LatencyLimit(limit_ms=queue.limit_ms),)
    )


def known(*shares: float, queue: Queue = BATCHING_GPU) -> Capacity:
    """What runs at these shares of the capacity teach, from a guess of a tenth of it."""
    found = Capacity.guessed(0.1 * queue.rate_at_limit_per_s, 0.05)
    for seed, share in enumerate(shares):
        found = found.updated(run_at(share, queue, seed=seed))
    return found


def test_what_was_met_moves_it_up_and_what_overloads_moves_it_down() -> None:
    rate_per_s = BATCHING_GPU.rate_at_limit_per_s
    guessed, met, both = known(), known(0.5), known(0.5, 1.6)
    assert guessed.quantile(0.5) < 0.5 * rate_per_s < met.quantile(0.5)
    assert 0.5 * rate_per_s < both.quantile(0.05) < both.quantile(0.95) < 1.6 * rate_per_s
    assert both.error < met.error


@pytest.mark.parametrize("queue", [BATCHING_GPU, LONG_BURSTS], ids=lambda queue: queue.name)
def test_runs_on_both_sides_enclose_the_capacity(queue: Queue) -> None:
    found = known(0.5, 1.6, 0.9, 0.97, 1.03, queue=queue)
    assert found.quantile(0.02) < queue.rate_at_limit_per_s < found.quantile(0.98)
    assert found.error < 0.06


def test_a_wider_prior_goes_further_up_after_a_met_rate() -> None:
    rate_per_s, met = 0.1 * BATCHING_GPU.rate_at_limit_per_s, run_at(0.1, seconds=60.0)
    close, usual, wide = (
        Capacity.guessed(rate_per_s, 0.05, Response(spread=spread)).updated(met).quantile(0.5) / rate_per_s
        for spread in (0.5, 2.0, 4.0)
    )
    assert 1 < close < 3 < usual < 8 < wide


def test_one_run_in_which_the_machine_stood_still_is_outvoted() -> None:
    stalled = replace(run_at(0.3), overloaded=True, answered_per_s=0.0)
    before = known(0.5, 0.9, 0.95)
    after = before.updated(stalled)
    assert after.quantile(0.5) == pytest.approx(before.quantile(0.5), rel=0.05)


def test_a_run_that_measured_the_client_says_nothing() -> None:
    before = known(0.5)
    assert before.updated(replace(run_at(0.2), problems=("the client sent late",))) is before


def test_an_overload_shows_by_its_throughput_how_far_it_was_above() -> None:
    overload, guess_per_s = run_at(9.0), 10 * BATCHING_GPU.rate_at_limit_per_s
    with_it = Capacity.guessed(guess_per_s, 0.05).updated(overload)
    without = Capacity.guessed(guess_per_s, 0.05).updated(replace(overload, answered_per_s=0.0))
    assert with_it.quantile(0.5) < 1.3 * BATCHING_GPU.rate_at_limit_per_s < without.quantile(0.5)


def test_below_is_the_probability_up_to_a_quantile() -> None:
    found = known(0.5, 1.6)
    for share in (0.1, 0.5, 0.9):
        assert found.below(found.quantile(share)) == pytest.approx(share, abs=0.03)


def best_test(found: Capacity, **changes: float) -> tuple[float, float]:
    given = {"left_s": 30.0, "burst_s": 0.02, "allowed": 0.01, "confidence": 0.95, **changes}
    return found.best_test(**given)


def test_less_time_and_longer_bursts_make_a_lower_rate_worth_most() -> None:
    found = known(0.5, 1.6, 0.9, 0.97)
    usual, _ = best_test(found)
    assert best_test(found, left_s=10.0)[0] < usual < best_test(found, left_s=300.0)[0] <= found.quantile(0.5)
    assert best_test(found, burst_s=0.04)[0] < usual
    assert best_test(found, confidence=0.999)[0] < usual


def test_nothing_is_worth_a_test_that_cannot_end_in_time_or_gain() -> None:
    found = known(0.5, 1.6, 0.9, 0.97)
    assert best_test(found, left_s=1.0) == (0.0, 0.0)
    assert best_test(found, held_per_s=2 * BATCHING_GPU.rate_at_limit_per_s) == (0.0, 0.0)
    held = 0.7 * BATCHING_GPU.rate_at_limit_per_s
    rate_per_s, worth = best_test(found, held_per_s=held)
    assert rate_per_s > held
    assert 0 < worth < rate_per_s - held < math.inf
