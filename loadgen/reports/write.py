"""The files of a finished load test, those in CSV among them: each is written whole or not at all."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import BadInput, Bug, EnvironmentFailed, UserError, unforeseen
from loadgen.files import whole_file, write_atomically
from loadgen.measurement.request_log import RequestLog, percentiles_ns
from loadgen.measurement.streams import GOOD
from loadgen.printable import printable, printable_json
from loadgen.records.formats import (
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
from loadgen.reports.views import html_page
from loadgen.status import outcome_name

QUANTILES = (0.5, 0.66, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)
PERCENTILE_NAMES = tuple(f"{100 * quantile:.6g}%" for quantile in QUANTILES)
STATS_COLUMNS = (
    "Type", "Name", "Request Count", "Failure Count", "Median Response Time", "Average Response Time",
    "Min Response Time", "Max Response Time", "Average Content Size", "Requests/s", "Failures/s",
    *PERCENTILE_NAMES,
)  # fmt: skip
HISTORY_COLUMNS = (
    "Timestamp", "User Count", "Type", "Name", "Requests/s", "Failures/s", *PERCENTILE_NAMES,
    "Total Request Count", "Total Failure Count", "Total Median Response Time", "Total Average Response Time",
    "Total Min Response Time", "Total Max Response Time", "Total Average Content Size",
)  # fmt: skip
FAILURE_COLUMNS = ("Method", "Name", "Error", "Occurrences", "First Seen", "Last Seen")

_NS_PER_MS = 1e6
_STEPS_PER_DECADE = 1000
_NOT_AVAILABLE = "N/A"


def stats_csv(record: LoadTestRecord, log: RequestLog) -> str:
    """`PREFIX_stats.csv`: the model, and the same figures again as `Aggregated`, as Locust has it."""
    latency_ns = log.latency_charged_ns(_timeout_ns(record))
    n, failures = len(log), int(np.count_nonzero(log.outcome))
    summary: list[object] = [0, 0, 0, 0]
    figures: list[object] = [_NOT_AVAILABLE] * len(QUANTILES)
    if n:
        figures = [_ms(ns) for ns in percentiles_ns(latency_ns, QUANTILES)]
        summary = [figures[0], _ms(float(latency_ns.mean())), _ms(int(latency_ns.min())), figures[-1]]
    seconds = (record.load if record.measurement is None else record.measurement).duration_s
    per_s = [count / seconds if count else 0.0 for count in (n, failures)]
    both = [n, failures, *summary, _mean_size(record), *per_s, *figures]
    return table(STATS_COLUMNS, [[*_names(record), *both], ["", "Aggregated", *both]])


def history_csv(record: LoadTestRecord, log: RequestLog) -> str:
    """`PREFIX_stats_history.csv`: a line a second; rates of that second, percentiles and totals so far."""
    return table(HISTORY_COLUMNS, _history_rows(record, log))


def failures_csv(record: LoadTestRecord, log: RequestLog) -> str:
    """`PREFIX_failures.csv`: a line for each kind of failure, with its first and last time."""
    started = record.started_at.timestamp()
    rows = []
    for kind in np.unique(log.outcome[log.failed]).tolist():
        ended_ns = log.done_ns[log.outcome == kind]
        seen = [f"{started + ns / 1e9:.3f}" for ns in (int(ended_ns.min()), int(ended_ns.max()))]
        rows.append([*_names(record), outcome_name(kind), len(ended_ns), *seen])
    return table(FAILURE_COLUMNS, rows)


CSV_FILES = {"_stats.csv": stats_csv, "_stats_history.csv": history_csv, "_failures.csv": failures_csv}
"""The function that makes each file, by the ending of its name."""


def _history_rows(record: LoadTestRecord, log: RequestLog) -> Iterator[list[object]]:
    """Percentiles so far come from counts in steps of 0.23 %: sorting it all every second would take too long."""
    timeout_ns = _timeout_ns(record)
    longest_ns = int(log.latency_charged_ns(timeout_ns).max()) if len(log) else 0
    counts = np.zeros(int(_steps(np.array([longest_ns]))[0]) + 1, np.int64)
    total, failed, spent, least, most = 0, 0, 0.0, math.inf, 0.0
    started = int(record.started_at.timestamp())
    due_ns = log.scheduled_ns
    edges = np.searchsorted(due_ns, np.arange(0, (int(due_ns[-1]) if len(log) else -1) + 10**9 + 1, 10**9))
    for second, (start, end) in enumerate(pairwise(edges.tolist()), start=1):
        part_ns = log.rows(start, end).latency_charged_ns(timeout_ns)
        part_failed = int(np.count_nonzero(log.outcome[start:end]))
        counts += np.bincount(_steps(part_ns), minlength=len(counts))
        total, failed, spent = total + len(part_ns), failed + part_failed, spent + float(part_ns.sum())
        least = min(least, float(part_ns.min(initial=np.iinfo(np.int64).max)))
        most = max(most, float(part_ns.max(initial=0)))
        if not total:
            continue
        ranks = [max(1, math.ceil(quantile * total)) for quantile in QUANTILES]
        steps = np.searchsorted(np.cumsum(counts), ranks).tolist()
        so_far = [_ms(max(least, min(most, 1000 * 10.0 ** (step / _STEPS_PER_DECADE)))) for step in steps]
        now = [started + second, record.load.concurrency or 0, "", "Aggregated", len(part_ns), part_failed]
        totals = [total, failed, so_far[0], _ms(spent / total), _ms(least), _ms(most), _mean_size(record)]
        yield [*now, *so_far, *totals]


def _steps(latency_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each time as the number of a step on a logarithmic scale of 1 us and up."""
    steps: NDArray[np.float64] = np.ceil(np.log10(np.maximum(latency_ns, 1000) / 1000) * _STEPS_PER_DECADE)
    return steps.astype(np.int64)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV file; texts that a spreadsheet would read as formulas are marked as texts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """Return the text; with an apostrophe in front if a spreadsheet would read it as a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _ms(ns: float) -> float:
    return round(ns / _NS_PER_MS, 4)


def _timeout_ns(record: LoadTestRecord) -> int:
    return round(record.load.timeout_s * 1e9)


def _names(record: LoadTestRecord) -> tuple[str, str]:
    """Return the protocol and the model."""
    return "HTTP" if record.target.url.lower().startswith("http") else "gRPC", record.target.model_name


def _mean_size(record: LoadTestRecord) -> float:
    measured = record.measurement
    return round(measured.bytes_received / measured.requests, 1) if measured and measured.requests else 0.0


def record_json(record: LoadTestRecord) -> str:
    """Return the text that `--json` prints and `--output` writes."""
    return printable_json(record.model_dump_json(indent=2)) + "\n"


def check_writable(outputs: Mapping[str, Path]) -> None:
    """Raise BadInput if a file of an option could not be written now, before minutes of load are spent."""
    for option, given in outputs.items():
        path = _with_ending(given, "_stats.csv") if option == "--csv" else given
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


def write_reports(record: LoadTestRecord, log: RequestLog | None, outputs: Mapping[str, Path]) -> list[UserError]:
    """Write the files of the options. Return an error for each that could not be written."""
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
    record: LoadTestRecord, log: RequestLog | None, outputs: Mapping[str, Path]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each file or folder, and the function that writes it."""
    texts: dict[str, dict[str, Callable[[], str]]] = {
        "--output": {"": lambda: record_json(record)},
        "--html": {"": lambda: html_page(record)},
        "--junit": {"": lambda: junit_xml(record)},
    }
    if log is not None:
        texts["--csv"] = {ending: partial(table, record, log) for ending, table in CSV_FILES.items()}
    for option, given in outputs.items():
        for ending, text in texts.get(option, {}).items():
            path = _with_ending(given, ending)
            yield f"{option} {path}", partial(_write, path, text)
        if option == "--keep-log" and log is not None:
            yield f"{option} {given}", partial(_write_log, log, given)


def _write(path: Path, text: Callable[[], str]) -> None:
    write_atomically(path, text())


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
    seconds = 0.0 if record.measurement is None else record.measurement.duration_s
    each = {"classname": f"loadtest.{_xml_text(record.target.model_name)}", "time": f"{seconds:.3f}"}
    for name, tag, message, text in _findings(record):
        case = ET.SubElement(suite, "testcase", each, name=_xml_text(name))
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
    yield "the answer as a whole", tag, record.outcome, reasons


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
