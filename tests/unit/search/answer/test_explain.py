"""A run's directory says why each trial was made, and holds what it takes to repeat the decision."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from virtual_search import search_on

from loadgen.errors import BadInput
from loadgen.records.formats import format_rate
from search.answer.explain import explain_rate, explain_trial
from search.records.confirmations import read_confirmations
from search.records.run_files import read_trials
from search.records.slo import Slo
from search.records.trial import WhyRecord
from search.simulator.service_times import ClosedLoop
from search.simulator.service_times_file import read_curves
from search.simulator.surrogate import Surrogate
from search.space import MachineLimits, SearchSpace, knobs_of
from search.study.run import SEARCH_FILE
from search.study.store import TrialStore, open_store
from search.trials.bench import Spent
from search.trials.predicted_trial import explanation
from search.trials.trial import trial_of


@dataclass(frozen=True)
class Run:
    """A finished search and the directory that it left."""

    directory: Path
    space: SearchSpace
    store: TrialStore
    winner: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    space = two_core_space(folder)
    store, certified, _ = search_on(SimulatedBench(), space, folder)
    assert certified is not None
    return Run(directory=folder, space=space, store=store, winner=certified.winner.number)


def test_every_trial_says_why_what_was_predicted_and_what_was_seen(run: Run) -> None:
    for trial in run.store.trials:
        explanation = explain_trial(run.directory, trial.number)
        assert trial.why.cause == ("baseline" if trial.number == 0 else "predicted")
        assert f"{format_rate(trial.why.prediction.rate_per_s)}/s of capacity" in explanation.predicted[0]
        assert any("from the prediction" in line for line in explanation.seen)
        assert trial.reason in explanation.ended
    assert "trial 0 with" in explain_trial(run.directory, 1).why[1]


def test_every_load_run_is_kept_with_the_seed_of_its_arrivals(run: Run) -> None:
    for trial in read_trials(run.directory):
        assert all(load.seed is not None and load.requests and load.seconds for load in trial.load_runs)


def test_every_confirmation_is_kept(run: Run) -> None:
    steps = explain_trial(run.directory, run.winner).steps
    assert {one.step for one in steps if one.decided == "met"} >= {"confirmation", "second confirmation"}


def test_the_certified_rate_is_explained_by_every_load_run_in_its_order(run: Run) -> None:
    found = explain_rate(run.directory)
    assert len(found.steps) == sum(len(one.load_runs) for one in read_trials(run.directory)) + len(
        read_confirmations(run.directory)
    )
    confirming = [one.believed for one in found.steps if one.step != "trial"]
    assert all(believed is not None and believed.chance is not None for believed in confirming)
    seen_s = [believed.machine.seen_s for believed in confirming]
    assert sorted(set(seen_s)) == seen_s, "each run shows more of the machine"
    assert [believed.machine.share for believed in confirming] == [0.0] * len(confirming)
    for trial in run.store.trials:
        first, *others = (one for one in found.steps if (one.trial, one.step) == (trial.number, "trial"))
        assert first.believed is not None
        assert first.believed.capacity_per_s == trial.why.prediction.rate_per_s
        assert all(one.believed is None for one in others)
        assert ("capacity" in (first, *others)[-1].followed) == bool(trial.rate_at_limit_per_s)


def test_a_run_without_load_has_no_rate_to_explain(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        explain_rate(tmp_path)


def test_every_prediction_can_be_repeated_from_the_directory_alone(run: Run) -> None:
    search = json.loads((run.directory / SEARCH_FILE).read_bytes())
    trials = read_trials(run.directory)
    space = SearchSpace(
        engines=run.space.engines,
        values={name: tuple(values) for name, values in search["knobs"].items()},
        limits=MachineLimits(**search["limits"]),
    )
    surrogate = Surrogate(space=space, slo=Slo(**search["slo"]), seed=search["seed"])
    for kind, curves in read_curves(run.directory).items():
        surrogate.curves[kind].update(curves)
    for trial in run.store.trials:
        knobs = knobs_of(trial.served)
        surrogate.simulate([knobs])
        again = surrogate.predicted(knobs)
        # Where others that are alike were simulated before, the search for the edge starts from theirs.
        assert again.simulated_per_s == pytest.approx(trial.why.prediction.simulated_per_s, rel=5e-3)
        # Corrections are made at the machine's usual speed, which all runs until then show.
        assert again.rate_per_s == pytest.approx(trial.why.prediction.rate_per_s, rel=3e-2)
        middle = (trial.rate_low_per_s * trial.rate_high_per_s) ** 0.5
        surrogate.update(knobs, middle, explanation(trial, middle))
    assert len(trials) == len(run.store.trials)


def test_the_study_carries_the_reasons_too(run: Run) -> None:
    attributes = [frozen.user_attrs for frozen in run.store.study.get_trials()]
    assert {one["why"]["cause"] for one in attributes} == {"baseline", "predicted"}
    assert all(one["why"]["prediction"]["rate_per_s"] > 0 and one["replay"]["slowdown"] > 0 for one in attributes)


def test_a_trial_that_was_cut_short_is_said_to_be_taken_again(tmp_path: Path) -> None:
    space = two_core_space(tmp_path)
    knobs = next(space.points())

    def store() -> TrialStore:
        return open_store(space, tmp_path, storage=f"sqlite:///{tmp_path}/study.db", seed=3)

    first = store()
    why = first.as_of_now(WhyRecord(cause="landmark"), knobs)
    assert (why.resumed, why.retaken) == (False, False)
    assert first.ask_for([knobs], wanted=lambda _: True) is not None  # and the process is killed
    second = store()
    assert second.ask_for([knobs], wanted=lambda _: True) == knobs
    why = second.as_of_now(WhyRecord(cause="landmark"), knobs)
    assert (why.resumed, why.retaken) == (True, True)
    second.record(trial_of(0, space.config(knobs), "failed", "no", spent=Spent()).changed(why=why))
    assert "started again" in explain_trial(tmp_path, 0).why[-1]


def test_where_nothing_is_predicted_that_is_said(tmp_path: Path) -> None:
    class Silent(SimulatedBench):
        def saturate(self, concurrency: Any, duration_s: Any, seed: Any, shape: int | None = None) -> ClosedLoop:
            return replace(super().saturate(concurrency, duration_s, seed), batches=())

    bench = Silent()
    store, _, _ = search_on(bench, two_core_space(tmp_path), tmp_path, stop=lambda: len(bench.loaded) > 9)
    causes = [trial.why.cause for trial in store.trials]
    assert causes[:2] == ["baseline", "landmark"]
    assert explain_trial(tmp_path, 1).predicted == ("None: it was not simulated.",)


def test_an_old_run_is_explained_as_far_as_it_can_be() -> None:
    old = Path(__file__).parents[3] / "data/recorded_runs/early"
    explanation = explain_trial(old, 2)
    assert explanation.why == ()
    assert explanation.seen
    assert explain_trial(old, 0).role == "baseline"


def test_a_trial_that_is_not_there_is_refused_with_those_that_are(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no trial 99") as caught:
        explain_trial(run.directory, 99)
    assert f"0 to {len(run.store.trials) - 1}" in caught.value.fix
    with pytest.raises(BadInput, match="no finished trial"):
        explain_trial(tmp_path, 0)
