"""What is read of Model Analyzer's results, how its processes end, and the table of the comparison."""

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.model_analyzer.profile import choice_of, profiled, rows_of
from lib.model_analyzer.table import table

HEAD = (
    "Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,Satisfies Constraints,"
    "Throughput (infer/sec),p99 Latency (ms)"
)
ROWS = (
    "small_cnn,1,64,small_cnn_config_3,4:CPU,16,No,5000.5,80.0",
    "small_cnn,1,32,small_cnn_config_1,2:CPU,8,Yes,3697.4,44.1",
    "small_cnn,1,16,small_cnn_config_default,2:CPU,4,Yes,3000.1,20.2",
)


def test_its_recommendation_is_the_highest_throughput_that_met_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("\n".join([HEAD, *ROWS]) + "\n")
    assert choice_of(rows_of(file)) == {
        "knobs": {"max_batch_size": 8, "instance_count": 2},
        "promised_per_s": 3697.4,
        "promised_p99_ms": 44.1,
        "concurrency": 32,
    }


@pytest.mark.parametrize("rows", [(), ROWS[:1]], ids=["nothing measured", "nothing met the limit"])
def test_there_may_be_no_recommendation(rows: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    if rows:
        file.write_text("\n".join([HEAD, *rows]) + "\n")
    assert choice_of(rows_of(file))["knobs"] is None


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
        limit_ms=50.0,
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
