"""`optimize` on what it cannot use, as a user meets it: two lines, exit code 2, and nothing was served."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import onnx_models
import pytest
from two_lines import refused

from optimizer.cli import run_command

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("term", "said"), [("spot", "no spot price"), ("lease", "--price-term lease")])
def test_a_term_without_a_price(capsys: pytest.CaptureFixture[str], tmp_path: Path, term: str, said: str) -> None:
    model = onnx_models.small_cnn(tmp_path / "m.onnx")
    arguments = ("--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"))
    assert said in " ".join(refused(capsys, run_command, *arguments, "--price-term", term, after_notes=True))


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = onnx_models.small_cnn(tmp_path / "m.onnx")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ("--model", str(model), "--p99", "50ms", "--output", str(tmp_path / "run"))
        said = refused(capsys, run_command, *arguments, "--server-port", port, "--despite-noise", after_notes=True)
        assert port in " ".join(said)


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
