"""Tests of `optimize bundle`: the files that it writes, and refusals in two lines."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundles import on_disk

from model_repo.repository.write import write_repository
from optimizer.cli import run_command

SECRET = "Bearer s3cr3t-of-a-header"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    found, config = on_disk(tmp_path, model_name="My_Model")
    write_repository(folder / "model_repository", config, copy=True)
    (folder / "recommendation.json").write_text(found.model_dump_json(indent=2) + "\n")
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: Path | str) -> list[str]:
    code = run_command(["bundle", *map(str, arguments)])
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 2, lines
    return lines


def test_writes_the_bundle_and_says_what_it_is_called(run_dir: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bundle", str(run_dir), "--peak-rate", "9000"]) == 0
    out = capsys.readouterr().out
    assert str(run_dir / "bundle") in out
    assert "my-model" in out
    assert "Assumed" in out
    model = run_dir / "bundle" / "model_repository_native" / "My_Model"
    original = run_dir / "model_repository" / "My_Model" / "1" / "model.onnx"
    assert (model / "1" / "model.onnx").read_bytes() == original.read_bytes()
    assert 'backend: "onnxruntime"' in (model / "config.pbtxt").read_text()
    embedded = run_dir / "bundle" / "model_repository" / "My_Model"
    assert (embedded / "config.pbtxt").read_text() == (
        run_dir / "model_repository" / "My_Model" / "config.pbtxt"
    ).read_text()


def test_a_half_written_repository(run_dir: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run_dir / "model_repository" / "My_Model" / "1")
    assert "not whole" in refused(capsys, run_dir)[0]


def test_an_engine_of_another_version(run_dir: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "recommendation.json"
    path.write_text(path.read_text().replace("onnxruntime-fp32", "openvino-fp32"))
    assert "openvino-fp32" in refused(capsys, run_dir)[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--peak-rate", "1e9"), "more than the limit of 100"),
        (("--rate", "100", "--peak-rate", "50"), "below the rate"),
        (("--rate", "0"), "--rate 0"),
        (("--rate", "nan"), "--rate nan"),
        (("--max-replicas", "0"), "--max-replicas 0"),
        (("--ramp", "soon"), "--ramp 'soon'"),
        (("--target", "nomad"), "--target nomad"),
    ],
)
def test_options_that_make_no_sense(
    run_dir: Any, capsys: pytest.CaptureFixture[str], arguments: Any, named: str
) -> None:
    assert named in refused(capsys, run_dir, *arguments)[0]
    assert not (run_dir / "bundle").exists()


@pytest.mark.parametrize("folder", [".", "..", "../run"])
def test_a_bundle_never_takes_the_place_of_its_run(
    run_dir: Any, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    before = sorted(run_dir.rglob("*"))
    assert "holds the run itself" in refused(capsys, run_dir, "--output", run_dir / folder, "--force")[0]
    assert sorted(run_dir.rglob("*")) == before


def test_what_a_run_may_know_in_secret_is_not_rendered(run_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle holds no headers, no storage passwords and nothing of the environment."""
    (run_dir / "run.json").write_text(json.dumps({"storage": SECRET, "headers": {"Authorization": SECRET}}))
    (run_dir / "optimize.log").write_text(SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert run_command(["bundle", str(run_dir)]) == 0
    for path in (run_dir / "bundle").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()


def changed(run_dir: Any, **changes: str | float) -> None:
    """Change values in a run's recommendation: `workload__trace="x"` is found.workload.trace."""
    path = run_dir / "recommendation.json"
    document = json.loads(path.read_text())
    for keys, value in changes.items():
        *parents, last = keys.split("__")
        inner = document
        for key in parents:
            inner = inner[key]
        inner[last] = value
    path.write_text(json.dumps(document))


def test_a_trace_comes_into_the_bundle_without_its_remarks(run_dir: Any) -> None:
    changed(run_dir, workload__trace="trace.txt", workload__trace_requests=2, workload__recorded_rate_per_s=1.0)
    (run_dir / "trace.txt").write_text("0.5  # of customer 7\n# password\n1.5e0\n")
    assert run_command(["bundle", str(run_dir)]) == 0
    assert (run_dir / "bundle" / "compose" / "trace.txt").read_text() == "0.5\n1.5e0\n"


@pytest.mark.parametrize("option", ["--image", "--loadtest-image"])
@pytest.mark.parametrize("image", ["a b", "x\nRUN y", "$(id)", "-v", ""])
def test_what_is_no_image_is_refused(
    run_dir: Any, capsys: pytest.CaptureFixture[str], option: str, image: str
) -> None:
    assert f"{option} {image!r} is not the name" in refused(capsys, run_dir, f"{option}={image}")[0]
