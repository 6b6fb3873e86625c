"""`kill -9` at a hundred moments of a search, spread over all that it writes: it goes on, and nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).parents[1] / "support"
KILLS = 100
TOLD = {0: "COMPLETE", 1: "PRUNED", 2: "COMPLETE", 3: "FAIL", 4: "COMPLETE", 5: "PRUNED", 6: "COMPLETE"}
"""As the states of killed_searches.py go round: what Optuna has to hold of each trial."""


@pytest.mark.timeout(900)  # a minute on an idle machine
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_search_killed_at_any_write_goes_on_with_nothing_lost_and_nothing_told_twice(tmp_path: Path) -> None:
    shim = tmp_path / "kill_at_write.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, SUPPORT / "kill_at_write.c", "-ldl"], check=True)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, SUPPORT / "killed_searches.py", shim, tmp_path, str(KILLS)],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": f"{root}:{SUPPORT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]

    assert len(reports) == KILLS
    assert all(report["killed"] for report in reports)
    assert {report["kept"] for report in reports} == {5, 6, 7}  # the kills met every part of the search
    for report in reports:
        assert report["resumed"] == 0, (report, done.stderr)
        assert report["nothing_lost"], report
        assert report["numbers"] == list(range(7)), report
        assert {number: state for number, state, _ in report["told"]} == TOLD, report
        assert len(report["told"]) == 7, report  # each once
        assert report["open"] == 0, report
        assert report["left_over"] == [], report
