"""The files of a finished load test: each is written whole or not at all, and none stops the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from loadgen.errors import BadInput, Bug, EnvironmentFailed, UserError, unforeseen
from loadgen.files import whole_file, write_atomically
from loadgen.measurement.request_log import RequestLog
from loadgen.printable import printable_json
from loadgen.records.record import LoadTestRecord
from loadgen.reports.csv_files import CSV_FILES
from loadgen.reports.junit_xml import junit_xml
from loadgen.reports.views import html_page
from loadgen.spec.load_test import Outputs


def record_json(record: LoadTestRecord) -> str:
    """Return the text that `--json` prints and `--output` writes."""
    return printable_json(record.model_dump_json(indent=2)) + "\n"


def check_writable(outputs: Outputs) -> None:
    """Raise BadInput if a report could not be written now, before minutes of load are spent."""
    named = {
        "--output": outputs.record,
        "--html": outputs.html,
        "--junit": outputs.junit,
        "--csv": None if outputs.csv_prefix is None else _with_ending(outputs.csv_prefix, "_stats.csv"),
        "--keep-log": outputs.log,
    }
    for option, path in named.items():
        if path is None:
            continue
        if option != "--keep-log" and path.exists() and not path.is_file():  # a report would replace a device
            raise BadInput(f"{option} {path} is not a file.", "Give the name of a file.")
        folder = path if option == "--keep-log" else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # it has no name that a file could have already
                pass
        except OSError as error:
            raise BadInput(
                f"{option} {path} cannot be written: {error.strerror or error}.", "Give another path."
            ) from error


def write_reports(record: LoadTestRecord, log: RequestLog | None, outputs: Outputs) -> list[UserError]:
    """Write the files of `outputs`. Return an error for each that could not be written."""
    problems: list[UserError] = []
    for what, write in _writers(record, log, outputs):
        try:
            write()
        except OSError as error:
            problems.append(
                EnvironmentFailed(
                    f"{what} was not written: {error.strerror or error}.",
                    "The result below is valid; make room and take it from there, or run again.",
                )
            )
        except Exception as error:  # a bug in one page costs that page
            bug = unforeseen(error)
            problems.append(Bug(f"{what} was not written. {bug.what}", bug.fix))
    return problems


def _writers(
    record: LoadTestRecord, log: RequestLog | None, outputs: Outputs
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each file or folder, and the function that writes it."""

    def file(option: str, path: Path, text: Callable[[], str]) -> tuple[str, Callable[[], object]]:
        return f"{option} {path}", lambda: write_atomically(path, text())

    if outputs.record is not None:
        yield file("--output", outputs.record, lambda: record_json(record))
    if outputs.html is not None:
        yield file("--html", outputs.html, lambda: html_page(record))
    if outputs.junit is not None:
        yield file("--junit", outputs.junit, lambda: junit_xml(record))
    if outputs.csv_prefix is not None and log is not None:
        for ending, table in CSV_FILES.items():
            yield file("--csv", _with_ending(outputs.csv_prefix, ending), partial(table, record, log))
    if outputs.log is not None and log is not None:
        yield f"--keep-log {outputs.log}", partial(_write_log, log, outputs.log)


def _write_log(log: RequestLog, folder: Path) -> None:
    for name in ("scheduled_ns", "sent_ns", "done_ns", "outcome", *([] if log.streams is None else ["streams"])):
        with whole_file(folder / f"{name}.npy") as file:
            np.save(file, getattr(log, name))


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
