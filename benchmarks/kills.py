"""Kill a real search at random moments, five times in a row, and report losses, duplicates and leftovers.

    python benchmarks/kills.py FOLDER [--kills 5] [--seed 0]

Each kill comes at a random moment after at least five trials are done; then `optimize --resume` continues. Prints
a line of JSON per kill, and one for the end; the exit code is 1 if anything was lost or left over.
"""

import argparse
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
OPTIMIZE = str(Path(sys.executable).with_name("optimize"))
LIMIT = ("--p90", "100ms", "--confidence", "0.8", "--max-send-lag", "1s", "--precisions", "fp32,fp16")
TRIALS_BEFORE = 5
WITHIN_S = 15.0
"""A kill comes within so many seconds after the fifth trial, or after the run was resumed: while it prepares,
searches or certifies."""

GONE_WITHIN_S = 60.0


class Search:
    """An `optimize` process and all processes that it has started."""

    def __init__(self, *arguments: str, log: Path) -> None:
        with log.open("a") as file:
            self.process = subprocess.Popen([OPTIMIZE, *arguments], stdout=file, stderr=file)
        self.family: dict[int, psutil.Process] = {}

    def look(self) -> bool:
        """Note its children; True while it runs."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family.setdefault(child.pid, child)
        except psutil.NoSuchProcess:
            return False
        return self.process.poll() is None

    def living(self) -> list[str]:
        """Return the names of its children that still live."""
        names = []
        for child in self.family.values():
            try:
                if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    names.append(child.name())
            except psutil.NoSuchProcess:
                continue
        return names


def lines_of(run: Path) -> list[str]:
    path = run / "trials.jsonl"
    return (
        [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def told_twice(run: Path) -> int:
    """Count the trials that Optuna has more than once as ended with a result."""
    with sqlite3.connect(f"file:{run / 'study.db'}?mode=ro", uri=True) as database:
        rows = database.execute(
            "select a.value_json, count(*) from trials t join trial_user_attributes a on a.trial_id = t.trial_id "
            "and a.key = 'trial' where t.state in ('COMPLETE', 'PRUNED') group by 1 having count(*) > 1"
        ).fetchall()
    database.close()
    return len(rows)


def left_over(run: Path) -> list[str]:
    """Return the remains of killed processes: drafts, scratch folders, shared memory of a server."""
    marks = ("draft", "tritune-", "server-")
    inside = [path.name for path in run.rglob("*") if any(mark in path.name for mark in marks)]
    mine = [path.name for path in Path(tempfile.gettempdir()).glob("tritune-*")]
    return sorted(inside + mine)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    model, run, log = options.folder / "cnn.onnx", options.folder / "run", options.folder / "terminal.txt"
    subprocess.run([sys.executable, ROOT / "examples" / "small_cnn.py", model], check=True)
    rng, well = random.Random(options.seed), True
    arguments = [
        "--model",
        str(model),
        *LIMIT,
        "--output",
        str(run),
        "--time-budget",
        "10m",
        "--price-per-hour",
        "1",
    ]
    for number in range(options.kills):
        search = Search(*arguments, log=log)
        while search.look() and len(lines_of(run)) < TRIALS_BEFORE:
            time.sleep(0.05)
        until = time.monotonic() + rng.uniform(0.0, WITHIN_S)
        while search.look() and time.monotonic() < until:
            time.sleep(0.02)
        killed = search.look()
        search.process.send_signal(signal.SIGKILL)
        search.process.wait()
        kept, killed_at = lines_of(run), time.monotonic()
        while search.living() and time.monotonic() < killed_at + GONE_WITHIN_S:
            time.sleep(0.05)
        report = {
            "kill": number,
            "while_running": killed,
            "trials_done": len(kept),
            "orphans": search.living(),
            "gone_after_s": round(time.monotonic() - killed_at, 2),
        }
        print(json.dumps(report), flush=True)
        well &= killed and not report["orphans"] and lines_of(run)[: len(kept)] == kept
        arguments = ["--resume", str(run)]
        (options.folder / f"kept-{number}.jsonl").write_text("".join(kept))
    search = Search(*arguments, log=log)
    interrupted, confirmed = False, run / "confirmations.jsonl"
    known = len(lines_of(run))
    while search.look():
        if not interrupted and (len(lines_of(run)) > known or confirmed.exists()):  # it has continued: enough
            search.process.send_signal(signal.SIGINT)
            interrupted = True
        time.sleep(0.1)
    lines = lines_of(run)
    numbers = [json.loads(line)["number"] for line in lines]
    for number in range(options.kills):
        kept = (options.folder / f"kept-{number}.jsonl").read_text().splitlines(keepends=True)
        well &= lines[: len(kept)] == kept
    end = {
        "exit_code": search.process.wait(),
        "trials": len(lines),
        "numbered_without_gaps": numbers == list(range(len(lines))),
        "told_twice": told_twice(run),
        "orphans": search.living(),
        "left_over": left_over(run),
        "recommendation": (run / "recommendation.json").exists(),
    }
    well &= end["numbered_without_gaps"] and not (end["told_twice"] or end["orphans"] or end["left_over"])
    print(json.dumps({**end, "well": well}), flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
