"""`optimize` on what it cannot use, as a user meets it: two lines, exit code 2, and nothing was served."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import bad_models
import onnx_models
import pytest

from optimizer.cli import run_command

pytestmark = pytest.mark.system


def nothing(path: Path) -> Path:
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def text(path: Path) -> Path:
    path.write_text("This is not a model.\n" * 50)
    return path


BAD_MODELS: dict[Callable[[Path], Path], str] = {
    nothing: "does not exist",
    folder: "director",
    bad_models.with_external_data: "weights.bin",
    bad_models.unknown_operator: "operator",
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The two lines that were printed."""
    assert run_command(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    errors = captured.err[captured.err.index("error: ") :].splitlines()
    assert len(errors) == 2, captured.err
    return "\n".join(errors)


@pytest.mark.parametrize("make", BAD_MODELS, ids=lambda make: make.__name__)
def test_a_model_that_cannot_be_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    (tmp_path / "models").mkdir()
    model = make(tmp_path / "models" / "m.onnx")
    output = tmp_path / "run"
    said = refused(capsys, "--model", str(model), "--p99", "50ms", "--output", str(output))
    assert BAD_MODELS[make] in said
    assert not (output / "server.log").exists()


def test_a_missing_shape_names_the_flag_to_add(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = onnx_models.token_classifier(tmp_path / "tokens.onnx")
    said = refused(capsys, "--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"))
    assert "--shape" in said
    assert ":128" in said


@pytest.mark.parametrize(("term", "said"), [("spot", "no spot price"), ("lease", "--price-term lease")])
def test_a_term_without_a_price(capsys: pytest.CaptureFixture[str], tmp_path: Path, term: str, said: str) -> None:
    model = onnx_models.small_cnn(tmp_path / "m.onnx")
    arguments = ("--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"))
    assert said in refused(capsys, *arguments, "--price-term", term)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = onnx_models.small_cnn(tmp_path / "m.onnx")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ("--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"))
        assert port in refused(capsys, *arguments, "--server-port", port, "--despite-noise")


def optimize_process(tmp_path: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("optimize")), *arguments]
    return subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False, **options
    )


def test_a_disk_that_takes_no_more_bytes(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: both fail in `write`."""
    model = onnx_models.small_cnn(tmp_path / "m.onnx")

    def no_more_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = optimize_process(
        tmp_path,
        *("--model", str(model), "--p99", "50ms", "--output", "run"),
        preexec_fn=no_more_bytes,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 2
