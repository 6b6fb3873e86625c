"""Append the events of a run to a file as they happen, one JSON line per event, for other programs."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from loadgen.errors import BadInput
from loadgen.printable import printable
from optimizer.run.run_directory import made_with, nearest
from search.trials import events
from search.trials.events import Event, OnEvent


@contextmanager
def events_to(path: Path | None, on_event: OnEvent) -> Iterator[OnEvent]:
    """Yield a handler that appends events to the file until the block ends, and passes them on to `on_event`.

    None: it only passes them on. A disk that is full later on ends the file with a note, and not the run. Raises
    BadInput if the file cannot be opened.
    """
    if path is None:
        yield on_event
        return
    with _refused(path):
        file = path.open("ab", buffering=0)
    began, broken = time.monotonic(), False

    def write(event: Event) -> None:
        nonlocal broken
        if not broken:
            try:
                file.write(event_line(event, elapsed_s=time.monotonic() - began))
            except (OSError, ValueError) as error:
                broken = True
                reason = error.strerror if isinstance(error, OSError) else error
                text = f"--events {path} has no more events: {reason}"
                on_event(events.Note(text=text, warning=True))
        on_event(event)

    try:
        yield write
    finally:
        with suppress(OSError):
            file.close()


def check_events(path: Path, output: Path) -> None:
    """Raise BadInput if events cannot be appended to the file; it is not made.

    Its folder may be the run's directory `output`, or one above, that does not exist yet.
    """
    with _refused(path):
        if path.exists():
            path.open("ab").close()
        else:
            folder = path.absolute().parent
            with tempfile.TemporaryFile(dir=nearest(folder) if folder in made_with(output) else folder):
                pass


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"--events {path} cannot be written: {error.strerror}.", "Give another file.") from error


def event_line(event: Event, *, elapsed_s: float) -> bytes:
    """Return an event as a line of JSON: its name such as `trial_ended`, the time, and its fields.

    A trial is as in `trials.jsonl`, the best one so far its number.
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    found: dict[str, Any] = {"event": name, "at": datetime.now(UTC).isoformat(timespec="milliseconds")}
    found["elapsed_s"] = round(elapsed_s, 3)
    values = {one.name: getattr(event, one.name) for one in fields(event) if one.name != "elapsed_s"}
    found |= {key: printable(one, lines=True) if isinstance(one, str) else one for key, one in values.items()}
    if isinstance(event, events.TrialEnded):
        found["best"] = None if event.best is None else event.best.number
    return to_json(found, inf_nan_mode="null") + b"\n"
