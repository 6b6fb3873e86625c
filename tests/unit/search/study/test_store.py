"""Nothing finished is lost, whatever moment the process died at, and nothing is tried twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from spaces import two_core_space

from loadgen.errors import BadInput
from search.records.run_files import TRIALS_FILE
from search.space import SearchSpace, default_config, knobs_of
from search.study.store import STUDY_FILE, STUDY_NAME, TrialStore, open_store
from search.trials.bench import Spent
from search.trials.trial import Trial, trial_of

pytestmark = pytest.mark.slow


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    return two_core_space(tmp_path)


def everything(knobs: object) -> bool:
    return True


def finish_one(store: TrialStore, *, rate: float = 100.0, state: Any = "complete") -> Trial:
    asked = store.ask_sampler(wanted=everything)
    assert asked is not None
    config = store.space.config(asked)
    trial = trial_of(store.next_number(), config, state, "", spent=Spent(), rate_at_limit_per_s=rate)
    store.record(trial)
    return trial


def test_the_sampler_never_asks_for_a_point_twice(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage="sqlite://", seed=1)
    trials = [finish_one(store, rate=100.0 + number) for number in range(12)]
    points = {tuple(sorted(knobs_of(trial.served).items())) for trial in trials}
    assert len(points) == 12
    assert all(space.is_legal(knobs_of(trial.served)) for trial in trials)


def test_an_exhausted_space_is_none(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage="sqlite://", seed=1)
    assert store.ask_sampler(wanted=lambda knobs: False) is None
    assert store.ask_for([], wanted=everything) is None


def test_reopening_gives_back_every_finished_trial(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage=None, seed=1)
    states = ("complete", "pruned", "infeasible", "failed", "complete")
    trials = [finish_one(store, state=state, rate=50.0 + n) for n, state in enumerate(states)]
    reopened = open_store(space, tmp_path, storage=None, seed=1)
    assert reopened.trials == trials
    assert reopened.best() == trials[4]


def test_a_file_of_trials_that_is_removed_is_written_again(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage="sqlite://", seed=1)
    finish_one(store)
    (tmp_path / TRIALS_FILE).unlink()
    finish_one(store)
    assert len(open_store(space, tmp_path, storage="sqlite://", seed=1).trials) == 2


def test_a_trial_that_optuna_missed_is_told_when_reopening(space: SearchSpace, tmp_path: Path) -> None:
    """Killed after the line was on the disk and before Optuna knew."""
    store = open_store(space, tmp_path, storage=None, seed=1)
    finish_one(store, rate=70.0)
    lost = finish_one(store, rate=90.0)
    (tmp_path / STUDY_FILE).unlink()

    reopened = open_store(space, tmp_path, storage=None, seed=1)

    assert reopened.trials[-1] == lost
    told = [t for t in reopened.study.get_trials() if t.state == optuna.trial.TrialState.COMPLETE]
    assert sorted(t.value for t in told) == [70.0, 90.0]
    assert {t.user_attrs["trial"] for t in told} == {0, 1}


def test_optuna_is_told_of_each_trial_once_however_often_a_run_is_resumed(
    space: SearchSpace, tmp_path: Path
) -> None:
    store = open_store(space, tmp_path, storage=None, seed=1)
    for state in ("complete", "pruned", "infeasible", "failed"):
        finish_one(store, state=state)
    (tmp_path / STUDY_FILE).rename(tmp_path / "lost")
    for number in range(4, 6):
        reopened = open_store(space, tmp_path, storage=None, seed=1)
        told = [t.user_attrs["trial"] for t in reopened.study.get_trials() if "trial" in t.user_attrs]
        assert sorted(told) == list(range(number))
        finish_one(reopened)


def test_a_trial_that_the_disk_did_not_take_is_not_told_to_optuna(space: SearchSpace, tmp_path: Path) -> None:
    """Else a run that goes on would believe that it has tried what it has no record of."""
    store = open_store(space, tmp_path, storage="sqlite://", seed=1)
    (tmp_path / TRIALS_FILE).mkdir()
    with pytest.raises(OSError, match=TRIALS_FILE):
        finish_one(store)
    assert [t for t in store.study.get_trials() if "trial" in t.user_attrs] == []
    assert store.trials == []


def test_a_point_that_was_begun_can_be_asked_for_again(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage=None, seed=1)
    knobs = knobs_of(default_config(space.engines[0]))
    assert store.ask_for([knobs], wanted=everything) is not None  # and then the process is killed

    reopened = open_store(space, tmp_path, storage=None, seed=1)

    assert reopened.resumed
    assert reopened.ask_for([knobs], wanted=everything) is not None


def test_a_study_of_another_space_is_refused(space: SearchSpace, tmp_path: Path) -> None:
    """As on a machine with other cores."""
    open_store(space, tmp_path, storage=None, seed=1)
    larger = replace(space, values={**space.values, "instance_count": (*space.values["instance_count"], 64)})
    with pytest.raises(BadInput, match="another search space"):
        open_store(larger, tmp_path, storage=None, seed=1)


def test_a_line_cut_short_is_not_a_trial(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage=None, seed=1)
    finish_one(store)
    with (tmp_path / TRIALS_FILE).open("a") as file:
        file.write('{"number": 1, "config"')
    reopened = open_store(space, tmp_path, storage=None, seed=1)
    assert len(reopened.trials) == 1
    finish_one(reopened)
    lines = (tmp_path / TRIALS_FILE).read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1]


def test_a_damaged_line_is_named(space: SearchSpace, tmp_path: Path) -> None:
    finish_one(open_store(space, tmp_path, storage=None, seed=1))
    with (tmp_path / TRIALS_FILE).open("a") as file:
        file.write('{"number": "one"}\n')
    with pytest.raises(BadInput, match=rf"\b2\b.*{TRIALS_FILE}"):
        open_store(space, tmp_path, storage=None, seed=1)


def test_pruned_trials_tell_the_sampler_how_far_they_came(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage="sqlite://", seed=1)
    finish_one(store, state="pruned", rate=42.0)
    told = store.study.get_trials()[-1]
    assert told.state == optuna.trial.TrialState.PRUNED
    assert told.intermediate_values == {0: 42.0}


def test_the_study_opens_without_our_code(space: SearchSpace, tmp_path: Path) -> None:
    store = open_store(space, tmp_path, storage=None, seed=1)
    finish_one(store)
    study = optuna.load_study(study_name=STUDY_NAME, storage=f"sqlite:///{tmp_path / STUDY_FILE}")
    assert study.best_value == 100.0
    assert study.best_trial.user_attrs["trial"] == 0
