"""Tests that the log of a run holds its command line, without the passwords in it."""

import logging
from pathlib import Path

import pytest

from optimizer.run.run_directory import logging_to

SECRET = "s3cret"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--storage", f"postgresql://me:{SECRET}@db:5432/optuna"],
        [f"--storage=postgresql://db/optuna?password={SECRET}"],
        ["--server-url", f"http://me:{SECRET}@triton:8000"],
        [f"--server-url=https://me:{SECRET}@triton:8000"],
        ["worker", "--study", "m", "--storage", f"postgresql://me:{SECRET}@db/optuna"],
    ],
)
def test_the_log_of_a_run_has_its_arguments_without_passwords(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "optimize.log"
    with logging_to(path, arguments=["--model", "m.onnx", *arguments, "--p99", "50ms"]):
        logging.getLogger("tritune").info("a line of the run")
    text = path.read_text()
    assert "arguments: --model m.onnx " in text
    assert " --p99 50ms\n" in text
    assert "a line of the run" in text
    assert SECRET not in text
