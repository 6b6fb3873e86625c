"""`optimize report`: the report of a run, written into its directory or printed as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.files import write_atomically
from optimizer.errors import BadInput
from optimizer.reports.evidence import read_evidence
from optimizer.reports.html_page import html_page
from optimizer.reports.markdown import markdown

if TYPE_CHECKING:
    from pathlib import Path

REPORT_FILE = "report.html"


def write_report(directory: Path, *, output: Path | None = None) -> Path:
    """Write the page, to `report.html` in the run's directory unless told otherwise. Raises BadInput."""
    text = html_page(read_evidence(directory))
    path = directory / REPORT_FILE if output is None else output
    try:
        write_atomically(path, text)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}.", "Give another place with --output FILE."
        ) from error
    return path


def markdown_report(directory: Path) -> str:
    """The report for a pull request. Raises BadInput."""
    return markdown(read_evidence(directory))
