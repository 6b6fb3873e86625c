"""`--workers auto` on a machine with several GPUs: each measures with a server of its own, at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx_models import small_cnn

from optimizer.machine.hardware import hardware, matching
from optimizer.run.workers import WORKERS_FOLDER
from search.records.recommendation import RecommendationRecord
from search.records.run_files import whole_lines
from search.records.trial import TrialRecord

pytestmark = [pytest.mark.gpu, pytest.mark.measure, pytest.mark.timeout(500)]

OPTIMIZE = str(Path(sys.executable).with_name("optimize"))


def test_every_gpu_measures_for_the_one_answer(tmp_path: Path) -> None:
    gpus = matching(hardware().gpus, None)
    if len(gpus) < 2:
        pytest.skip("no GPU beside the first")
    run = tmp_path / "run"
    words = ("--model", small_cnn(tmp_path / "m.onnx"), "--p99", "20ms", "--precisions", "fp32", "--json")
    more = ("--workers", "auto", "--time-budget", "100s", "--output", run)
    environment = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [OPTIMIZE, *map(str, (*words, *more))],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((run / WORKERS_FOLDER).iterdir())) == len(gpus) - 1
    trials = [TrialRecord.model_validate_json(line) for line in whole_lines(run / "trials.jsonl")]
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert any(trial.worker is None for trial in trials)
    theirs = [trial for trial in trials if trial.worker is not None and trial.state == "complete"]
    assert theirs
    assert {trial.hardware for trial in theirs} == {gpus[0].name}
    found = RecommendationRecord.model_validate_json(done.stdout)
    assert found.winner.certificate is not None
