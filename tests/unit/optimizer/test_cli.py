"""Tests of `optimize` with unusable arguments: two lines on stderr, and exit code 2."""

import re
from pathlib import Path

import pytest
from two_lines import refused

import loadgen.cli
from optimizer.call_options import OPTIONS
from optimizer.cli import run_command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"never read: the arguments are refused first")
    return path


def test_no_arguments_says_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    what, fix = refused(capsys, run_command)
    assert "model" in what
    assert "--model" in fix


def test_no_limit_says_what_is_needed(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    assert "--p99 50ms" in refused(capsys, run_command, "--model", str(model))[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--server", "cloud"], "cloud"),
        (["--server", "remote"], "--server remote"),
        (["--shape", "ids"], "ids"),
        (["--rate", "0"], "--rate"),
        (["--p50", "60ms"], "--p50 60ms"),
        (["--precisions", "fp32,fp64"], "'fp64'"),
        (["--calibration-method", "mean"], "--calibration-method mean"),
        (["--io-precision", "int4"], "--io-precision int4"),
        (["--p95", "soon"], "--p95"),
        (["--max-memory", "8"], "--max-memory"),
        (["--objective", "speed"], "speed"),
        (["--objective", "latency"], "rate"),
        (["--max-memory", "8GiB", "--server", "docker"], "docker"),
        (["--price-per-hour", "-1"], "--price-per-hour"),
        (["--time-budget", "soon"], "--time-budget"),
        (["--input-data", "/nowhere/x.npz"], "/nowhere/x.npz"),
        (["--price-file", "/nowhere/p.json"], "/nowhere/p.json"),
        (["--server-port", "70000"], "70000"),
        (["--confidence", "1.5"], "1.5"),
        (["--seed", "-1"], "-1"),
        (["--arrivals", "ramp:from=1,to=2"], "ramp"),
        (["--trace", "/nowhere/t.txt"], "/nowhere/t.txt"),
        (["--client-batch", "0"], "--client-batch 0"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_other_arguments_are_named(
    capsys: pytest.CaptureFixture[str], model: Path, arguments: list[str], named: str
) -> None:
    assert named in refused(capsys, run_command, "--model", str(model), "--p99", "50ms", *arguments)[0]


def test_resume_wants_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert str(tmp_path) in refused(capsys, run_command, "--resume", str(tmp_path))[0]


def test_a_new_run_does_not_write_into_a_directory_with_files(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    what, fix = refused(capsys, run_command, "--model", str(model), "--p99", "50ms", "--output", str(tmp_path))
    assert str(tmp_path) in what
    assert "--resume" in fix


def test_an_output_below_a_file_cannot_be_made(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    below = model / "runs"
    assert str(below) in refused(capsys, run_command, "--model", model, "--p99", "50ms", "--output", below)[0]


def test_a_password_among_the_arguments_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    url = "postgresql://me:s3cret@db/optuna"
    what, fix = refused(capsys, run_command, "--model", str(model), "--p99", "50ms", "--storage", url)
    assert "process list" in what
    assert "TRITUNE_STORAGE" in fix
    assert "s3cret" not in what


@pytest.mark.parametrize("command", ["optimize", "loadtest"])
def test_help_shows_what_most_runs_need_and_help_all_the_rest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, options = run_command, dict(OPTIONS)
    if command == "loadtest":
        run, options = loadgen.cli.run_command, dict(loadgen.cli.OPTIONS)
    flags = {one.flag: one for one in options.values() if not one.argument}
    shown = {}
    for flag in ("--help", "--help-all"):
        assert run([flag]) == 0
        shown[flag] = set(re.findall(r"^[│|] +(--[a-z0-9-]+)", capsys.readouterr().out, re.M)) & flags.keys()
    common = {flag for flag, one in flags.items() if one.common}
    assert shown == {"--help": common, "--help-all": flags.keys()}
    assert 10 < len(common) < 20


def test_a_script_for_the_shell_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--print-completion", "bash"]) == 0
    assert "complete -o default" in capsys.readouterr().out
    assert "fish" in refused(capsys, run_command, "--print-completion", "fish")[0]


@pytest.mark.parametrize("words", [["explain"], ["explain", "--all"]])
def test_a_wrong_call_of_a_subcommand_names_its_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert "optimize explain --help" in refused(capsys, run_command, *words)[1]


def test_quiet_and_verbose_contradict_each_other(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    assert "--quiet" in refused(capsys, run_command, "--model", model, "--p99", "50ms", "-q", "-v")[0]
