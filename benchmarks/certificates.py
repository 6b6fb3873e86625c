"""Certify rates on a real server and audit each of them several times, in lanes with processors of their own.

    python benchmarks/certificates.py --out DIR [--minutes 9] [--lanes 3] [--cores 2] [--model cnn.onnx]

Each subject (`--model`: a real model; `--on`: one that sleeps, see exhaustive.py) has its own lanes. In each lane
`exhaustive.py search` certifies `--certificates` rates, each on its own server; then `exhaustive.py audit` sends
the certified rates to new servers with new arrivals until the time is up. An audit with a late client, or with CPU
contention on its lane's processors, decides nothing. `--report` prints the table of an earlier run.

Needs lanes x cores x subjects processors, and nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from lib.audits import summary
from lib.raw_lines import lines_of

from loadgen.records.record import Answer

EXHAUSTIVE = Path(__file__).with_name("exhaustive.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--limit-ms", type=float, default=50.0, help="p99, of --model")
    parser.add_argument("--on", default="tight")
    parser.add_argument("--lanes", type=int, default=3, help="of each subject")
    parser.add_argument("--cores", type=int, default=2, help="of each lane")
    parser.add_argument("--certificates", type=int, default=2, help="of each lane")
    parser.add_argument("--budget-s", type=float, default=90.0, help="of each search")
    parser.add_argument("--audits", type=int, default=12, help="of each certificate")
    parser.add_argument("--audit-s", type=float, default=10.0)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if not arguments.report:
        measure(arguments)
    return report(arguments.out)


def measure(arguments: argparse.Namespace) -> None:
    """Run every lane of every subject until the time is up."""
    subjects = [["--on", arguments.on]]
    if arguments.model is not None:
        subjects.append(["--model", str(arguments.model), "--limit-ms", f"{arguments.limit_ms:g}"])
    processors = iter(sorted(os.sched_getaffinity(0)))
    lanes = [[sorted(islice(processors, arguments.cores)) for _ in range(arguments.lanes)] for _ in subjects]
    if any(len(lane) < arguments.cores for each in lanes for lane in each):
        sys.exit(f"{len(subjects)} x {arguments.lanes} lanes of {arguments.cores} cores are more than there are.")
    until_s = time.monotonic() + 60 * arguments.minutes

    def run(subject: list[str], phase: str, place: tuple[int, list[int]]) -> None:
        number, lane = place
        words = [
            "taskset", "-c", ",".join(map(str, lane)), sys.executable, str(EXHAUSTIVE), phase, *subject,
            "--out", str(arguments.out), "--share", f"{number}/{arguments.lanes}",
            "--seeds", str(arguments.lanes * arguments.certificates), "--budget-s", f"{arguments.budget_s:g}",
            "--audits", str(arguments.audits), "--audit-s", f"{arguments.audit_s:g}",
            "--minutes", f"{(until_s - time.monotonic()) / 60:.3f}",
        ]  # fmt: skip
        subprocess.run(words, check=False)

    def follow(subject: list[str], of_subject: list[list[int]]) -> None:
        for phase in ("search", "audit"):
            with ThreadPoolExecutor(len(of_subject)) as pool:
                list(pool.map(partial(run, subject, phase), enumerate(of_subject, start=1)))

    with ThreadPoolExecutor(len(subjects)) as pool:
        list(pool.map(follow, subjects, lanes))


def report(out: Path) -> int:
    """Print a line for every certificate and a summary per subject; 1 if an audit violated its limit."""
    print("| model | seed | certified/s | audits | p99 ms of those that met it |\n|---|---|---|---|---|")
    total: dict[str, Counter[Answer]] = {}
    for path in sorted(out.glob("*.jsonl")):
        lines = lines_of(path)
        for line in (line for line in lines if line["phase"] == "search"):
            audits = [one for one in lines if one["phase"] == "audit" and one["seed"] == line["seed"]]
            answers = Counter(one["answer"] for one in audits)
            total.setdefault(path.stem, Counter()).update(answers)
            p99_ms = sorted(one["p99_ms"] for one in audits if one["answer"] == "met")
            rate = "none" if line["promised_per_s"] is None else f"{line['promised_per_s']:,.0f}"
            spread = f"{p99_ms[0]:.1f} to {p99_ms[-1]:.1f}" if p99_ms else "-"
            print(f"| {path.stem} | {line['seed']} | {rate} | {summary(answers)} | {spread} |")
    for name, answers in total.items():
        print(f"\n{name}: {summary(answers)}")
    return int(any(answers["violated"] for answers in total.values()))


if __name__ == "__main__":
    sys.exit(main())
