"""Run whole searches in virtual time on machines with slow phases, and compare them with the long-run capacities.

    python benchmarks/unsteady_machines.py [--searches 40] [--budget-s 120] [--out FILE]
                                           [--phases 12:2.5:0.64,30:2:0.5,recorded,busy,none,drawn]

A machine is EVERY:LASTS:SLOW (a slow phase begins once per EVERY s and lasts LASTS s, at SLOW of the speed),
`recorded` and `busy` (speeds of real two-core machines), `none` (steady), or `drawn` (phases of its own for each).
Each search is a line of FILE. Searches that it has are not run again,
so `--searches 0` prints the table alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from statistics import median

from lib.raw_lines import Line, add_line, lines_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

PHASES = "12:2.5:0.64,30:2:0.5,recorded,busy,none,drawn"
COLUMNS = (
    "slow phases",
    "searches",
    "certified twice",
    "without / with the sentence",
    "above capacity, without / with it",
    "highest / lowest certified",
    "median certified / capacity, without / with it",
    "worst choice / best",
    "s of load and loading, median",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=40, help="on each machine")
    parser.add_argument("--budget-s", type=float, default=120.0)
    parser.add_argument("--phases", default=PHASES)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--out", type=Path, help="append the raw results to this file")
    arguments = parser.parse_args()
    lines = [] if arguments.out is None else lines_of(arguments.out)
    known = {(line["machine"], line["number"], line["budget_s"]) for line in lines}
    asked = itertools.product(arguments.phases.split(","), range(arguments.searches), [arguments.budget_s])
    with ProcessPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(measured, *search) for search in asked if search not in known]
        for finished, future in enumerate(as_completed(running), start=1):
            line = future.result()
            lines.append(line)
            if arguments.out is not None:
                add_line(arguments.out, line)
            if finished % 20 == 0 or finished == len(running):
                print(f"{finished} of {len(running)} searches", file=sys.stderr)
    print_table(lines)


def measured(machine: str, number: int, budget_s: float) -> Line:
    """Return the line of a search; one that raised has the field `failed` in place of an answer."""
    import optuna
    from unsteady_searches import unsteady_search

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        line = asdict(unsteady_search(machine, number, budget_s=budget_s))
    except Exception as error:
        line = {"machine": machine, "number": number, "failed": f"{type(error).__name__}: {error}"}
    return {"budget_s": budget_s, **line}


def print_table(lines: Iterable[Line]) -> None:
    """Print a row per budget and machine, and below it each failed search."""

    def group_of(line: Line) -> tuple[float, tuple[int, str]]:
        return line["budget_s"], place(line["machine"])

    ordered = sorted(lines, key=lambda line: (*group_of(line), line["number"]))
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for (budget_s, (_, name)), group in itertools.groupby(ordered, group_of):
        label = name if budget_s == 120 else f"{name}, budget {budget_s:g} s"
        print("| " + " | ".join([label, *cells(name, list(group))]) + " |")
    for line in ordered:
        if "failed" in line:
            print(f"\n{line['machine']}, search {line['number']}: {line['failed']}")


def place(machine: str) -> tuple[int, str]:
    """Return the place of a machine in the table: as in PHASES, others behind."""
    order = PHASES.split(",")
    return (order.index(machine) if machine in order else len(order), machine)


def cells(name: str, lines: list[Line]) -> list[str]:
    """Return the cells of a machine; machines of `drawn` differ, so that their rates are not compared."""
    from unsteady_searches import UnsteadySearch

    fields = UnsteadySearch.__dataclass_fields__
    ended = [UnsteadySearch(**{key: line[key] for key in fields}) for line in lines if "failed" not in line]
    certified = [one for one in ended if one.certified is not None]
    groups = [[one for one in certified if (one.unseen_every_s is not None) == sentence]
              for sentence in (False, True)]  # fmt: skip

    def both(figure: Callable[[list[UnsteadySearch]], str]) -> str:
        return " / ".join(figure(group) if group else "-" for group in groups)

    rates = sorted(one.certified or 0.0 for one in certified)
    return [
        str(len(lines)),
        str(sum(one.twice for one in certified)),
        " / ".join(str(len(group)) for group in groups),
        both(lambda group: str(sum(one.above for one in group))),
        "-" if name == "drawn" or not rates else f"{rates[-1] / rates[0]:.2f}",
        both(lambda group: f"{median(one.of_capacity or 0.0 for one in group):.2f}"),
        f"{min(one.of_best or 0.0 for one in certified):.2f}" if certified else "-",
        f"{median(one.load_s + one.loading_s for one in ended):.0f}" if ended else "-",
    ]


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
