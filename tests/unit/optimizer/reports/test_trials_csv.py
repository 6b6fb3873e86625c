"""Tests of the CSV file of a run's trials: Model Analyzer's columns, and what is filled in."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from recommendations import config, engine, measurement, recommendation, run_dir, trial

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import OWN, OwnModel, ServingConfig
from optimizer.cli import run_command
from search.records.slo import Slo, WorkloadRecord
from search.records.trial import GpuRecord


def own_config() -> ServingConfig:
    return config(engine=replace(engine(), backend=OWN, own=OwnModel(folder=Path("m"), text="")))


def rows_of(folder: Path) -> list[dict[str, str]]:
    assert run_command(["report", str(folder), "--csv"]) == 0
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_trials_are_written_in_model_analyzers_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = trial(1, state="failed", rate_at_limit_per_s=None, measurement=None, certificate=None)
    whole = run_dir(tmp_path / "run", recommendation(), trial(0), failed, trial(2, state="pruned"))
    before = (whole / "trials.jsonl").read_bytes()
    rows = rows_of(whole)
    assert capsys.readouterr().out.strip() == str(whole / "trials.csv")
    assert [row["Model Config Path"] for row in rows] == ["m_trial_0", "m_trial_2"]
    assert rows[0] == {
        "Model": "m",
        "Batch": "1",
        "Request Rate": "100.0",
        "Model Config Path": "m_trial_0",
        "Instance Group": "2:CPU",
        "Max Batch Size": "8",
        "Satisfies Constraints": "Yes",
        "Throughput (infer/sec)": "100.0",
        "Avg Latency (ms)": "12.0",
        "p90 Latency (ms)": "20.0",
        "p95 Latency (ms)": "25.0",
        "p99 Latency (ms)": "40.0",
        "Server Queue time (ms)": "3.0",
        "Server Compute Input time (ms)": "0.1",
        "Server Compute Infer time (ms)": "8.0",
        "Server Compute Output time (ms)": "0.2",
    }
    assert (whole / "trials.jsonl").read_bytes() == before


def test_a_row_of_the_csv_has_its_batches_memory_and_gpus(tmp_path: Path) -> None:
    gpu = GpuRecord(utilization=0.75, memory_used_bytes=2 * 10**9, power_w=None, energy_per_1000_inferences_j=None)
    over, late, lost = measurement(gpu=gpu), measurement(latency_p99_ms=50.1), measurement(latency_p99_ms=None)
    doubted = measurement(problems=("the client was late",))
    trials = [trial(n, measurement=one) for n, one in enumerate((over, late, lost, doubted))]
    trials.append(trial(4, memory_bytes=3 * 10**9, config=own_config()))
    slo = Slo(limits=(LatencyLimit(limit_ms=50.0),), max_memory_bytes=2 * 10**9)
    machine = recommendation().machine.model_copy(update={"gpus": ("L4",)})
    found = recommendation(slo=slo, machine=machine, workload=WorkloadRecord(rows_per_request=4))
    rows = rows_of(run_dir(tmp_path / "run", found, *trials))
    assert [row["Satisfies Constraints"] for row in rows] == ["Yes", "No", "No", "No", "No"]
    assert [row["Instance Group"] for row in rows] == [*["2:GPU"] * 4, "2"]
    assert [row["p99 Latency (ms)"] for row in rows] == ["40.0", "50.1", "", "40.0", "40.0"]
    assert {row["Throughput (infer/sec)"] for row in rows} == {"400.0"}
    assert [row["GPU Memory Usage (MB)"] for row in rows] == ["2000.0", *[""] * 4]
    assert rows[0]["GPU Utilization (%)"] == "75.0"
    assert "GPU Power Usage (W)" not in rows[0]
    assert rows[4]["RAM Usage (MB)"] == "3000.0"


def test_a_csv_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = run_dir(tmp_path / "run", recommendation(), trial(2, state="failed", measurement=None))
    assert run_command(["report", str(empty), "--csv"]) == 2
    assert not (empty / "trials.csv").exists()
    assert run_command(["report", str(empty), "--csv", "--markdown"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 4
