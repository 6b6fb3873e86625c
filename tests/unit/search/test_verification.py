"""A short run and its replay: how far executions are from what was profiled, and the rate that follows."""

import numpy as np
import pytest
from simulated_bench import log_of

from search.predict import Promise, Sharpness, rate_at_limit, unit_arrivals
from search.simulator import SimulatedServer, simulate
from search.verify import LEAST_S, MOST_S, replayed_slowdown, seconds_for, verified

PROMISE = Promise(limit_s=0.05)


def server(*, instances: int = 2, max_batch: int = 8, delay_s: float = 0.0) -> SimulatedServer:
    column = 0.006 + 0.0012 * np.arange(max_batch + 1)
    return SimulatedServer(
        service_s=np.repeat(column[:, None], instances + 1, axis=1), max_queue_delay_s=delay_s, overhead_s=0.001
    )


def run_of(real: SimulatedServer, rate_per_s: float, seconds: float, *, seed: int = 3):
    arrivals_s = unit_arrivals(seed, requests=round(rate_per_s * seconds)) / rate_per_s
    return log_of(arrivals_s, arrivals_s + simulate(real, arrivals_s).latency_s)


@pytest.mark.parametrize("slowdown", [0.8, 1.0, 1.1, 1.5])
@pytest.mark.parametrize("delay_s", [0.0, 0.004])
def test_a_replay_finds_by_how_much_executions_were_slower(slowdown, delay_s):
    real = server(delay_s=delay_s).slowed(slowdown)
    rate = 0.97 * rate_at_limit(real, PROMISE, unit_arrivals(1))
    log = run_of(real, rate, 4.0)
    found = replayed_slowdown(server(delay_s=delay_s), log.scheduled_ns / 1e9, log.latency_ns / 1e9)
    # With a delay latencies do not grow with the execution time everywhere, so that several factors match as well.
    assert found == pytest.approx(slowdown, rel=0.015 if delay_s else 0.005)


def test_the_rate_after_a_replay_is_that_of_the_real_server_though_the_run_was_elsewhere():
    real = server().slowed(1.12)
    truth = rate_at_limit(real, PROMISE, unit_arrivals(1))
    for rate in (0.9 * truth, 1.05 * truth):
        found = verified(server(), run_of(real, rate, 4.0), PROMISE, seed=1)
        assert found.rate_per_s == pytest.approx(truth, rel=0.02)
        assert 0.01 < found.error < 0.2


def test_failures_and_runs_too_short_say_nothing():
    log = run_of(server(), 300, 3.0)
    broken = type(log)(
        scheduled_ns=log.scheduled_ns,
        sent_ns=log.sent_ns,
        done_ns=log.done_ns,
        outcome=(np.arange(len(log)) % 20 == 0).astype(np.uint8),
    )
    assert verified(server(), broken, PROMISE, seed=1) is None
    assert verified(server(), log.rows(0, 20), PROMISE, seed=1) is None


def test_executions_unlike_the_profile_by_far_are_not_explained_by_a_factor():
    assert verified(server(), run_of(server().slowed(8), 20, 10.0), PROMISE, seed=1) is None
    assert verified(server(), run_of(server().slowed(0.1), 500, 3.0), PROMISE, seed=1) is None


def test_runs_are_long_where_bursts_are_and_short_where_requests_are_many():
    sharp = Sharpness(elasticity=20, vif=20)
    assert seconds_for(sharp, 10_000, PROMISE) == LEAST_S
    assert seconds_for(sharp, 10, PROMISE) == MOST_S
    assert LEAST_S < seconds_for(sharp, 2_500, PROMISE) < MOST_S
    assert seconds_for(Sharpness(elasticity=20, vif=80), 2_500, PROMISE) == MOST_S
