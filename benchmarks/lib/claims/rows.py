"""Read raw results as rows, and select rows by conditions."""

from __future__ import annotations

import csv
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Conditions = Mapping[str, Any]
"""Per expression: the value that a row must have, a list of allowed values, a comparison such as ">= 0.8", or
"unknown" if it must have none."""

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class ClaimFailed(Exception):
    """A claim cannot be computed from its declaration and raw results."""


@lru_cache
def rows_of(path: Path, inside: str | None) -> tuple[Row, ...]:
    """Return the rows of a .jsonl, .json or .csv file, each with `file`, its stem.

    `inside`: the path of a list within a JSON object; None if the object or list itself is meant.
    """
    try:
        found = _read(path)
    except OSError as problem:
        raise ClaimFailed(
            f"{path.name}: {problem.strerror}\nCorrect `raw`, relative to docs/benchmarks."
        ) from None
    if inside is not None:
        found = [part for whole in found for part in value_at(whole, inside)]
    return tuple({"file": path.stem, **row} for row in found)


def _read(path: Path) -> list[Any]:
    with path.open(newline="") as file:
        if path.suffix == ".csv":
            return [{name: _cell(text) for name, text in row.items()} for row in csv.DictReader(file)]
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file if line.strip()]
        whole = json.load(file)
        return whole if isinstance(whole, list) else [whole]


def _cell(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def value_at(row: Row, expression: str) -> Any:
    """Return a field by its dotted path, the ratio of two, or a comparison: "promised / capacity <= 1".

    None if the row has no such field, or a ratio has no denominator.
    """
    for sign, holds in COMPARISONS.items():
        if f" {sign} " in expression:
            left, _, right = expression.partition(f" {sign} ")
            value = value_at(row, left)
            return None if value is None else holds(value, float(right))
    if " / " in expression:
        above, below = (value_at(row, part) for part in expression.split(" / "))
        return None if above is None or not below else above / below
    found: Any = row
    for name in expression.split("."):
        try:
            found = found[int(name) if isinstance(found, list) else name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return found


def select(rows: Iterable[Row], conditions: Conditions) -> list[Row]:
    """Return the rows that meet all conditions."""
    return [row for row in rows if all(_meets(value_at(row, field), asked) for field, asked in conditions.items())]


def _meets(value: Any, asked: Any) -> bool:
    if isinstance(asked, list):
        return value in asked
    if asked == "unknown":
        return value is None
    words = asked.split(maxsplit=1) if isinstance(asked, str) else []
    if len(words) == 2 and words[0] in COMPARISONS:
        return value is not None and COMPARISONS[words[0]](value, float(words[1]))
    return bool(value == asked)


def groups(rows: Sequence[Row], by: Sequence[str]) -> list[list[Row]]:
    """Return the rows grouped by the values of these fields, in the order of the first rows."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(value_at(row, field) for field in by), []).append(row)
    return list(found.values())


def joined(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return one row per values of `keys` that every file has: these keys, and each file's row under its name."""
    files = {row["file"] for row in rows}
    parts = (
        {**{key: part[0][key] for key in keys}, **{row["file"]: row for row in part}}
        for part in groups(rows, keys)
    )
    return [part for part in parts if files <= part.keys()]
