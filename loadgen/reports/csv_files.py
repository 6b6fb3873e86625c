"""The three CSV files that Locust writes, with its names and columns and our exact times.

Locust rounds its times to whole milliseconds or coarser; these are as measured. A failed request counts at its own
time or the time-out, whichever is later, here as everywhere in loadgen.
"""

from __future__ import annotations

import csv
import io
import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from loadgen.measurement import percentiles_ns
from loadgen.printable import printable
from loadgen.tally import SO_FAR as QUANTILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from loadgen.measurement import RequestLog
    from loadgen.reports.record import LoadTestRecord
    from loadgen.tally import Tally

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
    latency = log.latency_charged_ns(_timeout_ns(record))
    failures = int(np.count_nonzero(log.failed))
    if not len(latency):
        return _stats(record, 0, 0, [0, 0, 0, 0], [_NOT_AVAILABLE] * len(QUANTILES))
    mean, least = float(latency.mean()), int(latency.min())
    percentiles = [_ms(ns) for ns in percentiles_ns(latency, QUANTILES)]
    return _stats(
        record, len(log), failures, [percentiles[0], _ms(mean), _ms(least), percentiles[-1]], percentiles
    )


def _stats(
    record: LoadTestRecord, n: int, failures: int, summary: Sequence[object], figures: Sequence[object]
) -> str:
    per_s = [count / _seconds(record) if count else 0.0 for count in (n, failures)]
    middle = [n, failures, *summary, _mean_size(record), *per_s, *figures]
    return _table(
        STATS_COLUMNS, [[_protocol(record), record.target.model_name, *middle], ["", "Aggregated", *middle]]
    )


def history_csv(record: LoadTestRecord, log: RequestLog) -> str:
    """`PREFIX_stats_history.csv`: a line a second; rates of that second, percentiles and totals so far."""
    return _table(HISTORY_COLUMNS, _history_rows(record, log))


def failures_csv(record: LoadTestRecord, log: RequestLog) -> str:
    """`PREFIX_failures.csv`: a line for each kind of failure, with its first and last time."""
    from loadgen.outcomes import outcome_name

    started = record.started_at.timestamp()
    rows = []
    for kind in np.unique(log.outcome[log.failed]):
        times = log.done_ns[log.outcome == kind]
        seen = [f"{started + ns / 1e9:.3f}" for ns in (times.min(), times.max())]
        rows.append([_protocol(record), record.target.model_name, outcome_name(int(kind)), len(times), *seen])
    return _table(FAILURE_COLUMNS, rows)


def stats_csv_of_tally(record: LoadTestRecord, tally: Tally) -> str:
    """`PREFIX_stats.csv` of a run of which only a tally was kept."""
    times = tally.latency
    if not len(times):
        return _stats(record, 0, 0, [0, 0, 0, 0], [_NOT_AVAILABLE] * len(QUANTILES))
    percentiles = [_ms(ns) for ns in times.percentiles_ns(QUANTILES)]
    summary = [percentiles[0], _ms(times.mean_ns), _ms(times.least_ns), _ms(times.greatest_ns)]
    return _stats(record, len(times), tally.failures, summary, percentiles)


def history_csv_of_tally(record: LoadTestRecord, tally: Tally) -> str:
    """`PREFIX_stats_history.csv`, a line for each of the tally's bins instead of each second."""
    started = int(record.started_at.timestamp())
    least = _ms(tally.latency.least_ns) if len(tally) else 0
    rows, most_ns = [], 0
    for each in tally.bins:
        so_far = [_ms(ns) for ns in each.so_far_ns]
        most_ns = max(most_ns, each.max_ns)
        rows.append([
            started + math.ceil((each.number + 1) * tally.bin_s), record.load.concurrency or 0, "", "Aggregated",
            each.n / tally.bin_s, each.failures / tally.bin_s, *so_far, each.so_far_n, each.so_far_failures,
            so_far[0], _ms(each.so_far_mean_ns), least, _ms(most_ns), _mean_size(record),
        ])  # fmt: skip
    return _table(HISTORY_COLUMNS, rows)


def failures_csv_of_tally(record: LoadTestRecord, tally: Tally) -> str:
    """`PREFIX_failures.csv` of a run of which only a tally was kept."""
    from loadgen.outcomes import outcome_name

    started = record.started_at.timestamp()
    rows = [
        [_protocol(record), record.target.model_name, outcome_name(outcome), kind.n]
        + [f"{started + ns / 1e9:.3f}" for ns in (kind.first_ns, kind.last_ns)]
        for outcome, kind in sorted(tally.outcomes.items())
        if outcome
    ]
    return _table(FAILURE_COLUMNS, rows)


def _history_rows(record: LoadTestRecord, log: RequestLog) -> Iterator[list[object]]:
    """Percentiles so far come from counts in steps of 0.23 %: sorting it all every second would take too long."""
    latency = log.latency_charged_ns(_timeout_ns(record))
    steps = _steps(latency)
    counts = np.zeros(int(steps.max(initial=0)) + 1, np.int64)
    total, failed, spent, least, most = 0, 0, 0.0, math.inf, 0.0
    started = int(record.started_at.timestamp())
    for second, (start, end) in enumerate(_seconds_of(log), start=1):
        part, part_failed = latency[start:end], int(np.count_nonzero(log.failed[start:end]))
        counts += np.bincount(steps[start:end], minlength=len(counts))
        total, failed, spent = total + len(part), failed + part_failed, spent + float(part.sum())
        least = min(least, float(part.min(initial=np.iinfo(np.int64).max)))
        most = max(most, float(part.max(initial=0)))
        if not total:
            continue
        ranks = [max(1, math.ceil(quantile * total)) for quantile in QUANTILES]
        upper = [min(most, _upper_ns(int(step))) for step in np.searchsorted(np.cumsum(counts), ranks)]
        so_far = [_ms(max(least, ns)) for ns in upper]
        totals = [total, failed, so_far[0], _ms(spent / total), _ms(least), _ms(most), _mean_size(record)]
        yield [
            started + second,
            record.load.concurrency or 0,
            "",
            "Aggregated",
            len(part),
            part_failed,
            *so_far,
            *totals,
        ]


def _steps(latency_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each time as the number of a step on a logarithmic scale of 1 us and up."""
    steps: NDArray[np.float64] = np.ceil(np.log10(np.maximum(latency_ns, 1000) / 1000) * _STEPS_PER_DECADE)
    return steps.astype(np.int64)


def _upper_ns(step: int) -> float:
    return float(1000 * 10.0 ** (step / _STEPS_PER_DECADE))


def _seconds_of(log: RequestLog) -> Iterator[tuple[int, int]]:
    """Rows that were due in each second of the run."""
    last = int(log.scheduled_ns[-1]) if len(log) else -1
    edges = np.searchsorted(log.scheduled_ns, np.arange(0, last + 10**9 + 1, 10**9))
    for start, end in pairwise(edges):
        yield int(start), int(end)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """The text with an apostrophe before what a spreadsheet would take for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _ms(ns: float) -> float:
    return round(ns / _NS_PER_MS, 4)


def _timeout_ns(record: LoadTestRecord) -> int:
    return round(record.load.timeout_s * 1e9)


def _seconds(record: LoadTestRecord) -> float:
    return record.measurement.duration_s if record.measurement is not None else record.load.duration_s


def _protocol(record: LoadTestRecord) -> str:
    return "HTTP" if record.target.url.startswith("http") else "gRPC"


def _mean_size(record: LoadTestRecord) -> float:
    measured = record.measurement
    return round(measured.bytes_received / measured.requests, 1) if measured and measured.requests else 0.0
