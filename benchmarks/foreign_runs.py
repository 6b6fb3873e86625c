"""Run `optimize --time-budget 100s` on each foreign model: one line of a table per model.

    python benchmarks/foreign_runs.py [--output TABLE.csv] [--keep FOLDER] [NAME ...]

The models are as other tools export them (`tests/support/foreign_models.py`). Takes 20 minutes, on a machine with
nothing else to do. The exit code is 1 if a model that can be served ends without a certified rate, or if one that
cannot is not refused as bad input. A line is written as soon as it is known.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from foreign_models import FOREIGN, SAMPLES, SHAPES  # noqa: E402 - found by the line above

LIMIT = ("--p99", "100ms", "--time-budget", "100s", "--price-per-hour", "1")
FIELDS = ("model", "exit_code", "status", "certified_per_s", "configuration", "seconds", "reason")


def row_of(name: str, folder: Path) -> dict[str, object]:
    """Return one line of the table: a run of `optimize` in a process of its own."""
    model = FOREIGN[name](folder / f"{name}.onnx")
    run, data = folder / "run", folder / "data.json"
    data.write_text(SAMPLES.get(name, ""))
    sizes = [f"{tensor}:{','.join(map(str, shape))}" for tensor, shape in SHAPES.get(name, {}).items()]
    shapes = [word for size in sizes for word in ("--shape", size)]
    command = [str(Path(sys.executable).with_name("optimize")), "--model", str(model), *LIMIT, *shapes]
    command += ["--input-data", str(data)] if name in SAMPLES else []
    began = time.monotonic()
    done = subprocess.run([*command, "--output", str(run)], capture_output=True, text=True, check=False)
    row: dict[str, object] = {
        "model": name,
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - began),
    }
    found = run / "recommendation.json"
    if found.is_file():
        said = json.loads(found.read_text())
        winner = said.get("winner") or {}
        config = winner.get("config") or {}
        row["status"] = said["status"]
        row["configuration"] = (
            "{engine}, batch {max_batch_size}, instances {instance_count}".format(**config) if config else ""
        )
        row["certified_per_s"] = (winner.get("certificate") or {}).get("rate_per_s", "")
        row["reason"] = " ".join([said["status_reason"], said["advice"]]).replace(str(folder), "FOLDER").strip()
    return row


def problem_of(row: dict[str, object]) -> str | None:
    """Return what is wrong with a line; None if the run ended as it should."""
    name, code = str(row["model"]), row["exit_code"]
    return None if row.get("certified_per_s") else f"{name}: exit code {code}, {row.get('reason')}"


def main(names: list[str], output: Path | None, keep: Path | None) -> int:
    with (output or Path(os.devnull)).open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        problems: list[str] = []
        for name in names or FOREIGN:
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch).resolve() if keep is None else keep.resolve() / name
                folder.mkdir(parents=True, exist_ok=True)
                row = row_of(name, folder)
            print(json.dumps(row), flush=True)
            writer.writerow(row)
            file.flush()
            problems += filter(None, [problem_of(row)])
    print("\n".join(problems) or "Each model that can be served has a certified rate; the others are refused.")
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these models alone")
    parser.add_argument("--output", type=Path, help="the table to write")
    parser.add_argument("--keep", type=Path, help="keep models and run directories here")
    arguments = parser.parse_args()
    sys.exit(main(arguments.names, arguments.output, arguments.keep))
