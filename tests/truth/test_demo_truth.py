"""The demo of the README: its certified rate next to a closed loop's, and its bundle by its own checks."""

import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from served_recipes import served_by_its_recipes

from loadgen.records.record import LoadTestRecord, TimelineRecord
from search.records.run_files import read_recommendation

pytestmark = [pytest.mark.system, pytest.mark.measure, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
COMMANDS = Path(sys.executable).parent

MIN_SHARE = 0.6
"""Least share of the closed loop's rate: an open loop within a p99 leaves some of the server idle."""

CLOSED_LOOP_S, SLOWEST_S = 30, 2.0
"""A p99 is met at the rate of the machine's slowest seconds: on some, executions take up to 1.5
times as long from one second to the next, with nothing stolen."""

USERS = 16
"""Callers of the closed loop: two batches of 8 are always under way, far below the latency limit."""


def test_the_demo_certifies_most_of_a_closed_loop_and_its_bundle_passes_its_checks(tmp_path: Path) -> None:
    model, run = tmp_path / "ranking_mlp.onnx", tmp_path / "run"
    subprocess.run([sys.executable, ROOT / "examples" / "ranking_mlp.py", model], check=True)
    options = f"--model {model} --p99 50ms --time-budget 2m --output {run}".split()
    done = subprocess.run([COMMANDS / "optimize", *options], check=False)
    assert done.returncode == 0
    certificate = read_recommendation(run).winner.certificate
    assert certificate is not None
    assert certificate.rate_per_s >= MIN_SHARE * closed_loop_per_s(run)
    with served_by_its_recipes(run / "bundle", tmp_path) as served:
        for code, said in (served.readme_check(), served.smoke()):
            assert code == 0, said


def closed_loop_per_s(run: Path) -> float:
    """Return the lowest rate of `USERS` callers that wait for each response, on the run's configuration."""
    with subprocess.Popen([COMMANDS / "optimize", "serve", run], stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            served = re.match(r"(\S+) is served at (http://\S+)", serving.stdout.readline())
            assert served is not None, "optimize serve did not come up"
            load = [COMMANDS / "loadtest", served[2], "--model", served[1], "--concurrency", str(USERS)]
            done = subprocess.run(
                [*load, "--duration", f"{CLOSED_LOOP_S}s", "--json"], stdout=subprocess.PIPE, check=True
            )
        finally:
            serving.terminate()
    timeline = LoadTestRecord.model_validate_json(done.stdout).timeline
    assert timeline is not None
    return slowest_per_s(timeline)


def slowest_per_s(timeline: TimelineRecord) -> float:
    """Return the rate of the slowest seconds of a run."""
    count = max(1, round(SLOWEST_S / timeline.bin_s))
    windows = range(len(timeline.due_per_s) - count + 1)
    return min(statistics.fmean(timeline.due_per_s[first : first + count]) for first in windows)
