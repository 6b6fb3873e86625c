"""The traffic of a day for a replay: from a table, from counts by minute as Azure publishes them, or drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deploy.day import STEP_S
from loadgen.errors import BadInput, LoadError
from loadgen.spec.plan import arrivals_from_file
from search.arrays import Floats

DAY_S = 86_400.0
LOWEST_SHARE = 0.2  # of the peak, in the night of a diurnal day
LONGEST_S = 7 * DAY_S
LONGEST_STEP = 3.0  # times the usual one: beyond it, data is missing
MINUTES = 1440  # columns of a row of Azure's traces


def due_per_second(text: str) -> Floats:
    """Return the rate in each second that `--traffic TEXT` asks for. Raises BadInput."""
    kind, _, peak = text.partition(":")
    if kind == "diurnal" and not Path(text).exists():
        highest = float(peak) if peak.replace(".", "", 1).isdecimal() else 0.0
        if not highest > 0:
            raise BadInput(
                f"--traffic {text} has no peak above zero.", "Write --traffic diurnal:PEAK, in requests/s."
            )
        swing = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(DAY_S / STEP_S) / (DAY_S / STEP_S))
        due: Floats = highest * (LOWEST_SHARE + (1 - LOWEST_SHARE) * swing)
        return due
    times_s, rates_per_s = _azure(Path(text)) or _table(Path(text))
    steps_s = np.diff(times_s)
    usual_s = float(np.median(steps_s))
    longest = int(steps_s.argmax())
    if steps_s[longest] > LONGEST_STEP * usual_s:
        raise BadInput(
            f"--traffic {text} has a gap of {steps_s[longest]:g} s after {times_s[longest]:g} s; "
            f"its usual step is {usual_s:g} s.",
            "Fill the gap with rows, with a rate of 0 if there was no traffic.",
        )
    length_s = times_s[-1] - times_s[0] + usual_s
    if not 600 <= length_s <= LONGEST_S:
        raise BadInput(
            f"--traffic {text} lasts {length_s:g} s; a replay takes ten minutes to seven days.",
            "Times are in seconds. Give a day of them.",
        )
    at_s = times_s[0] + np.arange(round(length_s / STEP_S)) * STEP_S
    held: Floats = rates_per_s[np.searchsorted(times_s, at_s, side="right") - 1]
    return held


def _table(path: Path) -> tuple[Floats, Floats]:
    try:
        arrivals = arrivals_from_file(path, option="--traffic")
    except LoadError as error:
        what, _, fix = str(error).partition("\n")
        raise BadInput(f"--traffic {path}: {what}", fix) from error
    if arrivals.kind != "rates":
        raise BadInput(f"--traffic {path} holds times alone.", "Write `time,rate` on every line: s, requests/s.")
    return np.array(arrivals.times_s), np.array(arrivals.levels)


def _azure(path: Path) -> tuple[Floats, Floats] | None:
    """Return the sum of all functions' invocations, counted by minute; None if that is not the file's form."""
    try:
        with path.open(encoding="utf-8") as lines:
            heading = lines.readline().strip().split(",")
            if heading[-MINUTES:] != [str(minute) for minute in range(1, MINUTES + 1)]:
                return None
            counts = np.loadtxt(lines, delimiter=",", usecols=range(len(heading) - MINUTES, len(heading)), ndmin=2)
    except OSError as error:
        raise BadInput(f"--traffic {path} cannot be read: {error.strerror}.", "Give a text file.") from error
    except ValueError as error:
        raise BadInput(f"--traffic {path}: {error}.", "Give a count in each of the 1,440 columns.") from error
    return 60.0 * np.arange(MINUTES), counts.sum(axis=0) / 60
