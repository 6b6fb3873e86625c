"""Finished runs are found by name, listed, and say how they ended to every command that needs their answer."""

import json
import os
from pathlib import Path

import pytest
from recommendations import certificate, recommendation, trial
from two_lines import refused

from loadgen.errors import BadInput
from loadgen.spec.limits import Colocated, LatencyLimit
from model_repo.spec import Protocol
from optimizer.cli import run_command
from optimizer.command.serve import load_test_of
from optimizer.config import OptimizeConfig
from optimizer.run.recommendation import failure_record, write_recommendation
from optimizer.run_file import save_config
from search.find_best import NothingFound
from search.records.recommendation import AnyRecommendation
from search.records.run_files import named_run
from search.records.slo import Slo, WorkloadRecord

LIMITS = (LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=10.0))
NOTHING = failure_record(NothingFound("No rate could be certified: too short.", "Wait.", "inconclusive", None))


def made(folder: Path, *, at_s: float, ended: AnyRecommendation | None = None) -> Path:
    """Make a run that began at that time, with its outcome if it has ended."""
    folder.mkdir(parents=True)
    save_config(OptimizeConfig(model=Path("/models/m.onnx"), limits=LIMITS, output=folder), folder)
    os.utime(folder / "run.json", (at_s, at_s))
    if ended is not None:
        write_recommendation(folder, ended)
        (folder / "trials.jsonl").write_text(trial().model_dump_json() + "\n")
    return folder


@pytest.fixture
def three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with runs whose names sort in another order than they began."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "runs" / "c", at_s=1e9, ended=NOTHING)
    made(tmp_path / "runs" / "b", at_s=2e9)
    made(tmp_path / "runs" / "a", at_s=3e9, ended=recommendation())
    (tmp_path / "runs" / "worker-m").mkdir()  # no run
    return tmp_path


def test_latest_is_the_run_that_began_last_unless_there_is_a_folder_of_that_name(three_runs: Path) -> None:
    latest = Path("latest")
    assert named_run(latest) == Path("runs/a")
    os.utime("runs/c/run.json", (4e9, 4e9))  # resumed
    assert named_run(latest) == Path("runs/c")
    assert named_run(three_runs / "latest") == three_runs / "runs" / "c"  # as a file of options has it
    latest.mkdir()
    assert named_run(latest) == latest
    assert named_run(Path("runs/b")) == Path("runs/b")
    with pytest.raises(BadInput, match="no latest run"):
        named_run(Path("elsewhere/latest"))


@pytest.mark.usefixtures("three_runs")
@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "latest"],
        ["explain", "latest", "3"],
        ["report", "latest"],
        ["report", "latest", "--markdown"],
        ["compare", "runs/a", "latest"],
        ["compare", "latest", "runs/a"],
        ["fleet", "latest", "--rate", "100", "--price-per-hour", "latest=2"],
    ],
    ids=" ".join,
)
def test_latest_is_taken_by(arguments: list[str]) -> None:
    assert run_command(arguments) == 0


@pytest.mark.usefixtures("three_runs")
@pytest.mark.parametrize("arguments", [["serve"], ["bundle"], ["explain"], ["fleet", "--rate", "1"]], ids=" ".join)
def test_a_run_without_an_answer_says_how_it_ended_and_how_to_go_on(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    what, fix = refused(capsys, run_command, command, "runs/c", *options)
    assert NOTHING.status_reason in what
    assert "optimize --resume runs/c" in fix
    what, fix = refused(capsys, run_command, command, "runs/b", *options)
    assert "has not ended" in what
    assert "optimize --resume runs/b" in fix


@pytest.mark.usefixtures("three_runs")
def test_the_other_options_that_take_a_run_take_latest(capsys: pytest.CaptureFixture[str]) -> None:
    os.utime("runs/b/run.json", (4e9, 4e9))
    for arguments in (["bundle", "latest"], ["serve", "latest"]):
        assert "runs/b" in refused(capsys, run_command, *arguments)[0]
    assert "runs/b" in refused(capsys, run_command, "--resume", "latest", "--p99", "1s")[0]
    Path("m.onnx").write_bytes(b"never read: the baseline is read first")
    new = ("--model", "m.onnx", "--p99", "1s", "--baseline", "latest")
    assert "runs/b" in refused(capsys, run_command, *new)[0]


@pytest.mark.usefixtures("three_runs")
def test_runs_are_listed_with_the_last_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [one["directory"] for one in listed] == ["runs/c", "runs/b", "runs/a"]
    assert [one["outcome"] for one in listed] == ["inconclusive", "not ended", "certified"]
    assert [one["rate_per_s"] for one in listed] == [None, None, 1000.0]
    assert {one["model"] for one in listed} == {"m"}
    assert [limit["limit_ms"] for limit in listed[0]["limits"]] == [50.0, 10.0]

    (Path("runs/b") / "run.json").write_text("{")
    made(Path("runs/ranking_mlp-20261128-193153"), at_s=5e9, ended=recommendation())
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "runs/ranking_mlp-20261128-193153" in "\n".join(lines)
    assert sum("unreadable" in line for line in lines) == 1
    assert run_command(["runs", "nowhere"]) == 0


@pytest.mark.usefixtures("three_runs")
def test_without_a_number_the_recommendation_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for number in ([], ["best"], ["3"]):
        assert run_command(["explain", "runs/a", *number, "--json"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] == shown[2]
    assert "two" in refused(capsys, run_command, "explain", "runs/a", "two")[0]


def test_a_served_model_is_tested_at_the_rate_and_under_the_limits_of_its_run(three_runs: Path) -> None:
    other = LatencyLimit(limit_ms=20.0, colocated=Colocated(model="other", rate_per_s=900.0))
    found = recommendation(
        slo=Slo(limits=LIMITS, colocated=(other,)), winner=trial(certificate=certificate(1234.5))
    )
    urls: dict[Protocol, str] = {"http": "http://127.0.0.1:1", "grpc": "grpc://127.0.0.1:2"}

    def proposed(name: str, **changes: object) -> list[str]:
        return load_test_of(name, urls, three_runs, found.model_copy(update=changes), None, shares=False).split()

    expected = "loadtest http://127.0.0.1:1 --model m --rate 1234 --p99 50ms --p50 10ms"
    assert " ".join(proposed("m")).startswith(expected)
    assert proposed("m", workload=WorkloadRecord(protocol="grpc"))[1] == urls["grpc"]
    assert " ".join(proposed("other")).endswith("--model other --rate 900 --p99 20ms")


@pytest.mark.usefixtures("three_runs")
@pytest.mark.parametrize("model", [["--model", "nope.onnx"], ["--model", "nope", "--repository", "runs"]])
def test_a_model_that_is_not_there_leaves_no_directory(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path("runs").rglob("*"))
    assert "nope" in refused(capsys, run_command, *model, "--p99", "50ms")[0]
    assert sorted(Path("runs").rglob("*")) == before
