"""What is read of Model Analyzer's results, how its processes end, and the table of the comparison."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.model_analyzer.profile import choice_of, measurements_in, profiled
from lib.model_analyzer.table import table

LIMIT_MS = 50.0


def checkpoint(folder: Path, *measured: tuple[int, int, float, float]) -> Path:
    """Write a checkpoint as Model Analyzer 1.58 does, of (batch, instances, throughput, p99 in ms)."""
    variants = {}
    for number, (batch, instances, per_s, p99_ms) in enumerate(measured):
        config = {"maxBatchSize": batch, "instanceGroup": [{"count": instances, "kind": "KIND_CPU"}]}
        data = [["perf_latency_p99", {"_value": p99_ms}], ["perf_throughput", {"_value": per_s}]]
        parameters = {"batch-size": 1, "concurrency-range": 2 * batch * instances}
        model = {"_model_specific_pa_params": parameters, "_non_gpu_data": data}
        variants[f"m_config_{number}"] = [
            {"_model_run_configs": [{"_model_config_variant": {"model_config": config}}]},
            {"-m m": {"_model_config_measurements": [model]}},
        ]
    (folder / "0.ckpt").write_text(json.dumps({"ResultManager.results": {"_results": {"m": variants}}}))
    return folder


def test_its_recommendation_is_the_highest_throughput_that_met_the_limit(tmp_path: Path) -> None:
    checkpoint(tmp_path, (16, 4, 5000.5, 80.0), (8, 2, 3697.4, 44.1), (4, 2, 3000.1, 20.2))
    assert choice_of(measurements_in(tmp_path), LIMIT_MS) == {
        "knobs": {"max_batch_size": 8, "instance_count": 2},
        "promised_per_s": 3697.4,
        "promised_p99_ms": 44.1,
        "concurrency": 32,
    }


def test_there_may_be_no_recommendation(tmp_path: Path) -> None:
    assert choice_of(measurements_in(tmp_path), LIMIT_MS)["knobs"] is None
    assert choice_of(measurements_in(checkpoint(tmp_path, (16, 4, 5000.5, 80.0))), LIMIT_MS)["knobs"] is None


def run(script: str, folder: Path, most_s: float) -> dict[str, Any]:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    model = folder / "repository" / "m" / "config.pbtxt"
    model.parent.mkdir(parents=True)
    model.touch()
    return profiled(
        program,
        program,
        folder / "repository",
        folder / "out",
        mode="quick",
        limit_ms=LIMIT_MS,
        most_s=most_s,
        gpu=False,
    )


def test_a_crash_is_reported_with_its_last_words(tmp_path: Path) -> None:
    found = run("echo starting; echo 'no server'; exit 7", tmp_path, 60.0)
    assert (found["ended"], found["knobs"], found["measurements"]) == ("exit code 7: no server", None, 0)


def test_one_that_hangs_is_interrupted_and_leaves_no_process(tmp_path: Path) -> None:
    script = f"setsid sleep 300 & echo $! > {tmp_path}/pid\nwait"
    found = run(script, tmp_path, 2.0)
    assert found["ended"].startswith("interrupted after 2 s")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_the_table_has_a_line_per_recommendation_with_what_is_known_of_it() -> None:
    tuned = {
        "phase": "tuned", "by": "quick", "wall_s": 255.4, "ended": "finished", "others_cores": 0.1,
        "knobs": {"max_batch_size": 8, "instance_count": 2}, "promised_per_s": 3697.4,
    }  # fmt: skip
    failed = tuned | {"by": "brute", "ended": "exit code 1: no", "knobs": None, "promised_per_s": None}
    audits = [
        {"phase": "audit", "by": "quick", "answer": answer, "others_cores": 0.3}
        for answer in ("met", "violated", "met")
    ]
    capacity = {"phase": "capacity", "by": "quick", "low_per_s": 4058.0, "high_per_s": 4383.0, "others_cores": 0.2}
    _, _, *rows = table([tuned, failed, *audits, capacity]).splitlines()
    assert rows == [
        "| quick | 255 | finished | 8 x 2 | 3,697 | 2, 1, 0 | 4,058 to 4,383 | 0.1 to 0.3 |",
        "| brute | 255 | exit code 1: no | - | - | - | - | 0.1 to 0.1 |",
    ]
