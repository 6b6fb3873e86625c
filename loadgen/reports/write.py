"""The files of a finished load test: each is written whole or not at all, and none stops the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from loadgen.errors import BadInput, Bug, EnvironmentFailed, UserError, unforeseen
from loadgen.files import whole_file, write_atomically
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.streams import GOOD
from loadgen.printable import printable, printable_json
from loadgen.records.formats import (
    HEADLINES,
    UNKNOWN,
    beyond_in_words,
    comparison_in_words,
    errors_in_words,
    format_ms,
    format_rate,
    load_in_words,
    observed_in_words,
)
from loadgen.records.record import LoadTestRecord
from loadgen.reports.csv_files import CSV_FILES
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


def junit_xml(record: LoadTestRecord) -> str:
    """Return one suite. A violated limit is a failure; an inconclusive or untrustworthy one an error, no pass."""
    suite = ET.Element("testsuite", name="loadtest", timestamp=record.started_at.strftime("%Y-%m-%dT%H:%M:%S"))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(record).items():
        ET.SubElement(properties, "property", name=name, value=_xml_text(value))
    for name, tag, message, text in _findings(record):
        case = _case(suite, record, name)
        if tag:
            ET.SubElement(case, tag, message=_xml_text(message)).text = _xml_text(text)
    for kind, tag in (("failures", "failure"), ("errors", "error")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _findings(record: LoadTestRecord) -> Iterator[tuple[str, str, str, str]]:
    """(name, "failure", "error" or "", message, text) of each test case."""
    reasons = "\n".join(record.reasons)
    spoilt = "error" if record.outcome in ("untrustworthy", "interrupted") else ""
    for check in record.checks:
        counted = check.counted(accept_observed=record.accept_observed)
        tag = spoilt or {"met": "", "violated": "failure", "inconclusive": "error"}[counted]
        answers = f"{check.observed_answer or UNKNOWN} in this run; beyond it {beyond_in_words(check)}"
        message = f"the run was {record.outcome}" if spoilt else f"{check.name}: {answers}"
        yield check.name, tag, message, f"{observed_in_words(check)}; {check.reason}"
    for compared in record.comparison:
        tag = spoilt or ("failure" if compared.answer == "worse" else "")
        name = f"{compared.figure} is not worse than the baseline"
        yield name, tag, f"{compared.figure} is {compared.answer}", comparison_in_words(compared)
    tag = {"met": "", "measured": "", "violated": "failure", "worse": "failure"}.get(record.outcome, "error")
    yield "the answer as a whole", tag, HEADLINES[record.outcome].lower(), reasons


def _case(suite: ET.Element, record: LoadTestRecord, name: str) -> ET.Element:
    seconds = record.measurement.duration_s if record.measurement is not None else 0.0
    classname = f"loadtest.{_xml_text(record.target.model_name)}"
    return ET.SubElement(suite, "testcase", classname=classname, name=_xml_text(name), time=f"{seconds:.3f}")


def _properties(record: LoadTestRecord) -> dict[str, str]:
    properties = {"url": record.target.url, "load": load_in_words(record.load), "tool": record.tool}
    measured = record.measurement
    if measured is not None:
        properties |= {
            "requests": str(measured.requests),
            "errors": errors_in_words(record),
            "p50_ms": format_ms(measured.latency_p50_ms),
            "p99_ms": format_ms(measured.latency_p99_ms),
            "achieved_rate_per_s": f"{measured.achieved_rate_per_s:.6g}",
            "send_lag_p99_ms": format_ms(measured.send_lag_p99_ms),
        }
        properties |= {} if measured.streams is None else {"good": GOOD}
    if record.capacity is not None:
        properties["highest_rate_per_s"] = format_rate(record.capacity.certified_rate_per_s)
    return properties


def _xml_text(text: str) -> str:
    """The text as XML can hold it, which control characters are not; a server's error message may have any."""
    return printable(text, lines=True)
