"""The same simulated server, asked for other things than the cheapest configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from recommendations import certificate, config, measurement, trial
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from virtual_search import search_on

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.answer.recommend import alternatives_to, reason_for
from search.certification.certify import CertifiedResult
from search.choices import ObjectiveName
from search.records.slo import Slo
from search.records.trial import GpuRecord
from search.simulator.server import SimulatedServer, simulate
from search.study.run import run_search
from search.study.store import TrialStore, open_store
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.context import Budget
from search.trials.objective import COST, OBJECTIVES, Energy, Latency, Objective
from search.trials.trial import Trial

pytestmark = pytest.mark.slow

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
RATE = 300.0
SOONEST = Latency(rate_per_s=RATE)
SPARING = Energy()


def searched(
    bench: Any, folder: Path, objective: Objective
) -> tuple[TrialStore, CertifiedResult | None, list[events.Event]]:
    return search_on(bench, two_core_space(folder), folder, slo=SLO, objective=objective, budget_s=300.0)


def true_p99_ms(config: ServingConfig) -> float:
    largest = max(config.max_batch_size, 1) if config.dynamic_batching else 1
    column = np.array([1.0, *(default_service_s(config, size) for size in range(1, largest + 1))])
    server = SimulatedServer(
        service_s=np.repeat(column[:, None], config.instance_count + 1, axis=1),
        max_queue_delay_s=config.max_queue_delay_us / 1e6,
    )
    arrivals_s = np.cumsum(np.random.default_rng(99).exponential(1 / RATE, 40_000))
    return float(1e3 * np.quantile(simulate(server, arrivals_s)[2000:], 0.99))


def test_the_soonest_answers_are_found_and_certified_at_the_rate_itself(tmp_path: Path) -> None:
    store, certified, _ = searched(SimulatedBench(), tmp_path, SOONEST)
    assert certified is not None
    winner, space = certified.winner, two_core_space(tmp_path)
    assert winner.certificate.rate_per_s == pytest.approx(RATE)
    assert winner.certificate.servers == 2
    assert {trial.measurement.rate_per_s for trial in store.trials if trial.measurement} == {RATE}
    least_ms = min(true_p99_ms(space.config(knobs)) for knobs in space.points())
    assert true_p99_ms(winner.served) <= 1.1 * least_ms


def test_a_rate_that_nothing_keeps_is_seen_at_once_with_what_is_within_reach(tmp_path: Path) -> None:
    bench = SimulatedBench()
    store, certified, _ = searched(bench, tmp_path, replace(SOONEST, rate_per_s=5_000.0))
    assert certified is None
    assert {trial.state for trial in store.trials} == {"infeasible"}
    assert max(trial.rate_at_limit_per_s for trial in store.trials) > 100
    assert len(store.trials) <= 3


def test_the_least_energy_is_not_always_the_highest_rate(tmp_path: Path) -> None:
    """Two instances answer some more requests a second, and take twice the power."""
    bench = SimulatedBench(power_w=lambda config: 100.0 * config.instance_count)
    _, certified, _ = searched(bench, tmp_path, SPARING)
    assert certified is not None
    assert certified.winner.served.instance_count == 1


def test_energy_that_nobody_measures_is_said_after_the_first_trial(tmp_path: Path) -> None:
    store = open_store(two_core_space(tmp_path), tmp_path, storage="sqlite://", seed=3, objective=SPARING)
    runner = TrialRunner(
        store=store, bench=SimulatedBench(), slo=SLO, budget=Budget(total_s=600.0, clock=lambda: 0.0), seed=3
    )
    with pytest.raises(BadInput, match="energy"):
        run_search(runner)
    assert len(store.trials) == 1


def test_what_can_be_asked_for_is_in_the_table() -> None:
    assert tuple(OBJECTIVES) == get_args(ObjectiveName)
    assert all(kind.name == name for name, kind in OBJECTIVES.items())


def test_latency_needs_a_rate() -> None:
    with pytest.raises(BadInput, match="--objective latency"):
        Latency()


def at(number: int, rate_per_s: float, p99_ms: float) -> Trial:
    return trial(number, measurement=measurement(rate_per_s=rate_per_s, latency_p99_ms=p99_ms))


def test_latencies_compare_at_the_rate_alone() -> None:
    trials = [at(0, RATE, 20.0), at(1, RATE, 15.0), at(2, 0.5 * RATE, 5.0)]
    assert [one.number for one in SOONEST.best_first(trials)] == [1, 0]
    assert SOONEST.worth(trials[1].changed(state="infeasible")) is None
    assert SOONEST.certified_worth(trial(certificate=certificate(RATE, first={"latency_ms": 30.0}))) == -30.0


def test_of_energies_the_least_is_best() -> None:
    def taking(number: int, power_w: float) -> Trial:
        gpu = GpuRecord(utilization=1, memory_used_bytes=1, power_w=power_w, energy_per_1000_inferences_j=None)
        return trial(number, measurement=measurement(gpu=gpu))

    assert SPARING.best_first([taking(0, 90.0), taking(1, 60.0), taking(2, 70.0)])[0].number == 1
    assert COST.best_first([]) == []


def test_the_reason_says_what_was_asked_for() -> None:
    winner = at(1, RATE, 30.0).changed(served=config(max_batch_size=2))
    text = reason_for(winner, [at(0, RATE, 40.0), winner], SOONEST)
    assert "answered soonest of 2 configurations" in text
    assert "2 measured" in text
    assert "trial 0, is predicted 25 % behind" in text
    assert [record.number for record in alternatives_to(winner, [at(0, RATE, 40.0), winner], SOONEST)] == [0]
