"""A run's directory as schema version 1 wrote it: two limits, certified twice, on a simulated server."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from optimizer.cli import run_command
from optimizer.run_file import saved_config, slo_of
from search.records.confirmations import read_confirmations
from search.records.run_files import read_recommendation, read_trials
from search.records.slo import Slo
from search.records.trial import TrialRecord
from search.records.version_1 import upgrade, upgrade_slo
from search.simulator.service_times_file import read_curves
from search.study.store import open_store

RECORDED = Path(__file__).parents[3] / "data" / "version_1_run"
LIMITS = (LatencyLimit(limit_ms=50.0), LatencyLimit(limit_ms=20.0, quantile=0.5))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def raw(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / name).read_text().splitlines()]


def test_settings_have_their_limits(run: Path) -> None:
    assert saved_config(run).limits == LIMITS
    assert slo_of(saved_config(run)) == Slo(limits=LIMITS)


def test_trials_say_the_same(run: Path) -> None:
    trials, before = read_trials(run), raw("trials.jsonl")
    assert len(trials) == len(before) == 6
    for trial, line in zip(trials, before, strict=True):
        assert trial.schema_version == 2
        assert (trial.number, trial.rate_at_limit_per_s) == (line["number"], line["rate_at_limit_per_s"])
        assert asdict(trial.contention) == line["neighbours"]
        assert [one.met for one in trial.load_runs] == [one["kept"] for one in line["load_runs"]]


def test_a_certificate_has_the_latencies_of_all_limits(run: Path) -> None:
    found = read_recommendation(run)
    before = json.loads((RECORDED / "recommendation.json").read_text())["winner"]["certificate"]
    first, median = found.winner.certificate.latencies
    assert (first.quantile, median.quantile) == (0.99, 0.5)
    bounds = (before["p99_low_ms"], before["p99_ms"], before["p99_high_ms"])
    assert (first.latency_low_ms, first.latency_ms, first.latency_high_ms) == bounds
    assert first.violations == before["violations"]
    assert median.latency_ms == before["also"][0]["latency_ms"]
    assert found.winner.certificate.runs == 2
    assert found.slo.limits == LIMITS


def test_confirmations_say_the_same(run: Path) -> None:
    before = raw("confirmations.jsonl")
    assert [one.met for one in read_confirmations(run)] == [one["kept"] for one in before]
    assert [one.latency_ms for one in read_confirmations(run)] == [one["latency_ms"] for one in before]


def test_a_search_goes_on_from_its_trials_and_service_times(run: Path) -> None:
    space = two_core_space(run)
    assert read_curves(run)
    store = open_store(space, run, storage=None, seed=0)
    assert [trial.number for trial in store.trials] == [line["number"] for line in raw("trials.jsonl")]
    assert store.best().rate_at_limit_per_s == max(line["rate_at_limit_per_s"] for line in raw("trials.jsonl"))
    store.storage.close()


def test_its_report_is_written(run: Path) -> None:
    assert run_command(["report", str(run)]) == 0
    assert "745.4 requests/s" in (run / "report.html").read_text()


def test_its_trials_are_explained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", str(run), "4"]) == 0
    assert "745" in capsys.readouterr().out


def test_it_can_be_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compare", str(run), str(run)]) == 0
    assert "41.9 ms" in capsys.readouterr().out


def test_a_step_away_is_adjacent() -> None:
    line = next(line for line in raw("trials.jsonl") if line["why"] is not None)
    line["why"]["cause"] = "neighbour"
    assert TrialRecord.model_validate_json(json.dumps(line)).why.cause == "adjacent"


@pytest.mark.parametrize(
    "data",
    [{"schema_version": 1, "certificate": {"also": 3}}, {"schema_version": 1, "certificate": {"also": [3]}}],
)
def test_what_version_1_never_wrote_is_left_to_the_records(data: dict[str, Any]) -> None:
    assert upgrade(data) is data


@pytest.mark.parametrize("data", [{"limit_ms": 1.0, "also": 3}])
def test_limits_that_version_1_never_wrote_are_left_to_the_records(data: dict[str, Any]) -> None:
    assert upgrade_slo(data) is data


@pytest.mark.parametrize("data", [None, 3, [], {}, {"schema_version": 2, "pace": 1}])
def test_anything_else_stays_as_it_is(data: object) -> None:
    assert upgrade(data) is data
    assert upgrade_slo(data) is data
