import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import tritune
from optimizer.run.recommendation import keep_failure
from search.find_best import NothingFound

RECORDED = Path(__file__).parents[2] / "data" / "recorded_runs"


def test_a_run_has_its_recommendation_its_trials_and_their_load_runs() -> None:
    run = tritune.open_run(RECORDED / "one-core")
    assert run.recommendation.winner.number in {trial.number for trial in run.trials}
    assert run.load_runs == tuple(load for trial in run.trials for load in trial.load_runs)
    assert run.load_runs


def test_a_run_that_is_not_finished_has_its_trials(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_bytes((RECORDED / "one-core" / "trials.jsonl").read_bytes())
    run = tritune.open_run(str(tmp_path))
    assert (run.recommendation, run.outcome, run.status) == (None, None, None)
    assert "resume=" in run.advice
    assert len(run.trials) == len(tritune.open_run(RECORDED / "one-core").trials)


def test_a_run_that_recommends_nothing_says_why_and_what_to_do(tmp_path: Path) -> None:
    keep_failure(tmp_path, NothingFound("No rate met <p99>.", "Raise --p99, or go on: optimize --resume runs/a"))
    run = tritune.open_run(tmp_path)
    assert (run.recommendation, run.trials) == (None, ())
    assert (run.status, run.reason, run.advice) == (
        "violated",
        "No rate met <p99>.",
        'Raise p99=, or go on: tritune.optimize(resume="runs/a")',
    )
    assert "No rate met &lt;p99&gt;." in run._repr_html_()


def test_a_notebook_shows_the_answer_and_a_prompt_one_line(tmp_path: Path) -> None:
    run = tritune.open_run(RECORDED / "two-cores")
    found = run.recommendation
    for shown in (run, found):
        assert "provisional" in repr(shown)
        assert "\n" not in repr(shown)
        page = ET.fromstring(shown._repr_html_())  # noqa: S314 - well formed, as text of others is escaped
        cells = [cell.text for cell in page.iter("td")]
        assert cells[cells.index("maximum batch size") + 1] == str(found.winner.config.max_batch_size)
    strange = found.model_copy(update={"status_reason": "<script>1</script>"})
    assert "<script>" not in strange._repr_html_()
    assert found.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")


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
