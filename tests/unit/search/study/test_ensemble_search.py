"""Unit: what the search of ensembles does where it cannot predict, and what it keeps for a resumed run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_ensembles import LIMIT_MS, Ensemble, EnsembleBench
from virtual_search import runner_on

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import EnsembleStep
from search.knobs import MEMBER_KNOBS
from search.records.slo import Slo
from search.simulator.ensemble_surrogate import EnsembleSurrogate, new_surrogate
from search.simulator.service_times_file import read_curves
from search.space import SearchSpace, knobs_of
from search.study.run import SEARCH_FILE, run_search
from search.study.store import TrialStore
from search.trials.bench import BenchFailed
from search.workload import Workload

pytestmark = pytest.mark.slow

SLO = Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS),))
TWO = Ensemble({"first": lambda _size: 0.010, "second": lambda size: 0.002 + 0.002 * size}, {"second": ("first",)})


def searched(bench: EnsembleBench, space: SearchSpace, folder: Path, *, budget_s: float = 60.0) -> TrialStore:
    runner = runner_on(bench, space, folder, slo=SLO, budget_s=budget_s)
    run_search(runner)
    return runner.store


def causes(store: TrialStore) -> list[str]:
    return [trial.why.cause for trial in store.trials if trial.why is not None]


def test_without_the_tables_of_its_members_an_ensemble_is_sampled(tmp_path: Path) -> None:
    space = TWO.space()
    store = searched(EnsembleBench(ensemble=TWO, mute=True), space, tmp_path, budget_s=120.0)
    assert causes(store)[:2] == ["baseline", "landmark"]
    landmark = knobs_of(store.trials[1].served)
    values = {knob: {landmark[f"{member.name}.{knob}"] for member in space.members} for knob in MEMBER_KNOBS}
    assert all(len(each) == 1 for each in values.values())
    assert landmark != knobs_of(space.baseline())


def test_a_model_in_two_steps_is_not_predicted() -> None:
    space = TWO.space()
    (engine,) = space.engines
    assert engine.own is not None
    twice = (
        EnsembleStep(model="first"),
        EnsembleStep(model="second", after=(0,)),
        EnsembleStep(model="first", after=(1,)),
    )
    other = replace(space, engines=(replace(engine, own=replace(engine.own, steps=twice)),))
    given: dict[str, Any] = {"slo": SLO, "seed": 1, "workload": Workload()}
    seen = [new_surrogate(one, **given) for one in (space, other)]
    assert [isinstance(one, EnsembleSurrogate) and one.predictable for one in seen] == [True, False]


def test_a_model_that_calls_others_unseen_is_sampled(tmp_path: Path) -> None:
    space = TWO.space()
    (engine,) = space.engines
    assert engine.own is not None
    caller = replace(space, engines=(replace(engine, own=replace(engine.own, steps=())),))
    store = searched(EnsembleBench(ensemble=TWO), caller, tmp_path)
    assert "predicted" not in causes(store)
    assert "landmark" in causes(store)


def test_a_prediction_names_the_member_that_saturates_first_and_the_space_those_of_all(tmp_path: Path) -> None:
    space = TWO.space()
    store = searched(EnsembleBench(ensemble=TWO), space, tmp_path)
    seen = set()
    for trial in store.trials:
        if trial.why is None or trial.why.prediction is None:
            continue
        most_per_s = {}
        for name, member in zip(TWO.laws, trial.served.members, strict=True):
            sizes = range(1, (member.max_batch_size if member.dynamic_batching else 1) + 1)
            most_per_s[name] = member.instance_count * max(size / TWO.laws[name](size) for size in sizes)
        seen.add(trial.why.prediction.service_times.model)
        assert most_per_s[str(trial.why.prediction.service_times.model)] <= 1.1 * min(most_per_s.values())
    assert seen
    written = json.loads((tmp_path / SEARCH_FILE).read_bytes())["knobs"]
    assert written == {knob: list(values) for knob, values in space.axes().items()}
    assert written["second.instance_count"] == list(space.members[1].values["instance_count"])


def test_a_resumed_search_does_not_profile_again(tmp_path: Path) -> None:
    space, first = TWO.space(), EnsembleBench(ensemble=TWO)
    store = searched(first, space, tmp_path)
    curves = read_curves(tmp_path)
    assert {name: sorted(by_busy) for (name, *_), by_busy in curves.items()} == {
        "first": [2, 4, 8],
        "second": [2, 4, 8],
    }
    again = EnsembleBench(ensemble=TWO)
    again.saturate = None  # type: ignore[method-assign]
    searched(again, space, tmp_path)
    assert causes(store)[0] == "baseline"
    assert read_curves(tmp_path) == curves


def test_the_overhead_is_what_members_do_not_explain(tmp_path: Path) -> None:
    searched(EnsembleBench(ensemble=TWO, overhead_s=0.005), TWO.space(), tmp_path)
    overheads_s = {curve.overhead_s for by_busy in read_curves(tmp_path).values() for curve in by_busy.values()}
    assert list(overheads_s) == [pytest.approx(0.005, abs=1e-4)]


def test_members_that_need_too_much_memory_are_profiled_with_smaller_batches(tmp_path: Path) -> None:
    def faults(config: Any) -> str | None:
        return "out of memory" if max(member.max_batch_size for member in config.members) > 2 else None

    bench = EnsembleBench(ensemble=replace(TWO, max_batch_size=2), faults=faults)
    store = searched(bench, bench.ensemble.space(), tmp_path)
    assert causes(store)[0] == "profile"
    assert "predicted" in causes(store)
    best = store.best()
    assert max(member.max_batch_size for member in best.served.members) == 2


def test_a_limit_that_no_ensemble_meets_is_shown_with_the_fastest(tmp_path: Path) -> None:
    slow = Ensemble({"first": lambda _size: 0.030, "second": lambda _size: 0.030}, {"second": ("first",)})
    store = searched(EnsembleBench(ensemble=slow), slow.space(), tmp_path, budget_s=150.0)
    assert store.best() is None
    assert "fastest" in causes(store)


def test_a_failing_bench_leaves_the_ensemble_to_the_sampler(tmp_path: Path) -> None:
    class Dying(EnsembleBench):
        def saturate(self, *_args: Any, **_given: Any) -> Any:
            raise BenchFailed("the server died")

    store = searched(Dying(ensemble=TWO), TWO.space(), tmp_path)
    assert "predicted" not in causes(store)
    assert "landmark" in causes(store)
