"""A short run and its replay: how far executions are from what was profiled, and the rate that follows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_bench import SimulatedBench
from simulated_queues import log_of
from spaces import two_core_space

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.records.slo import Slo
from search.simulator.capacity import Sharpness, rate_at_limit
from search.simulator.replay import (
    MAX_REPLAY_S,
    MIN_REPLAY_S,
    WANTED_ERROR,
    replay_run,
    replayed_slowdown,
    seconds_for,
)
from search.simulator.server import SimulatedServer, simulate
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.context import Budget
from search.trials.predicted_trial import run_predicted_trial
from search.trials.trial import Trial
from search.workload import unit_arrivals

LIMIT = LatencyLimit(limit_ms=50.0)


def server(*, instances: int = 2, max_batch: int = 8, delay_s: float = 0.0) -> SimulatedServer:
    column = 0.006 + 0.0012 * np.arange(max_batch + 1)
    return SimulatedServer(
        service_s=np.repeat(column[:, None], instances + 1, axis=1), max_queue_delay_s=delay_s, overhead_s=0.001
    )


def run_of(real: SimulatedServer, rate_per_s: float, seconds: float, *, seed: int = 3) -> RequestLog:
    arrivals_s = unit_arrivals(seed, requests=round(rate_per_s * seconds)) / rate_per_s
    return log_of(arrivals_s, arrivals_s + simulate(real, arrivals_s))


@pytest.mark.parametrize("slowdown", [0.8, 1.0, 1.1, 1.5])
@pytest.mark.parametrize("delay_s", [0.0, 0.004])
def test_a_replay_finds_by_how_much_executions_were_slower(slowdown: float, delay_s: float) -> None:
    real = server(delay_s=delay_s).slowed(slowdown)
    rate = 0.97 * rate_at_limit(real, (LIMIT,), unit_arrivals(1))
    log = run_of(real, rate, 4.0)
    found = replayed_slowdown(server(delay_s=delay_s), log.scheduled_ns / 1e9, log.latency_ns / 1e9)
    # With a delay latencies do not grow with the execution time everywhere, so that several factors match as well.
    assert found == pytest.approx(slowdown, rel=0.015 if delay_s else 0.005)


def test_the_rate_after_a_replay_is_that_of_the_real_server_though_the_run_was_elsewhere() -> None:
    real = server().slowed(1.12)
    truth = rate_at_limit(real, (LIMIT,), unit_arrivals(1))
    for rate in (0.9 * truth, 1.05 * truth):
        found = replay_run(server(), run_of(real, rate, 4.0), (LIMIT,), seed=1)
        assert found.rate_per_s == pytest.approx(truth, rel=0.02)
        assert 0.01 < found.error < 0.2


def test_failures_and_runs_too_short_say_nothing() -> None:
    log = run_of(server(), 300, 3.0)
    violated = type(log)(
        scheduled_ns=log.scheduled_ns,
        sent_ns=log.sent_ns,
        done_ns=log.done_ns,
        outcome=(np.arange(len(log)) % 20 == 0).astype(np.uint8),
    )
    assert replay_run(server(), violated, (LIMIT,), seed=1) is None
    assert replay_run(server(), log.rows(0, 20), (LIMIT,), seed=1) is None


def test_executions_unlike_the_profile_by_far_are_not_explained_by_a_factor() -> None:
    assert replay_run(server(), run_of(server().slowed(8), 20, 10.0), (LIMIT,), seed=1) is None
    assert replay_run(server(), run_of(server().slowed(0.1), 500, 3.0), (LIMIT,), seed=1) is None


def test_runs_are_long_where_violations_come_in_bursts_and_short_where_requests_are_many() -> None:
    sharp = Sharpness(elasticity=20, vif=20)
    assert seconds_for(sharp, 10_000, LIMIT) == MIN_REPLAY_S
    assert seconds_for(sharp, 10, LIMIT) == MAX_REPLAY_S
    seconds = seconds_for(sharp, 2_500, LIMIT)
    assert MIN_REPLAY_S < seconds < MAX_REPLAY_S
    assert sharp.relative_error(2_500 * seconds, LIMIT.quantile) == pytest.approx(WANTED_ERROR)
    assert seconds_for(replace(sharp, vif=80), 2_500, LIMIT) == MAX_REPLAY_S


def service_s(config: ServingConfig, size: int) -> float:
    return 0.006 + 0.0012 * size


def tried(folder: Path, bench: SimulatedBench, predicted: SimulatedServer, predicted_per_s: float) -> Trial:
    store = open_store(two_core_space(folder, limit_ms=bench.limit_ms), folder, storage="sqlite://", seed=1)
    slo, budget = Slo(limits=(LatencyLimit(limit_ms=bench.limit_ms),)), Budget(total_s=600.0, clock=lambda: 0.0)
    runner = TrialRunner(store=store, bench=bench, slo=slo, budget=budget, seed=1)
    config = ServingConfig(engine=store.space.engines[0], max_batch_size=8, instance_count=2)
    return run_predicted_trial(runner, predicted, config, 0, predicted_per_s)


@dataclass
class BusyClientBench(SimulatedBench):
    """Its client is late above this rate."""

    front_per_s: float = 0.0

    def measure(self, rate_per_s: Any, duration_s: Any, seed: int, watch: Any = None) -> Any:
        self.late = lambda config: rate_per_s > self.front_per_s
        return super().measure(rate_per_s, duration_s, seed, watch)


@dataclass
class FrontEndBench(SimulatedBench):
    """Its front end stops for 0.3 s in each second in which it has more requests than this."""

    front_per_s: float = 0.0

    def _done(self, config: Any, arrivals: Any, noise: Any) -> Any:
        crowded = np.bincount(arrivals.astype(int))[arrivals.astype(int)] > self.front_per_s
        passed = np.where(crowded & (arrivals % 1 < 0.3), np.floor(arrivals) + 0.3, arrivals)
        return super()._done(config, passed, noise)


@pytest.mark.parametrize("kind", [FrontEndBench, BusyClientBench])
@pytest.mark.parametrize("front_per_s", [250.0, 350.0, 500.0])
def test_a_trial_ends_at_a_rate_that_front_end_and_client_carry_though_far_more_was_predicted(
    kind: type[Any], front_per_s: float, tmp_path: Path
) -> None:
    bench = kind(service_s=service_s, front_per_s=front_per_s)
    trial = tried(tmp_path, bench, server(), rate_at_limit(server(), (LIMIT,), unit_arrivals(1)))
    assert 0.5 * front_per_s < trial.rate_at_limit_per_s < 1.1 * front_per_s


def test_the_first_run_is_no_higher_than_what_closed_loops_got_through(tmp_path: Path) -> None:
    """A run far above what a front end carries leaves it with requests that it never answers."""
    bench = FrontEndBench(service_s=service_s, front_per_s=200.0)
    trial = tried(tmp_path, bench, replace(server(), let_through_per_s=220.0), 900.0)
    assert trial.load_runs[0].rate_per_s == pytest.approx(220.0)
    assert 150.0 < trial.rate_at_limit_per_s < 220.0


def test_a_client_that_is_late_is_next_sent_what_closed_loops_got_through(tmp_path: Path) -> None:
    bench = BusyClientBench(service_s=service_s, front_per_s=330.0)
    trial = tried(tmp_path, bench, replace(server(), let_through_per_s=320.0), 900.0)
    late, again, first_in_time = trial.load_runs[:3]
    assert late.problems
    assert again.rate_per_s == late.rate_per_s
    assert first_in_time.rate_per_s == pytest.approx(320.0)


def test_a_trial_that_no_replay_explains_goes_on_from_what_its_runs_showed(tmp_path: Path) -> None:
    bench = SimulatedBench(service_s=lambda config, size: 10 * service_s(config, size), limit_ms=500.0)
    trial = tried(tmp_path, bench, server(), 20.0)
    assert trial.state == "complete"
    seeds = [run.seed for run in trial.load_runs]
    assert len(seeds) == trial.probes > 2
    assert len(set(seeds)) == len(seeds)
    first, *others = [run.rate_per_s for run in trial.load_runs]
    assert trial.load_runs[0].met
    assert min(others) > first


@dataclass
class StallingBench(SimulatedBench):
    """Each 25th request takes 0.1 s more, at any rate."""

    def _done(self, config: Any, arrivals: Any, noise: Any) -> Any:
        return super()._done(config, arrivals, noise) + 0.1 * (np.arange(len(arrivals)) % 25 == 0)


def test_no_replay_puts_a_capacity_far_above_a_rate_that_missed_the_limit(tmp_path: Path) -> None:
    trial = tried(tmp_path, StallingBench(service_s=service_s), server(), 300.0)
    assert (trial.rate_at_limit_per_s or 0.0) < trial.load_runs[0].rate_per_s
