"""Read raw results of benchmarks/exhaustive.py as one row per search, with its shares, and one per audit."""

from __future__ import annotations

import math
from pathlib import Path

from lib.audits import answer_of
from lib.claims.rows import Row
from lib.exhaustive.report import Results
from lib.raw_lines import lines_of
from search.space import key_of


def exhaustive_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of a file: `model`, `phase`, and per search `of_best` and `of_capacity`.

    Both are None if the capacity of what was chosen is not known, and `of_best` also if that of the best is not:
    the long bisection failed.
    """
    found = Results(path.stem, lines_of(path))
    known, best = found.capacities, found.best
    rows: list[Row] = []
    for line in found.of("search"):
        capacity = known.get(key_of(line["knobs"]))
        of_best = None if capacity is None or math.isnan(best) else capacity / best
        of_capacity = None if capacity is None else line["promised_per_s"] * line["pace_s"] / capacity
        rows.append({"model": path.stem, **line, "of_best": of_best, "of_capacity": of_capacity})
    audits = (
        {"model": path.stem, **line, "answer": answer_of(line, line["problems"])} for line in found.of("audit")
    )
    return (*rows, *audits)
