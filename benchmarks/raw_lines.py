"""Raw results: a JSON object a line, appended and never changed; and thresholds, held against them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from search.files import append_line, whole_lines

Line = dict[str, Any]


def lines_of(path: Path) -> list[Line]:
    """What a file holds; nothing where there is none."""
    return [json.loads(line) for line in whole_lines(path)]


def add_line(path: Path, line: Line) -> Line:
    """Append a line, on the disk when this returns; gives it back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps(line))
    return line


def verdict(what: str, seen: float, sign: str, threshold: float) -> bool:
    """Print `- kept: ...` or `- **missed**: ...`; `sign` is <= or >=, NaN: it is not known yet."""
    if math.isnan(seen):
        print(f"- not known yet: {what} (threshold {sign} {threshold:g})")
        return False
    kept = seen <= threshold if sign == "<=" else seen >= threshold
    print(f"- {'kept' if kept else '**missed**'}: {what} {seen:.4g} (threshold {sign} {threshold:g})")
    return kept
