"""The search and its certification on a simulated server, in virtual time, against the true best."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from virtual_search import runner_on, search_on, true_capacity

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.certify import CertifiedResult
from search.records.confirmations import read_confirmations
from search.records.slo import Slo
from search.simulator.service_times import ClosedLoop
from search.space import SearchSpace, default_config
from search.study.run import run_search
from search.study.store import TrialStore
from search.study.trial_runner import SearchImpossible
from search.trials import events

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Found:
    """One finished search."""

    bench: SimulatedBench
    store: TrialStore
    certified: CertifiedResult


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One search that nothing disturbed, looked at by several tests."""
    folder, bench = tmp_path_factory.mktemp("run"), SimulatedBench()
    store, certified, _ = search_on(bench, two_core_space(folder), folder)
    assert certified is not None
    return Found(bench=bench, store=store, certified=certified)


def test_the_answer_is_near_the_true_best_and_below_its_own_capacity(found: Found, true_best: float) -> None:
    promised = found.certified.winner.certificate.rate_per_s
    assert promised >= 0.85 * true_best
    assert promised <= 1.02 * true_capacity(found.certified.winner.served)


def test_a_server_that_is_far_too_slow_after_its_restart_has_no_certificate(
    space: SearchSpace, tmp_path: Path
) -> None:
    bench = SimulatedBench()
    bench.service_s = lambda config, size: default_service_s(config, size) * (50.0 if bench.restarts else 1.0)
    _, certified, _ = search_on(bench, space, tmp_path, budget_s=150.0)
    assert certified is None
    first, second, *_ = read_confirmations(tmp_path)
    assert first.met
    assert (second.again, second.answer) == (True, "violated")


def test_verified_trials_take_a_run_or_two_near_the_rate_at_the_limit(found: Found) -> None:
    assert {trial.state for trial in found.store.trials} == {"complete"}
    assert max(trial.probes for trial in found.store.trials) <= 2
    for trial in found.store.trials:
        assert trial.measurement.rate_per_s == pytest.approx(trial.rate_at_limit_per_s, rel=0.15)
        assert trial.rate_low_per_s < true_capacity(trial.served) * 1.03
        assert trial.rate_high_per_s > true_capacity(trial.served) * 0.97


def test_the_search_spends_little_load(found: Found) -> None:
    assert sum(trial.load_s for trial in found.store.trials) < 45


def test_service_times_are_kept_with_the_run(space: SearchSpace, tmp_path: Path) -> None:
    first, second = SimulatedBench(), SimulatedBench()
    for bench in (first, second):
        run_search(runner_on(bench, space, tmp_path))
    assert second.spent.load_s < first.spent.load_s / 2


def test_a_server_that_keeps_no_table_of_batches_is_searched_by_the_sampler(
    space: SearchSpace, tmp_path: Path
) -> None:
    class Silent(SimulatedBench):
        def saturate(self, concurrency: int, duration_s: float, seed: Any, shape: int | None = None) -> ClosedLoop:
            return replace(super().saturate(concurrency, duration_s, seed), batches=())

    store, certified, _ = search_on(Silent(), space, tmp_path)
    assert certified is not None
    assert any(trial.state == "pruned" for trial in store.trials)


@pytest.mark.parametrize("limit_ms", [1.0, 0.05])  # 0.05: a load run ends, overloaded, before its warm-up does
def test_a_limit_below_the_service_time_is_infeasible_with_what_a_lone_request_takes(
    space: SearchSpace, tmp_path: Path, limit_ms: float
) -> None:
    slo = Slo(limits=(LatencyLimit(limit_ms=limit_ms),))
    store, certified, _ = search_on(SimulatedBench(limit_ms=limit_ms), space, tmp_path, slo=slo)
    assert certified is None
    assert {trial.state for trial in store.trials} == {"infeasible"}
    fastest = min(trial.lone_latency_ms for trial in store.trials)
    assert fastest == pytest.approx(2 + 2 / 2**0.8, rel=0.1)
    for trial in store.trials:  # the run of lone requests is no probe
        assert trial.probes == len(trial.load_runs)
        assert len({(run.rate_per_s, run.seed) for run in trial.load_runs}) == len(trial.load_runs)


def test_profiles_in_which_nothing_meets_the_limit_do_not_outweigh_a_trial_that_does(
    space: SearchSpace, true_best: float, tmp_path: Path
) -> None:
    """As if every profile had met executions that were still getting faster."""

    class Cold(SimulatedBench):
        def _loop(
            self, config: ServingConfig, users: int, duration_s: float, noise: Any, pauses_s: Any
        ) -> tuple[Any, Any, list[tuple[int, float]]]:
            return super()._loop(config, users, duration_s, 40 * noise, pauses_s)

    _, certified, _ = search_on(Cold(), space, tmp_path, budget_s=150.0)
    assert certified.winner.certificate.rate_per_s > 0.5 * true_best


def test_lone_requests_of_a_slow_model_meet_an_idle_server(space: SearchSpace, tmp_path: Path) -> None:
    """A third of a second at the least: at four requests a second, each would wait for the one before."""
    bench = SimulatedBench(service_s=lambda config, size: 100 * default_service_s(config, size), limit_ms=100.0)
    store, _, _ = search_on(bench, space, tmp_path, slo=Slo(limits=(LatencyLimit(limit_ms=100.0),)))
    fastest = min(trial.lone_latency_ms for trial in store.trials)
    assert fastest == pytest.approx(100 * (2 + 2 / 2**0.8), rel=0.1)


def test_failed_trials_are_data_and_the_search_goes_on(space: SearchSpace, tmp_path: Path) -> None:
    def crowded(config: ServingConfig) -> str | None:
        return (
            "out of memory: std::bad_alloc" if config.instance_count == 2 and config.max_batch_size >= 8 else None
        )

    store, certified, _ = search_on(SimulatedBench(faults=crowded), space, tmp_path)
    failed = [trial for trial in store.trials if trial.state == "failed"]
    assert failed
    assert all("bad_alloc" in trial.reason for trial in failed)
    assert certified is not None
    # What asks for more of the same is not tried.
    smallest = min(trial.served.max_batch_size for trial in failed)
    assert sum(t.served.max_batch_size >= smallest and t.served.instance_count == 2 for t in failed) <= 2


def test_a_bench_on_which_nothing_works_ends_the_search(space: SearchSpace, tmp_path: Path) -> None:
    with pytest.raises(SearchImpossible) as caught:
        search_on(SimulatedBench(faults=lambda config: "no such backend"), space, tmp_path)
    assert set(caught.value.reasons) == {"no such backend"}


def test_an_engine_that_does_not_work_is_dropped_and_its_rivals_go_on(space: SearchSpace, tmp_path: Path) -> None:
    engines = (replace(space.engines[0], backend="tensorrt"), *space.engines)
    rivals = replace(space, engines=engines)
    bench = SimulatedBench(faults=lambda config: "no CUDA" if config.engine.backend == "tensorrt" else None)
    store, certified, _ = search_on(bench, rivals, tmp_path)
    assert sum(trial.served.engine.backend == "tensorrt" for trial in store.trials) == 2
    assert certified.winner.served.engine.backend == "onnxruntime"


def test_the_same_seed_gives_the_same_trials_and_winner(found: Found, tmp_path: Path) -> None:
    again, certified, _ = search_on(SimulatedBench(), found.store.space, tmp_path)
    assert certified is not None
    assert (again.trials, certified) == (found.store.trials, found.certified)


def test_a_client_that_is_late_at_half_the_rate_too_fails_the_trial(space: SearchSpace, tmp_path: Path) -> None:
    default = default_config(space.engines[0])
    bench = SimulatedBench(late=lambda config: config != default)
    store, _, _ = search_on(bench, space, tmp_path)
    others = [trial for trial in store.trials if trial.served != default]
    assert others
    assert {(trial.state, trial.reason, trial.probes) for trial in others} == {
        ("failed", "the client sent late", 4)
    }


def test_an_engine_whose_graphs_cannot_be_recorded_is_served_without_them(
    space: SearchSpace, tmp_path: Path
) -> None:
    """ONNX Runtime records none where one operator is left to the CPU."""
    engines = tuple(replace(space.engines[0], device="gpu", precision=name) for name in ("fp32", "fp16"))
    reason = "This session cannot use the graph capture feature"
    bench = SimulatedBench(faults=lambda config: reason if config.cuda_graph_batch_sizes else None)
    store, certified, _ = search_on(bench, replace(space, engines=engines), tmp_path)
    assert certified is not None
    done = {trial.served.engine.precision for trial in store.trials if trial.state == "complete"}
    assert done == {"fp32", "fp16"}
    assert sum(trial.state == "failed" for trial in store.trials) <= 4


def test_kinds_for_which_there_was_no_time_are_profiled_when_there_is_some_after_all(
    space: SearchSpace, tmp_path: Path
) -> None:
    class Slow(SimulatedBench):
        def saturate(self, concurrency: Any, duration_s: Any, seed: Any, shape: int | None = None) -> ClosedLoop:
            return super().saturate(concurrency, 5 * duration_s, seed)

    profiled: list[str] = []

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.PhaseStarted):
            profiled.append(event.name)

    run_search(runner_on(Slow(), space, tmp_path, budget_s=90.0, on_event=on_event))
    assert "profile" in profiled[profiled.index("search") :]
