import sys
from pathlib import Path
from typing import Any

import pytest

import tritune

RECORDED = Path(__file__).parents[2] / "data" / "recorded_runs"


def test_a_run_has_its_recommendation_its_trials_and_their_load_runs() -> None:
    run = tritune.open_run(RECORDED / "one-core")
    assert run.recommendation is not None
    assert run.recommendation.winner.number in {trial.number for trial in run.trials}
    assert run.load_runs == tuple(load for trial in run.trials for load in trial.load_runs)
    assert run.load_runs


def test_a_run_that_is_not_finished_has_its_trials(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_bytes((RECORDED / "one-core" / "trials.jsonl").read_bytes())
    run = tritune.open_run(str(tmp_path))
    assert run.recommendation is None
    assert len(run.trials) == len(tritune.open_run(RECORDED / "one-core").trials)


@pytest.mark.parametrize("place", [".", "nowhere"])
def test_what_is_no_run_is_an_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(tritune.Error) as caught:
        tritune.open_run(tmp_path / place)
    assert caught.value.exit_code == 2
    assert str(tmp_path) in caught.value.what


@pytest.mark.parametrize("place", ["a" * 5000, "a\0b", 5])
def test_what_is_no_path_is_an_error(place: Any) -> None:
    with pytest.raises(tritune.Error) as caught:
        tritune.open_run(place)
    assert caught.value.exit_code == 2


def test_frames_have_a_row_per_trial_and_per_load_run() -> None:
    pytest.importorskip("pandas")
    run = tritune.open_run(RECORDED / "one-core")
    trials, loads = run.to_pandas(), run.to_pandas("load_runs")
    assert list(trials["number"]) == [trial.number for trial in run.trials]
    measured = [trial for trial in run.trials if trial.measurement is not None]
    column = trials["measurement.latency_p99_ms"].dropna()
    assert list(column) == [trial.measurement.latency_p99_ms for trial in measured]
    assert list(loads["rate_per_s"]) == [load.rate_per_s for load in run.load_runs]
    assert set(loads["trial"]) <= set(trials["number"])


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it was not installed
    with pytest.raises(tritune.Error) as caught:
        tritune.open_run(RECORDED / "one-core").to_pandas()
    assert caught.value.exit_code == 3
    assert "pip install pandas" in caught.value.fix
