"""The three CSV files that Locust writes, with its names and columns and our exact times.

Locust rounds its times to whole milliseconds or coarser; these are as measured. A failed request counts at its own
time or the time-out, whichever is later, here as everywhere in loadgen.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog, percentiles_ns
from loadgen.printable import printable
from loadgen.records.record import LoadTestRecord
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
