"""Arrivals as people write them: `gamma:cv=2` on a command line, a trace in a file."""

from __future__ import annotations

import math
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.spec.plan import Arrivals

EXAMPLES = "poisson, constant, gamma:cv=2, ramp:from=0.5,to=2, steps:0.5,1,1.5 or spike:level=3,start=0.4,end=0.5"


def arrivals_from_text(text: str) -> Arrivals:
    """The arrivals that `--arrivals` names. Levels are multiples of the rate, start and end parts of the duration.

    Raises BadInput for words that are not known, PlanError for values that cannot be.
    """
    kind, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",")] if rest else []
    match kind.strip():
        case "poisson" | "constant" as plain if not parts:
            return Arrivals(kind=plain)
        case "gamma":
            return Arrivals(kind="gamma", cv=_named(text, parts, {"cv": None})["cv"])
        case "ramp":
            ends = _named(text, parts, {"from": None, "to": None})
            return Arrivals(kind="ramp", levels=(ends["from"], ends["to"]))
        case "steps" if parts:
            return Arrivals(kind="steps", levels=tuple(_number(text, part) for part in parts))
        case "spike":
            spike = _named(text, parts, {"level": None, "start": 0.4, "end": 0.5})
            return Arrivals(kind="spike", levels=(spike["level"],), start=spike["start"], end=spike["end"])
    raise _not_known(text)


def arrivals_from_file(path: Path) -> Arrivals:
    """Return a recorded trace: one time in seconds per line, or `time,rate` lines. `#` begins a comment.

    A first line of words is taken for a heading. Raises BadInput naming the line, PlanError for decreasing times.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(
            f"--trace {path} cannot be read: {reason}.", "Give a text file, one time per line."
        ) from error
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.partition("#")[0].split(",")]
        if cells == [""]:
            continue
        row = tuple(_number_or_nan(cell) for cell in cells)
        if number == 1 and all(math.isnan(value) for value in row):
            continue
        if any(math.isnan(value) for value in row) or len(row) > 2 or (rows and len(row) != len(rows[0])):
            raise BadInput(
                f"--trace {path}, line {number}: {line.strip()[:60]!r} is neither a time nor a time and a rate.",
                "Write one time in seconds per line, or `time,rate` on every line.",
            )
        rows.append(row)
    times = tuple(row[0] for row in rows)
    if rows and len(rows[0]) == 2:
        return Arrivals(kind="rates", times_s=times, levels=tuple(row[1] for row in rows))
    return Arrivals(kind="trace", times_s=times)


def _named(text: str, parts: list[str], known: dict[str, float | None]) -> dict[str, float]:
    """Return `name=value` parts; `known` maps each name to its default, None if it must be given."""
    given: dict[str, float] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in known:
            raise _not_known(text)
        given[name.strip()] = _number(text, value)
    missing = [name for name, default in known.items() if default is None and name not in given]
    if missing:
        raise BadInput(f"--arrivals {text} lacks {' and '.join(missing)}.", f"Use {EXAMPLES}.")
    return {name: given.get(name, default or 0.0) for name, default in known.items()}


def _number(text: str, value: str) -> float:
    number = _number_or_nan(value)
    if not math.isfinite(number):
        raise BadInput(f"--arrivals {text}: {value!r} is not a number.", f"Use {EXAMPLES}.")
    return number


def _number_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _not_known(text: str) -> BadInput:
    return BadInput(f"--arrivals {text} is not known.", f"Use {EXAMPLES}.")
