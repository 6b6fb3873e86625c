"""The files of a finished load test: each is written whole or not at all, whatever becomes of the others."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from loadgen.command import Bug, unforeseen
from loadgen.files import write_atomically
from loadgen.printable import printable_json
from loadgen.user_errors import BadInput, EnvironmentFailed, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loadgen.measurement import RequestLog
    from loadgen.order import Outputs
    from loadgen.reports.record import LoadTestRecord
    from loadgen.tally import Tally


class ReportNotWritten(EnvironmentFailed):
    """A report could not be written; the measurement itself stands."""


def record_json(record: LoadTestRecord) -> str:
    """What `--json` prints and `--output` writes."""
    return printable_json(record.model_dump_json(indent=2)) + "\n"


def check_writable(outputs: Outputs) -> None:
    """Raises BadInput when a report could not be written even now, before minutes of load are spent."""
    for option, path in _paths(outputs).items():
        if path.is_dir():
            raise BadInput(f"{option} {path} is a directory.", "Give the name of a file.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):  # it has no name that a file could have already
                pass
        except OSError as error:
            raise BadInput(
                f"{option} {path} cannot be written: {error.strerror or error}.", "Give another path."
            ) from error


def write_reports(
    record: LoadTestRecord, log: RequestLog | None, outputs: Outputs, *, tally: Tally | None = None
) -> list[UserError]:
    """Write what was asked for; returns an error for each file that could not be written.

    `tally`: what was kept of a run instead of its log.
    """
    problems: list[UserError] = []
    for option, path, text in _texts(record, log, outputs, tally):
        try:
            write_atomically(path, text())
        except OSError as error:
            problems.append(
                ReportNotWritten(
                    f"{option} {path} was not written: {error.strerror or error}.",
                    "The result below stands; make room and take it from there, or run again.",
                )
            )
        except Exception as error:  # a bug in one page costs that page
            bug = unforeseen(error)
            problems.append(Bug(f"{option} {path} was not written. {bug.what}", bug.fix))
    return problems


def _paths(outputs: Outputs) -> dict[str, Path]:
    given = {
        "--output": outputs.record,
        "--html": outputs.html,
        "--junit": outputs.junit,
        "--csv": None if outputs.csv_prefix is None else _with_ending(outputs.csv_prefix, "_stats.csv"),
    }
    return {option: path for option, path in given.items() if path is not None}


def _texts(
    record: LoadTestRecord, log: RequestLog | None, outputs: Outputs, tally: Tally | None
) -> list[tuple[str, Path, Callable[[], str]]]:
    """(option, path, what makes its text) of each file; a format's libraries are loaded when it is wanted."""

    def html() -> str:
        from loadgen.reports.html_page import html_page

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
        for ending, text in _csv_texts(record, log, tally).items():
            found.append(("--csv", _with_ending(outputs.csv_prefix, ending), text))
    return found


def _csv_texts(record: LoadTestRecord, log: RequestLog, tally: Tally | None) -> dict[str, Callable[[], str]]:
    from loadgen.reports import csv_files

    if tally is not None:
        return {
            "_stats.csv": lambda: csv_files.stats_csv_of_tally(record, tally),
            "_stats_history.csv": lambda: csv_files.history_csv_of_tally(record, tally),
            "_failures.csv": lambda: csv_files.failures_csv_of_tally(record, tally),
        }
    return {
        "_stats.csv": lambda: csv_files.stats_csv(record, log),
        "_stats_history.csv": lambda: csv_files.history_csv(record, log),
        "_failures.csv": lambda: csv_files.failures_csv(record, log),
    }


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
