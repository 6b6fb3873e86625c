"""Tests of `optimize --config FILE` and environment variables: values that a run takes, and refusals."""

import os
from pathlib import Path

import pytest
import typer.main
from two_lines import refused

from loadgen.options.command import read_options
from loadgen.spec.limits import LatencyLimit
from optimizer.call_options import OPTIONS
from optimizer.cli import app, run_command
from optimizer.command.arguments import config_from_options
from optimizer.config import KEPT, OptimizeConfig
from optimizer.run_file import save_config, saved_config


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITUNE_STORAGE", "TRITUNE_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(b"never read: the options are refused first")
    return tmp_path / "tune.yaml"


def test_the_run_reports_what_it_did_not_get_from_its_command_line(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("model: m.onnx\np99: 50ms\n")
    monkeypatch.setenv("TRITUNE_OPTIMIZE_SEED", "3")
    assert run_command(["--config", str(file), "--dry-run"]) == 2  # the file is no model
    out = "".join(capsys.readouterr().out.split())  # a terminal wraps lines at spaces
    assert f"note: From {file}: model, p99.".replace(" ", "") in out
    assert "note: From the environment: seed.".replace(" ", "") in out


def test_the_run_records_where_each_value_comes_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("# a comment\nmodel: m.onnx\np99: 50ms\nseed: 3\n")
    words = ["--config", str(file), "--rate", "5", "--output", str(file.parent / "run")]
    variables = {"TRITUNE_OPTIMIZE_SEED": "4"}
    monkeypatch.setenv("TRITUNE_STORAGE", "postgresql://me:s3cret@db/optuna")
    with typer.main.get_command(app).make_context("optimize", words) as context:
        config, _ = config_from_options(*read_options("optimize", OPTIONS, context, variables))  # type: ignore[arg-type]
    config.output.mkdir()
    save_config(config, config.output)
    found = saved_config(config.output).origins
    given = {name: place for name, place in found.items() if place != "default"}
    assert given == {
        "model": f"{file}:2",
        "p99": f"{file}:3",
        "seed": "TRITUNE_OPTIMIZE_SEED",
        "rate": "--rate",
        "output": "--output",
        "storage": "TRITUNE_STORAGE",
    }
    assert found.keys() == KEPT.keys()
    assert "s3cret" not in (config.output / "run.json").read_text()


def test_a_run_of_before_origins_were_recorded_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"model": "/m.onnx", "limits": [{"limit_ms": 50}], "output": "."}')
    assert saved_config(tmp_path).origins == {}


def test_two_variables_for_one_option_are_refused_without_their_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_STORAGE", "postgresql://me:s3cret@db/optuna")
    monkeypatch.setenv("TRITUNE_OPTIMIZE_STORAGE", "sqlite:///x.db")
    what, fix = refused(capsys, run_command)
    assert what == "TRITUNE_STORAGE and TRITUNE_OPTIMIZE_STORAGE are both set, and both are for --storage."
    assert fix == "Unset one of them."


def test_a_password_in_a_variable_is_taken_and_not_passed_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_OPTIMIZE_STORAGE", "postgresql://me:s3cret@db/optuna")
    assert refused(capsys, run_command)[0] == "No model was given."
    assert "s3cret" not in "".join(os.environ.values())


@pytest.mark.parametrize("subcommand", [["doctor", "--help"], ["worker", "--study", "s"], ["report", "/nowhere"]])
def test_subcommands_take_no_options_of_optimize_and_pass_none_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, subcommand: list[str]
) -> None:
    monkeypatch.setenv("TRITUNE_OPTIMIZE_MODEL", "m.onnx")
    monkeypatch.setenv("TRITUNE_OPTIMIZE_NONE", "1")
    run_command(subcommand)
    assert "TRITUNE_OPTIMIZE" not in capsys.readouterr().err
    assert not [name for name in os.environ if name.startswith("TRITUNE_OPTIMIZE_")]


def test_a_run_that_goes_on_refuses_what_a_file_or_a_variable_decides(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    save_config(
        OptimizeConfig(limits=(LatencyLimit(limit_ms=50.0),), model=tmp_path / "m.onnx", output=folder), folder
    )
    file.write_text("time_budget: 3m\np99: 50ms\n")
    what, fix = refused(capsys, run_command, "--resume", folder, "--config", file)
    assert what == f"p99 in {file}:2 cannot be given with --resume: the run in {folder} has its own already."
    assert fix == f"Leave p99 in {file}:2 out, or start a new run without --resume."
    monkeypatch.setenv("TRITUNE_OPTIMIZE_SEED", "3")
    assert refused(capsys, run_command, "--resume", folder)[0].startswith(
        "TRITUNE_OPTIMIZE_SEED cannot be given with --resume"
    )
