"""What a trial at a given rate says, on a server whose executions take a known time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.probe import Probe
from loadgen.status import NOT_CONNECTED
from model_repo.spec import ServingConfig
from search.records.slo import Slo
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.capacity_trial import run_fixed_rate_trial
from search.trials.context import Budget
from search.trials.objective import Latency
from search.trials.trial import Trial

RATE = 100.0


def tried(
    folder: Path,
    *,
    service_ms: float,
    slo: Slo,
    rate_per_s: float = RATE,
    kind: type[SimulatedBench] = SimulatedBench,
) -> Trial:
    space = two_core_space(folder, limit_ms=slo.first.limit_ms)
    bench = kind(service_s=lambda config, size: service_ms / 1e3, limit_ms=slo.first.limit_ms)
    objective = Latency(rate_per_s=rate_per_s)
    store = open_store(space, folder, storage="sqlite://", seed=1, objective=objective)
    runner = TrialRunner(store=store, bench=bench, slo=slo, budget=Budget(total_s=60.0, clock=lambda: 0.0), seed=1)
    config = ServingConfig(engine=space.engines[0], max_batch_size=8, instance_count=1)
    trial = run_fixed_rate_trial(runner, config, 0, rate_per_s=rate_per_s)
    assert trial is not None
    return trial


def test_within_the_limits_it_is_complete_with_its_latency_at_the_rate(tmp_path: Path) -> None:
    trial = tried(tmp_path, service_ms=10.0, slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)))
    assert trial.state == "complete"
    assert trial.measurement.rate_per_s == RATE
    assert 10.0 < trial.measurement.latency_p99_ms < 25.0
    assert "within the limit of 50 ms" in trial.reason
    assert trial.rate_at_limit_per_s == RATE  # without the simulator, what was seen to be met


@pytest.mark.parametrize(
    "limit", [LatencyLimit(quantile=0.5, limit_ms=11), LatencyLimit(quantile=0.95, limit_ms=15)]
)
def test_over_one_of_several_limits_it_is_infeasible_and_names_it(tmp_path: Path, limit: LatencyLimit) -> None:
    trial = tried(tmp_path, service_ms=10.0, slo=Slo(limits=(LatencyLimit(limit_ms=50.0), limit)))
    assert trial.state == "infeasible"
    assert f"over the limit of {limit.limit_ms:g} ms" in trial.reason
    assert trial.rate_at_limit_per_s == 0.0


def test_beyond_its_capacity_it_is_overloaded(tmp_path: Path) -> None:
    trial = tried(tmp_path, service_ms=10.0, slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)), rate_per_s=1500.0)
    assert trial.state == "infeasible"
    assert "overloaded at 1,500/s" in trial.reason


class OnlyWarmUp(SimulatedBench):
    """Every run ends before a request of it counts."""

    def measure(self, *arguments: Any) -> Probe:
        probe = super().measure(*arguments)
        return replace(probe, log=probe.log.rows(0, 3))


class AllFail(SimulatedBench):
    """Every request is refused."""

    def measure(self, *arguments: Any) -> Probe:
        probe = super().measure(*arguments)
        return replace(probe, log=replace(probe.log, outcome=np.full(len(probe.log), NOT_CONNECTED, np.uint8)))


def test_a_run_without_a_request_that_counts_decides_nothing(tmp_path: Path) -> None:
    trial = tried(tmp_path, service_ms=10.0, slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)), kind=OnlyWarmUp)
    assert trial.state == "failed"
    assert trial.rate_at_limit_per_s is None
    assert "no request" in trial.reason
    assert not trial.load_runs[0].trusted


def test_a_run_in_which_all_requests_fail_says_so_without_a_number(tmp_path: Path) -> None:
    trial = tried(tmp_path, service_ms=10.0, slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)), kind=AllFail)
    assert trial.state == "infeasible"
    assert "inf" not in trial.reason
    assert "nan" not in trial.reason
