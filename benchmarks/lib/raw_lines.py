"""Append raw results, one JSON object per line and never changed; and compare figures with thresholds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from search.records.run_files import append_line, whole_lines

Line = dict[str, Any]


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a file, those of early runs in the words of today; none if there is no file."""
    return [_today(json.loads(line)) for line in whole_lines(path)]


def _today(line: Line) -> Line:
    new = {"met" if name == "kept" else name: value for name, value in line.items()}
    return new | {"verdict": "violated"} if new.get("verdict") == "broken" else new


def add_line(path: Path, line: Line) -> Line:
    """Append a line, which is on the disk when this returns; returns the line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps(line))
    return line


def verdict(what: str, seen: float, sign: str, threshold: float) -> bool:
    """Print `- met: ...` or `- **missed**: ...`; `sign` is <= or >=; a figure of NaN is not known yet."""
    if math.isnan(seen):
        print(f"- not known yet: {what} (threshold {sign} {threshold:g})")
        return False
    met = seen <= threshold if sign == "<=" else seen >= threshold
    print(f"- {'met' if met else '**missed**'}: {what} {seen:.4g} (threshold {sign} {threshold:g})")
    return met
