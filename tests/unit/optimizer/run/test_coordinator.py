"""Tests of this machine's workers: one per GPU, none left running, and the storage in no command line."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.run import coordinator
from optimizer.run.coordinator import (
    WORKER_LOG_FILE,
    with_kept_trace,
    worker_arguments,
    workers_on,
)
from optimizer.run.workload_inputs import TRACE_FILE

SAYS_WHAT_IT_GOT = """
import os, sys, time
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TRITUNE_STORAGE"], *sys.argv[1:], flush=True)
time.sleep(600)
"""


def test_each_gpu_gets_a_process_that_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "COMMAND", (sys.executable, "-c", SAYS_WHAT_IT_GOT))
    logs = [tmp_path / f"gpu-{number}" / WORKER_LOG_FILE for number in (1, 2)]
    url = "postgresql://me:s3cret@db/optuna"
    with workers_on(["GPU-b", "GPU-c"], storage=url, arguments=["--study", "s"], folder=tmp_path) as started:
        while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
            assert all(process.poll() is None for process in started)
        lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in started]
    assert all(process.poll() is not None for process in started)
    said = [log.read_text().split() for log in logs]
    assert [words[0] for words in said] == ["GPU-b", "GPU-c"]
    assert {words[1] for words in said} == {url}
    assert [words[words.index("--output") + 1] for words in said] == [str(log.parent) for log in logs]
    assert all("s3cret" not in line for line in lines)


def test_a_worker_gets_the_files_of_the_search_and_what_is_not_the_default(tmp_path: Path) -> None:
    plain = OptimizeConfig(output=tmp_path, model=Path("/m.onnx"), limits=(LatencyLimit(limit_ms=50),))
    assert worker_arguments(plain, study="s") == ["--model", "/m.onnx", "--study", "s"]
    more = replace(
        plain,
        input_data=Path("/in.npz"),
        calibration_data=Path("/c.npz"),
        trace=Path("/recorded.csv"),
        server="docker",
        docker_image="an/image",
        cache_dir=Path("/cache"),
        gpu="L4",
    )
    words = worker_arguments(with_kept_trace(more), study="s")
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given == {
        "--study": "s",
        "--model": "/m.onnx",
        "--input-data": "/in.npz",
        "--calibration-data": "/c.npz",
        "--trace": str(tmp_path / TRACE_FILE),
        "--server": "docker",
        "--docker-image": "an/image",
        "--cache-dir": "/cache",
    }


def test_a_worker_passes_on_all_that_belongs_to_no_single_process(tmp_path: Path) -> None:
    config = OptimizeConfig(
        output=tmp_path, model="a:b", limits=(LatencyLimit(limit_ms=50),), gpu="L4", workers="2"
    )
    words = worker_arguments(config, study="s", idle_s=90.0)
    assert words == ["--model", "a:b", "--study", "s", "--idle", "90s"]
