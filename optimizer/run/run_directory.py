"""Create the directory of a run, lock it for one process at a time, and keep its log and its file of events.

Events are appended as they happen, one JSON line per event, for other programs.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from rich.console import Console

from loadgen.errors import BadInput
from loadgen.options.declare import is_file
from loadgen.printable import printable
from search.records.run_files import check_files
from search.redact import shown_arguments
from search.trials import events
from search.trials.events import Event, OnEvent

log = logging.getLogger("tritune")

LOG_FILE = "optimize.log"


def make_directory(directory: Path, *, resume: bool, model: str | Path) -> None:
    """Create the directory, private if the model's file is, or the folder of one; with `resume` it may hold files.

    Raises BadInput.
    """
    private = isinstance(model, Path) and _is_private(model)
    check_directory(directory, resume=resume)
    try:
        directory.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        check_files(directory)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"0" * 4096)
    except OSError as error:
        raise _unwritable(directory, error) from error


def check_directory(directory: Path, *, resume: bool) -> None:
    """Raise BadInput if a run cannot use the directory; it need not exist, and nothing is left in it."""
    try:
        if not resume and directory.exists() and any(directory.iterdir()):
            raise BadInput(
                f"--output {directory} is not empty.",
                f"Give a new directory, or go on with the run in it: --resume {directory}",
            )
        with tempfile.TemporaryFile(dir=nearest(directory)):
            pass
    except OSError as error:
        raise _unwritable(directory, error) from error


def made_with(directory: Path) -> tuple[Path, ...]:
    """Return the folders that exist when the directory has been made: itself, and those above."""
    return (directory.absolute(), *directory.absolute().parents)


def nearest(directory: Path) -> Path:
    """Return the directory, or the nearest folder above that exists."""
    return next(folder for folder in made_with(directory) if folder.exists())


def _unwritable(directory: Path, error: OSError) -> BadInput:
    return BadInput(
        f"--output {directory} cannot be written: {error.strerror or error}.",
        "Give another directory with --output.",
    )


def _is_private(model: Path) -> bool:
    """True if only its owner may read a model's file, or enter its folder in a repository."""
    if is_file(model):
        return not model.stat().st_mode & 0o077
    with suppress(OSError, ValueError):
        return model.is_dir() and any(not folder.stat().st_mode & 0o077 for folder in (model, model.parent))
    return False


@contextmanager
def logging_to(
    path: Path, *, also: Console | None = None, arguments: Sequence[str] | None = None
) -> Iterator[None]:
    """Write our log to this file until the block ends, with the command's arguments and an error's traceback.

    `also` gets the lines, too, without those for debugging. `arguments` None: no command of ours runs.
    """
    handlers: list[logging.Handler] = [_LogFile(path, encoding="utf-8", errors="backslashreplace")]
    if also is not None:
        handlers.append(_OnConsole(also))
    level, propagate = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    for handler in handlers:
        handler.setFormatter(_PrintableLines("%(asctime)s %(levelname)-7s %(message)s"))
        log.addHandler(handler)
    try:
        if arguments is not None:
            log.info("arguments: %s", " ".join(shown_arguments([*arguments])))
        yield
    except BaseException as error:
        log.debug("ended by %s: %s", type(error).__name__, error, exc_info=True)
        raise
    finally:
        log.info("peak memory of this process: %.0f MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        for handler in handlers:
            log.removeHandler(handler)
            with suppress(OSError):
                handler.close()
        log.setLevel(level)
        log.propagate = propagate


class _LogFile(logging.FileHandler):
    """A log file that ignores write errors, such as a full disk: the run will report them itself."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Drop the record."""


class _OnConsole(logging.Handler):
    """Prints log lines, above a live display."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; an error of the terminal does not end the run."""
        with suppress(OSError):
            self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


class _PrintableLines(logging.Formatter):
    """Formats lines that are safe for `cat`, even if a server or a model put control characters into them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as printable text."""
        text = super().format(record)
        return printable(text, most=len(text), lines=True)


def to_log_and(show: OnEvent) -> OnEvent:
    """Return a handler that sends events to the log and to `show`, whose errors are only logged."""

    def on_event(event: events.Event) -> None:
        log.debug("%s", event)
        try:
            show(event)
        except Exception:  # a line that cannot be shown must not end the run
            log.exception("not shown")

    return on_event


@contextmanager
def events_to(path: Path | None, on_event: OnEvent) -> Iterator[OnEvent]:
    """Yield a handler that appends events to the file until the block ends, and passes them on to `on_event`.

    None: it only passes them on. A disk that is full later on ends the file with a note, and not the run. Raises
    BadInput if the file cannot be opened.
    """
    if path is None:
        yield on_event
        return
    with _events_refused(path):
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
    with _events_refused(path):
        if path.exists():
            path.open("ab").close()
        else:
            folder = path.absolute().parent
            with tempfile.TemporaryFile(dir=nearest(folder) if folder in made_with(output) else folder):
                pass


@contextmanager
def _events_refused(path: Path) -> Iterator[None]:
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


LOCK_FILE = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory against a second run. The kernel frees the lock when the process ends, even by a crash.

    The file holds the owner's process id, for users. Raises BadInput if another process has the lock, or if the
    directory cannot be locked.
    """
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            raise BadInput(
                f"Another run is using {directory}{f' (process {owner})' if owner else ''}.",
                "Wait for it, or give another directory with --output.",
            ) from error
        except OSError as error:
            raise BadInput(
                f"{directory} cannot be locked: {error.strerror}.",
                "Give a directory on a local disk with --output.",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
