"""Tests of `--dry-run`: it refuses what a run refuses before its server starts, and leaves nothing behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx_models import small_cnn
from two_lines import refused

from optimizer.cli import run_command


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = small_cnn(tmp_path / "cnn.onnx")
    return ["--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"), "--dry-run"]


def test_the_plan_is_json(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = tmp_path / "config.pbtxt"
    start.write_text(
        "max_batch_size: 8 dynamic_batching { } instance_group { count: 3 } optimization { priority: 1 }"
    )
    arguments = ["--json", "--instances", "1:3", "--exclude", "max_batch_size=64", "--start-from", str(start)]
    before = sorted(tmp_path.iterdir())
    assert run_command([*words, *arguments, "--events", str(tmp_path / "events.jsonl")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["knobs"]["instance_count"] == [1, 2, 3]
    assert 64 not in plan["knobs"]["max_batch_size"]
    assert plan["start"]["instance_count"] == 3
    assert plan["baseline"]["max_batch_size"] == 4
    assert any("optimization" in note for note in plan["notes"])
    assert set(tmp_path.iterdir()) - set(before) <= {tmp_path / "cache"}


def test_a_directory_that_a_run_cannot_use(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    assert "not empty" in refused(capsys, run_command, *words)[0]
    assert "/proc/x" in refused(capsys, run_command, *words, "--output", "/proc/x")[0]


def test_a_server_that_is_not_installed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for kind, program in (("local", "tritonserver"), ("docker", "docker")):
        assert program in refused(capsys, run_command, *words, "--server", kind)[0]


def test_files_that_cannot_be_used(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "recommendation.json" in refused(capsys, run_command, *words, "--baseline", tmp_path)[0]
    assert "--events" in refused(capsys, run_command, *words, "--events", tmp_path / "none" / "x")[0]
    (tmp_path / "config.pbtxt").write_text("max_batch_size: many")
    assert "--start-from" in refused(capsys, run_command, *words, "--start-from", tmp_path / "config.pbtxt")[0]


def test_samples_that_the_model_does_not_take(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", nothing=np.zeros((2, 3), np.float32))
    assert "nothing" in " ".join(refused(capsys, run_command, *words, "--input-data", tmp_path / "x.npz"))


@pytest.mark.parametrize("option", ["output", "start-from", "cache-dir", "input-data"])
def test_names_that_are_not_utf_8_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "c\udcff").write_text("max_batch_size: 8")
    assert f"--{option}" in refused(capsys, run_command, *words, f"--{option}", tmp_path / "c\udcff")[0]


def test_an_events_file_that_cannot_be_made_leaves_no_folder(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = [word for word in words if word != "--dry-run"]
    assert "--events" in refused(capsys, run_command, *real, "--events", tmp_path / "none" / "x")[0]
    assert not (tmp_path / "run").exists()
