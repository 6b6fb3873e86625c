"""A disk that fills up under a search on a real Triton: two lines, exit code 3; it goes on when there is room."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from machine import fill, mounted_disk
from waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))
EASY = ("--p90", "100ms", "--confidence", "0.8", "--max-send-lag", "1s", "--despite-noise")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "16m") as place:
        yield place


def trials(run: Path) -> list[int]:
    path = run / "trials.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["number"] for line in lines if line.endswith("\n")]


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    wait_until(lambda: condition() or process.poll() is not None, most_s=400)
    assert process.poll() is None, process.communicate()


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([OPTIMIZE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_full_disk_is_two_lines_and_the_run_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    model, run = tmp_path / "tiny.onnx", small_disk / "run"
    subprocess.run([sys.executable, str(ROOT / "examples" / "small_cnn.py"), str(model)], check=True, timeout=240)
    search = started("--model", str(model), *EASY, "--output", str(run))
    wait_for(search, lambda: len(trials(run)) >= 1)
    family = psutil.Process(search.pid).children(recursive=True)
    fill(small_disk)
    out, err = search.communicate(timeout=400)
    assert search.returncode == 3, err
    assert out == ""
    what, fix = err.splitlines()[-2:]
    assert what.startswith("error: ")
    assert "No space left on device" in what or "full" in what
    assert "free some space" in fix.lower() or "resume" in fix  # whichever write fails
    assert "Traceback" not in err
    assert "Logging error" not in err
    _, alive = psutil.wait_procs(family, timeout=240)
    assert alive == []
    kept = trials(run)
    assert kept == list(range(len(kept)))
    assert kept

    os.truncate(small_disk / "filler", 0)
    again = started("--resume", str(run))
    wait_for(again, lambda: (run / "optimize.log").read_text().count("PhaseStarted(name='search'") >= 2)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=400)
    assert again.returncode == 130
    assert trials(run)[: len(kept)] == kept
