"""Compare MLPerf LoadGen's verdict with ours on queues of known capacity, and find the rates it can be sent at.

    python benchmarks/second_judge.py rule RESULTS.jsonl [--runs 50]
    python benchmarks/second_judge.py rates RESULTS.jsonl [--seconds 6] [RATE ...]

`rule` applies LoadGen's rule, written anew from its sources, and ours to the same runs of simulated queues
(tests/support/simulated_queues.py), at 0.9, 1 and 1.1 times the rate at which one request in a hundred takes
longer than the limit. It takes three minutes.

`rates` runs `loadtest --judge mlperf` at each rate, with 1 kB per request, against a server of a few lines that
answers after 2 ms (tests/support/fake_triton.py), both on this machine.

Result not verified by MLCommons Association.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.raw_lines import Line, add_line

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

LOADS = (0.9, 1.0, 1.1)
RATES_PER_S = (2000, 4000, 6000, 8000, 10_000, 12_000, 15_000)
LIMIT_MS = 50


def rule_lines(runs: int) -> Iterator[Line]:
    """Yield the verdicts of each queue at each load."""
    from loadgen_rule import verdicts
    from simulated_queues import QUEUES

    for queue in QUEUES:
        for load in LOADS:
            both = verdicts(queue, load, runs=runs)
            theirs, ours = ([pair[place] for pair in both.elements()] for place in (0, 1))
            yield {
                "queue": queue.name,
                "load": load,
                "runs": runs,
                "valid": theirs.count("met"),
                "invalid_slow": theirs.count("violated"),
                "invalid_few": theirs.count("inconclusive"),
                "met": ours.count("met"),
                "violated": ours.count("violated"),
                "inconclusive": ours.count("inconclusive"),
                "opposite": both["met", "violated"] + both["violated", "met"],
            }


def rate_lines(rates_per_s: list[int], seconds: float) -> Iterator[Line]:
    """Yield what LoadGen and we have measured at each rate."""
    from fake_triton import fake_triton

    for rate in rates_per_s:
        with fake_triton("--delay-ms", "2") as server, tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-c",
                "from loadgen.cli import main; main()",
                server.url,
                "--model",
                "delay",
            ]
            command += [
                "--judge",
                "mlperf",
                "--rate",
                str(rate),
                "--p99",
                f"{LIMIT_MS}ms",
                "--duration",
                f"{seconds}s",
            ]
            done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, cwd=folder)
        if not done.stdout:
            raise SystemExit(done.stderr)
        record: dict[str, Any] = json.loads(done.stdout)
        judge, seen = record["judge"], record["measurement"]
        yield {
            "rate_per_s": rate,
            "seconds": seconds,
            "verdict": judge["verdict"],
            "loadgen_p99_ms": round(judge["latency_ms"], 3),
            "p99_ms": round(seen["latency_p99_ms"], 3),
            "send_lag_p99_ms": round(seen["send_lag_p99_ms"], 3),
            "client_cpu_share": round(seen["client_cpu_share"], 3),
            "trustworthy": not seen["problems"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    rule = commands.add_parser("rule", help="the two rules on simulated queues")
    rule.add_argument("results", type=Path)
    rule.add_argument("--runs", type=int, default=50)
    rates = commands.add_parser("rates", help="the rates that one process of LoadGen can send")
    rates.add_argument("results", type=Path)
    rates.add_argument("rates_per_s", type=int, nargs="*", metavar="RATE", default=RATES_PER_S)
    rates.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    if options.command == "rule":
        lines = rule_lines(options.runs)
    else:
        lines = rate_lines(list(options.rates_per_s), options.seconds)
    for line in lines:
        print(json.dumps(line), flush=True)
        add_line(options.results, line)


if __name__ == "__main__":
    main()
