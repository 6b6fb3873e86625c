"""The files of a finished load test: each is written whole or not at all, and none stops the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadgen.errors import BadInput, Bug, EnvironmentFailed, UserError, unforeseen
from loadgen.files import whole_file, write_atomically
from loadgen.measurement.request_log import RequestLog
from loadgen.printable import printable_json
from loadgen.records.record import LoadTestRecord
from loadgen.spec.load_test import Outputs

_STANDS = "The result below is valid; make room and take it from there, or run again."


class ReportNotWritten(EnvironmentFailed):
    """A report could not be written; the measurement itself stands."""


def record_json(record: LoadTestRecord) -> str:
    """Return the text that `--json` prints and `--output` writes."""
    return printable_json(record.model_dump_json(indent=2)) + "\n"


def check_writable(outputs: Outputs) -> None:
    """Raise BadInput if a report could not be written now, before minutes of load are spent."""
    for option, path in _paths(outputs).items():
        if path.exists() and not path.is_file():  # a device would be replaced by the report
            raise BadInput(f"{option} {path} is not a file.", "Give the name of a file.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):  # it has no name that a file could have already
                pass
        except OSError as error:
            raise BadInput(
                f"{option} {path} cannot be written: {error.strerror or error}.", "Give another path."
            ) from error
    if outputs.log is not None:
        try:
            outputs.log.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=outputs.log):
                pass
        except OSError as error:
            raise BadInput(
                f"--keep-log {outputs.log} is no folder to write to: {error.strerror or error}.",
                "Give another folder.",
            ) from error


def write_reports(record: LoadTestRecord, log: RequestLog | None, outputs: Outputs) -> list[UserError]:
    """Write the reports of `outputs`. Return an error for each file that could not be written."""
    problems: list[UserError] = []
    for option, path, text in _texts(record, log, outputs):
        try:
            write_atomically(path, text())
        except OSError as error:
            problems.append(
                ReportNotWritten(
                    f"{option} {path} was not written: {error.strerror or error}.",
                    _STANDS,
                )
            )
        except Exception as error:  # a bug in one page costs that page
            bug = unforeseen(error)
            problems.append(Bug(f"{option} {path} was not written. {bug.what}", bug.fix))
    return problems


def write_log(log: RequestLog, outputs: Outputs) -> list[UserError]:
    """Write the times of every request if `outputs.log` is set. Return an error if that failed."""
    if outputs.log is None:
        return []
    try:
        for name in ("scheduled_ns", "sent_ns", "done_ns", "outcome"):
            with whole_file(outputs.log / f"{name}.npy") as file:
                np.save(file, getattr(log, name))
    except OSError as error:
        return [ReportNotWritten(f"--keep-log {outputs.log} was not written: {error.strerror or error}.", _STANDS)]
    return []


def _paths(outputs: Outputs) -> dict[str, Path]:
    given = {
        "--output": outputs.record,
        "--html": outputs.html,
        "--junit": outputs.junit,
        "--csv": None if outputs.csv_prefix is None else _with_ending(outputs.csv_prefix, "_stats.csv"),
    }
    return {option: path for option, path in given.items() if path is not None}


def _texts(
    record: LoadTestRecord, log: RequestLog | None, outputs: Outputs
) -> list[tuple[str, Path, Callable[[], str]]]:
    """Return (option, path, function that makes the text) of each file; it loads only the libraries it needs."""

    def html() -> str:
        from loadgen.reports.views import html_page

        return html_page(record)

    def junit() -> str:
        from loadgen.reports.junit_xml import junit_xml

        return junit_xml(record)

    found: list[tuple[str, Path, Callable[[], str]]] = []
    if outputs.record is not None:
        found.append(("--output", outputs.record, lambda: record_json(record)))
    if outputs.html is not None:
        found.append(("--html", outputs.html, html))
    if outputs.junit is not None:
        found.append(("--junit", outputs.junit, junit))
    if outputs.csv_prefix is not None and log is not None:
        for ending, text in _csv_texts(record, log).items():
            found.append(("--csv", _with_ending(outputs.csv_prefix, ending), text))
    return found


def _csv_texts(record: LoadTestRecord, log: RequestLog) -> dict[str, Callable[[], str]]:
    from loadgen.reports import csv_files

    return {
        "_stats.csv": lambda: csv_files.stats_csv(record, log),
        "_stats_history.csv": lambda: csv_files.history_csv(record, log),
        "_failures.csv": lambda: csv_files.failures_csv(record, log),
    }


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
