"""Run the suite again and again, every second time beside a neighbour: `python tests/prove/suite_runs.py COUNT`.

Each run leaves a line in `tables/suite-runs.jsonl`: the commit, whether there was a neighbour, seconds, counts,
what failed and what was repeated for which reason, and what the host took meanwhile. Runs that are there already
for this commit count, so that it goes on where it was ended. Fails if more than one run in twenty is red.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from disturbance import of_processors  # noqa: E402
from repeats import ARTEFACT  # noqa: E402

TABLE = Path(__file__).with_name("tables") / "suite-runs.jsonl"
REPEATS = ROOT / ARTEFACT

NEIGHBOUR_CORES = 0.5
BURSTS_S = (0.05, 2.0)
"""The neighbour computes for between so long at a time, and then waits as long as makes that half a core."""


def be_a_neighbour() -> None:
    """Take half a core at random times, until killed."""
    draw = random.Random()
    while True:
        burst_s = draw.uniform(*BURSTS_S)
        ends = time.monotonic() + burst_s
        while time.monotonic() < ends:
            pass
        time.sleep(burst_s * draw.uniform(0, 2) * (1 - NEIGHBOUR_CORES) / NEIGHBOUR_CORES)


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """A process of its own that does so, if wanted."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, __file__, "--be-a-neighbour"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def stolen_s() -> float:
    """What other guests of the host took since it was started, of our processors."""
    _, _, stolen = of_processors(sorted(os.sched_getaffinity(0)))
    return stolen / os.sysconf("SC_CLK_TCK")


def one_run(beside: bool) -> dict[str, object]:
    """What came of one run of the README's test command."""
    REPEATS.unlink(missing_ok=True)
    began, stolen, when = time.monotonic(), stolen_s(), datetime.now(UTC)
    with neighbour(beside):
        done = subprocess.run(["make", "test"], cwd=ROOT, capture_output=True, text=True, check=False)
    repeats = REPEATS.read_text().splitlines() if REPEATS.exists() else []
    return {
        "commit": commit(),
        "at": when.isoformat(timespec="seconds"),
        "neighbour": beside,
        "green": done.returncode == 0,
        "seconds": round(time.monotonic() - began),
        "stolen_s": round(stolen_s() - stolen, 1),
        "passed": sum(map(int, re.findall(r"(\d+) passed", done.stdout))),
        "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE),
        "repeated": [json.loads(line) for line in repeats],
    }


def commit() -> str:
    """The last one that changed more than tables."""
    command = ["git", "log", "-1", "--format=%h", "--", ".", ":!tests/prove/tables"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=20)
    parser.add_argument("--be-a-neighbour", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be_a_neighbour:
        be_a_neighbour()
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    runs = [run for run in map(json.loads, lines) if run["commit"] == commit()]
    while len(runs) < given.count:
        runs.append(one_run(beside=len(runs) % 2 == 1))
        with TABLE.open("a") as file:
            file.write(json.dumps(runs[-1]) + "\n")
        print(json.dumps(runs[-1]), flush=True)
    red = [run for run in runs if not run["green"]]
    print(f"{len(runs) - len(red)} of {len(runs)} runs were green")
    return 1 if len(red) > len(runs) / 20 else 0


if __name__ == "__main__":
    sys.exit(main())
