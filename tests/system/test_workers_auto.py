"""`--workers auto`: the search, and a worker process for each further GPU, on simulated servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulated_serving
from onnx_models import small_cnn

from optimizer.run.workers import WORKERS_FOLDER
from search.records.recommendation import RecommendationRecord
from search.records.run_files import whole_lines
from search.records.trial import TrialRecord

pytestmark = [pytest.mark.system, pytest.mark.long]

# Two of the kind of the first, and one that is not comparable.
NVIDIA_SMI = """#!/bin/sh
echo "NVIDIA L4, 23034, 550.1, 8.9, GPU-a"
echo "NVIDIA T4, 15360, 550.1, 7.5, GPU-b"
echo "NVIDIA L4, 23034, 550.1, 8.9, GPU-c"
"""


@pytest.fixture
def three_gpus(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that says it has three GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    known = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    paths = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**known, **paths}


def test_every_gpu_of_the_first_kind_measures(three_gpus: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--model", small_cnn(tmp_path / "m.onnx"), "--p99", "50ms", "--precisions", "fp32", "--json")
    more = ("--workers", "auto", "--time-budget", "200s", "--output", run, "--cache-dir", tmp_path / "cache")
    program = [sys.executable, simulated_serving.__file__]
    done = subprocess.run(
        [*program, *map(str, (*words, *more))],
        env=three_gpus, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode in {0, 96}, done.stderr[-3000:]
    (worker,) = (run / WORKERS_FOLDER).iterdir()
    used = [(folder / simulated_serving.USED_GPU).read_text() for folder in (run, worker)]
    assert used == ["GPU-a", "GPU-c"]
    trials = [TrialRecord.model_validate_json(line) for line in whole_lines(run / "trials.jsonl")]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    theirs = {trial.config for trial in trials if trial.worker is not None}
    mine = {trial.config for trial in trials if trial.worker is None}
    assert theirs
    assert mine
    assert not theirs & mine
    assert {trial.hardware for trial in trials if trial.worker is not None} == {"NVIDIA L4"}
    found = RecommendationRecord.model_validate_json(done.stdout)
    assert found.winner.certificate is not None
    assert found.machine.gpus == ("NVIDIA L4",)
