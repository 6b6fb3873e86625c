"""Whole searches in virtual time on drawn servers of one kind: one line each, in a table that is committed.

    python tests/prove/search_grid.py KIND COUNT

Fails if a search promises nothing, a promise is far above what the configuration can keep, or more promises are
above it than chance allows.
"""

import csv
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from drawn_servers import drawn_server  # noqa: E402
from search_runs import SearchRun, search_run  # noqa: E402

FIRST = 1000
"""Servers that no test and no benchmark has drawn, so that nothing was made to fit them."""

FAR_ABOVE_CAPACITY = 1.03
ABOVE_CAPACITY_SHARE = 0.05
"""A promise holds at 95 % confidence, so one in twenty may be above what can be kept."""

CHANCE = 0.01
FIELDS = ("number", "best_per_s", "chosen_per_s", "promised_per_s", "load_s", "trials")


def row_of(run: SearchRun) -> dict[str, object]:
    rates = (run.best, run.chosen, run.promised)
    best, chosen, promised = ("" if rate is None else f"{rate:.1f}" for rate in rates)
    values = (run.number, best, chosen, promised, round(run.total_s), run.trials)
    return dict(zip(FIELDS, values, strict=True))


def most_above(count: int) -> int:
    """How many of so many promises may be above the capacity: more are drawn by chance once in a hundred."""
    share, most, tail = ABOVE_CAPACITY_SHARE, -1, 1.0
    while tail > CHANCE:
        most += 1
        tail -= math.comb(count, most) * share**most * (1 - share) ** (count - most)
    return most


def problems_of(runs: list[SearchRun]) -> list[str]:
    """What contradicts the promise, in words."""
    told = [f"server {run.number}: nothing is promised" for run in runs if run.promised is None]
    kept = [run for run in runs if run.promised is not None and run.chosen is not None]
    far = [run for run in kept if run.promised > FAR_ABOVE_CAPACITY * run.chosen]  # type: ignore[operator]
    told += [f"server {run.number}: {run.promised:.1f}/s promised of {run.chosen:.1f}" for run in far]
    above = [run.number for run in kept if run.promised > run.chosen]  # type: ignore[operator]
    if len(above) > most_above(len(runs)):
        told.append(f"promises above the capacity: servers {above}")
    return told


def main(kind: str, count: int) -> int:
    runs = []
    for number in range(FIRST, FIRST + count):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(search_run(drawn_server(kind, number), Path(folder)))
    problems = problems_of(runs)
    if problems:
        print("\n".join(problems))
        return 1
    table = Path(__file__).with_name("tables") / f"searches-{kind}.csv"
    table.parent.mkdir(exist_ok=True)
    draft = table.with_suffix(".draft")
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(row_of, runs))
    draft.replace(table)
    above = sum(run.promised > run.chosen for run in runs)  # type: ignore[operator]
    share = sum(run.chosen / run.best for run in runs) / count  # type: ignore[misc, operator]
    print(f"{count} searches, {above} promises above the capacity, chosen {share:.1%} of the best in the mean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
