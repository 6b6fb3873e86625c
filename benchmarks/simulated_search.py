"""Compare the search's certified rates and choices on simulated servers with their known capacities.

    python benchmarks/simulated_search.py run RESULTS.jsonl [--servers 500] [--jobs 1] [--seconds S]
                                              [--without replay|simulator|vif]
    python benchmarks/simulated_search.py report RESULTS.jsonl...

`run` draws servers of five kinds in turn (tests/support/drawn_servers.py), searches and certifies on each in
virtual time, and compares with the true capacity of every configuration, from an independent queue
(tests/support/fast_queue.py). Each server is a line of RESULTS, and existing lines are not measured again.
`--seconds` starts no more servers after so long. Ablations: `replay` estimates the capacity from the share of late
requests instead of replaying the arrivals, `simulator` searches by probing alone, `vif` treats requests as
independent.

The thresholds were written here before the first run; a miss is reported, the threshold stays.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

from lib.ablation import ABLATIONS, ablated
from lib.raw_lines import Line, add_line, lines_of, verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

MAX_PROMISED_TOO_MUCH = 0.01  # share of certified rates above the true capacity
MAX_PROMISED_FAR_TOO_MUCH = 0.01  # share of certified rates above 1.02 times the true capacity
MIN_MEAN_OF_BEST = 0.97  # true capacity of the chosen configuration / that of the best, mean of a kind
MIN_OF_BEST = 0.93  # the same ratio for the worst of all servers
MIN_PROMISED = 0.99  # share of servers with a certified rate
MIN_MEAN_PROMISED = 0.95  # certified rate / true capacity of the chosen configuration, mean of a kind
PROTOTYPE_S = {"cnn": 44.0, "transformer": 42.0, "tight": 53.0, "cpu": 91.0}
"""Seconds of load of this method's prototype on servers of these kinds. Ours must be fewer in the mean of each
kind: until the best candidate is known, and, harder, until it is certified."""

COLUMNS = (
    "kind",
    "servers",
    "of the best, mean / worst",
    "promised of capacity, mean",
    "above capacity",
    "above 1.02 x",
    "s to candidate",
    "s to certificate",
    "s in all",
    "prototype, s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("results", type=Path)
    run.add_argument("--servers", type=int, default=500)
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--seconds", type=float, default=math.inf)
    run.add_argument("--without", choices=ABLATIONS, default="none")
    commands.add_parser("report").add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run_all(arguments)
    report(arguments.results if arguments.command == "report" else [arguments.results])


# Running


Asked = tuple[str, str, int]
"""The ablation, and the kind and number of a server."""


def run_all(arguments: argparse.Namespace) -> None:
    """Append the lines of all servers that are not in the file yet."""
    known = {(line.get("without"), line["kind"], line["number"]) for line in lines_of(arguments.results)}
    until_s = time.monotonic() + arguments.seconds
    waiting: set[Future[Line]] = set()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for kind, number in servers(arguments.servers):
            asked = (arguments.without, kind, number)
            if asked in known:
                continue
            if time.monotonic() > until_s:
                break
            waiting.add(pool.submit(measured, asked))
            if len(waiting) > arguments.jobs:
                waiting = keep_finished(arguments.results, waiting)
        while waiting:
            waiting = keep_finished(arguments.results, waiting)


def keep_finished(results: Path, waiting: set[Future[Line]]) -> set[Future[Line]]:
    done, others = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        print(json.dumps(add_line(results, future.result())), file=sys.stderr)
    return others


def servers(count: int) -> Iterator[tuple[str, int]]:
    """Return the kinds in turn, so that any beginning has them equally."""
    from drawn_servers import KINDS

    return ((KINDS[index % len(KINDS)], index // len(KINDS)) for index in range(count))


def measured(asked: Asked) -> Line:
    import optuna
    from drawn_servers import drawn_server
    from search_runs import search_run

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    without, kind, number = asked
    with tempfile.TemporaryDirectory() as folder, ablated(without) as search:
        found = search_run(drawn_server(kind, number), Path(folder), **search)
    return {"without": without, **rounded(asdict(found))}


def rounded(line: Line) -> Line:
    """Return the line with two decimals: rates and seconds have no more, and five hundred lines stay small."""

    def short(value: object) -> object:
        if isinstance(value, dict):
            return {name: short(one) for name, one in value.items()}
        return round(value, 2) if isinstance(value, float) else value

    return {name: short(value) for name, value in line.items()}


# Reporting


def report(paths: list[Path]) -> None:
    lines = [line for path in paths for line in lines_of(path)]
    for without in ABLATIONS:
        mine = [line for line in lines if line.get("without") == without]
        if mine:
            print(f"\n### {'The search' if without == 'none' else f'Without {without}'}, {len(mine)} servers\n")
            print_table(mine)
            if without == "none":
                print_stages([line for line in mine if "stages" in line])
                print_thresholds(mine)


def print_stages(lines: list[Line]) -> None:
    """Print the mean seconds of load of each stage, and how many of them changed nothing."""
    if not lines:
        return
    print("\nSeconds of load by stage (of these, without effect on the answer)\n")
    print("| kind | " + " | ".join(lines[0]["stages"]) + " | all |")
    print("|---" * (2 + len(lines[0]["stages"])) + "|")
    for kind in (*dict.fromkeys(line["kind"] for line in lines), "all"):
        mine = [line["stages"] for line in lines if kind in (line["kind"], "all")]
        means = [(mean(one[name]["seconds"] for one in mine), mean(one[name]["idle_s"] for one in mine))
                 for name in mine[0]]  # fmt: skip
        means.append((sum(seconds for seconds, _ in means), sum(idle_s for _, idle_s in means)))
        cells = (f"{seconds:.1f} ({idle_s:.1f})" for seconds, idle_s in means)
        print(f"| {kind} | " + " | ".join(cells) + " |")


def print_table(lines: list[Line]) -> None:
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for kind in (*dict.fromkeys(line["kind"] for line in lines), "all"):
        mine = [line for line in lines if kind in (line["kind"], "all")]
        promised, of_best = shares_promised(mine), shares_of_best(mine)
        cells = (
            kind,
            len(mine),
            f"{mean(of_best):.1%} / {min(of_best):.1%}",
            f"{mean(promised):.1%}" if promised else "-",
            f"{sum(share > 1 for share in promised)} of {len(promised)}",
            sum(share > 1.02 for share in promised),
            *(f"{mean(line[name] for line in mine):.0f} (median {median(line[name] for line in mine):.0f})"
              for name in ("search_s", "winner_s", "total_s")),
            f"{PROTOTYPE_S[kind]:.0f}" if kind in PROTOTYPE_S else "-",
        )  # fmt: skip
        print("| " + " | ".join(str(cell) for cell in cells) + " |")


def shares_of_best(lines: list[Line]) -> list[float]:
    """Return the shares of the best capacity; 0 if nothing was chosen."""
    return [(line["chosen"] or 0.0) / line["best"] for line in lines]


def shares_promised(lines: list[Line]) -> list[float]:
    return [line["promised"] / line["chosen"] for line in lines if line["promised"]]


def print_thresholds(lines: list[Line]) -> None:
    print()
    promised, of_best = shares_promised(lines), shares_of_best(lines)
    too_much = [share for share in promised if share > 1]
    verdict("promises above capacity", len(too_much) / len(promised), "<=", MAX_PROMISED_TOO_MUCH)
    far = sum(share > 1.02 for share in promised) / len(promised)
    verdict("promises above 1.02 x capacity", far, "<=", MAX_PROMISED_FAR_TOO_MUCH)
    verdict("servers with a promise", len(promised) / len(lines), ">=", MIN_PROMISED)
    verdict("of the best, worst", min(of_best), ">=", MIN_OF_BEST)
    for kind in dict.fromkeys(line["kind"] for line in lines):
        mine = [line for line in lines if line["kind"] == kind]
        verdict(f"{kind}: promised of capacity, mean", mean(shares_promised(mine)), ">=", MIN_MEAN_PROMISED)
        verdict(f"{kind}: of the best, mean", mean(shares_of_best(mine)), ">=", MIN_MEAN_OF_BEST)
        if kind in PROTOTYPE_S:
            verdict(f"{kind}: s to candidate", mean(line["search_s"] for line in mine), "<=", PROTOTYPE_S[kind])
            verdict(f"{kind}: s to certificate", mean(line["winner_s"] for line in mine), "<=", PROTOTYPE_S[kind])


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
