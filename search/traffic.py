"""Traffic over a day: 24 hourly peaks, from one rate or from a CSV."""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING

from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

HOURS = 24
DayRates = tuple[float, ...]
"""The highest rate of each hour of a day, in requests/s; 24 values, 0 where there is no traffic."""

_FORMAT = "Lines of TIME,RATE_PER_S under a heading, times from 00:00 to 23:59 in order, such as 08:30,1200."


def constant_rate(rate_per_s: float) -> DayRates:
    """The same rate all day."""
    return (rate_per_s,) * HOURS


def read_traffic(path: Path) -> DayRates:
    """The hourly peaks of the curve in a CSV file of `time,rate_per_s`.

    A rate holds from its time until the next line's; the last one holds past midnight until the first, because
    days repeat. Times are `HH:MM` or hours such as `8.5`. Raises BadInput, naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--traffic {path} cannot be read: {error}.", "Check the path.") from error
    steps: list[tuple[float, float]] = []
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and _is_heading(cells)):
            continue
        step = _step(cells)
        if step is None or (steps and step[0] <= steps[-1][0]):
            raise BadInput(f"--traffic {path}, line {number}: {','.join(row)!r} is no step of a day.", _FORMAT)
        steps.append(step)
    if not any(rate for _, rate in steps):
        raise BadInput(f"--traffic {path} holds no rate above zero.", _FORMAT)
    return tuple(_peak(steps, hour) for hour in range(HOURS))


def _is_heading(cells: list[str]) -> bool:
    return len(cells) == 2 and re.fullmatch(r"[A-Za-z][\w /()]*", cells[1]) is not None


def _step(cells: list[str]) -> tuple[float, float] | None:
    """The hour and the rate of one line; None where it is not one."""
    if len(cells) != 2:
        return None
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::00)?", cells[0])
    try:
        hour = int(clock[1]) + int(clock[2]) / 60 if clock else float(cells[0])
        rate = float(cells[1])
    except ValueError:
        return None
    if (clock and int(clock[2]) > 59) or not 0 <= hour < HOURS or not 0 <= rate < math.inf:
        return None
    return hour, rate


def _peak(steps: list[tuple[float, float]], hour: int) -> float:
    """The highest rate at any time within the hour."""
    before = [rate for start, rate in steps if start <= hour]
    within = [rate for start, rate in steps if hour < start < hour + 1]
    return max([before[-1] if before else steps[-1][1], *within])
