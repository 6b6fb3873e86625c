"""The record as one self-contained HTML page: nothing is loaded from anywhere, dark and light."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from loadgen.printable import printable
from loadgen.reports import plots, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loadgen.reports.record import CapacityRecord, LoadTestRecord, MeasurementRecord, ServerRecord

Cell = str | tuple[str, str]
"""Text, or text and a CSS class."""


def html_page(record: LoadTestRecord) -> str:
    """The whole page."""
    style = files("loadgen.reports").joinpath("templates/page.css").read_text(encoding="utf-8")
    title = f"{record.target.model_name}: {words.HEADLINES[record.outcome].lower()}"
    sections = [_head(record), _verdict(record), _notices(record), _checks(record), _comparison(record)]
    sections += [plots.distribution(record), plots.over_time(record)]
    if record.measurement is not None:
        sections += [_latency(record.measurement), _traffic(record, record.measurement)]
        if record.measurement.server is not None:
            sections.append(_server(record.measurement, record.measurement.server))
    if record.capacity is not None:
        sections.append(_capacity(record.capacity))
    sections.append(_settings(record))
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style></head>\n<body>\n"
        + "\n".join(part for part in sections if part)
        + "\n</body></html>\n"
    )
    return printable(page, most=len(page), lines=True)


def _head(record: LoadTestRecord) -> str:
    when = f"{record.started_at:%Y-%m-%d %H:%M:%S %Z}"
    version = f", version {record.target.model_version}" if record.target.model_version else ""
    where = f"{record.target.url}, {words.load_in_words(record.load)}, {when}"
    return (
        f"<header><h1>{escape(record.target.model_name + version)}</h1>"
        f'<p class="where">{escape(where)}</p></header>'
    )


def _verdict(record: LoadTestRecord) -> str:
    reasons = "".join(f"<p>{escape(reason)}</p>" for reason in record.reasons)
    headline = words.HEADLINES[record.outcome].capitalize()
    return f'<section class="verdict {record.outcome}"><strong>{headline}</strong>{reasons}</section>'


def _notices(record: LoadTestRecord) -> str:
    problems = () if record.measurement is None else record.measurement.problems
    return "".join(f'<p class="notice">{escape(text)}</p>' for text in (*problems, *record.notes))


def _checks(record: LoadTestRecord) -> str:
    rows: list[Sequence[Cell]] = [
        (
            check.name,
            (check.answer, check.answer),
            words.observed_in_words(check),
            f"{check.violations:,} of {check.requests:,}",
            check.reason,
        )
        for check in record.checks
    ]
    if not rows:
        return ""
    seen = f"seen, with bounds at {100 * record.checks[0].confidence:g} %"
    return _table("Limits", ("limit", "answer", seen, "over it", "why"), rows)


def _comparison(record: LoadTestRecord) -> str:
    rows: list[Sequence[Cell]] = [
        (compared.figure, (compared.answer, compared.answer), words.comparison_in_words(compared))
        for compared in record.comparison
    ]
    return _table(f"Beside {record.baseline}", ("figure", "answer", "change"), rows) if rows else ""


def _latency(measured: MeasurementRecord) -> str:
    figures = {
        "min": measured.latency_min_ms,
        "p50": measured.latency_p50_ms,
        "p90": measured.latency_p90_ms,
        "p95": measured.latency_p95_ms,
        "p99": measured.latency_p99_ms,
        "p99.9": measured.latency_p999_ms,
        "max": measured.latency_max_ms,
        "mean": measured.latency_mean_ms,
    }
    values = [words.ms(value) for value in figures.values()]
    return _table("Latency in ms, from the time each request was due", tuple(figures), [values], numbers=True)


def _traffic(record: LoadTestRecord, measured: MeasurementRecord) -> str:
    rows: list[Sequence[Cell]] = [
        ("Requests", words.traffic_in_words(measured)),
        ("Errors", words.errors_in_words(record)),
        ("Sent, received", f"{words.size(measured.bytes_sent)}, {words.size(measured.bytes_received)}"),
        (
            "Send lag",
            f"p50 {words.ms(measured.send_lag_p50_ms)}, p99 {words.ms(measured.send_lag_p99_ms)} ms after due",
        ),
        (
            "Client CPU",
            f"{words.percent(measured.client_cpu_share)} of a core at most, {measured.client_cpu_s:.2f} s in all",
        ),
    ]
    if (note := words.percentiles_note(measured)) is not None:
        rows.append(("Figures", note))
    if measured.error_example:
        rows.insert(2, ("First error", measured.error_example))
    if measured.gpu is not None and measured.gpu.utilization is not None:
        rows.append(("GPU", f"{words.percent(measured.gpu.utilization)} busy"))
    return _table("Traffic", (), rows)


def _server(measured: MeasurementRecord, server: ServerRecord) -> str:
    stages = {
        "queue": server.queue_ms,
        "input": server.input_ms,
        "infer": server.infer_ms,
        "output": server.output_ms,
        "network and client": measured.network_and_client_ms,
    }
    table = _table(
        "Where the time goes: mean ms of a request",
        tuple(stages),
        [[words.ms(v) for v in stages.values()]],
        numbers=True,
    )
    rows = [
        (
            str(batch.batch_size),
            f"{batch.executions:,}",
            *map(words.ms, (batch.input_ms, batch.infer_ms, batch.output_ms)),
        )
        for batch in server.batches
    ]
    if not rows:
        return table
    mean = "" if server.mean_batch_size is None else f", {server.mean_batch_size:.2f} on average"
    headings = ("batch size", "executions", "input ms", "infer ms", "output ms")
    return table + _table(f"Batches that the server formed{mean}", headings, rows, numbers=True)


def _capacity(found: CapacityRecord) -> str:
    rows = [words.probe_in_words(probe) for probe in found.probes]
    headings = ("requests/s", "seconds", "requests", "over the limit", f"p{100 * found.quantile:g} ms", "answer")
    return _table("The search for the highest rate", headings, rows, numbers=True) if rows else ""


def _settings(record: LoadTestRecord) -> str:
    rows = [
        (name.replace("_", " "), str(value))
        for name, value in record.load.model_dump(mode="json").items()
        if value not in (None, {})
    ]
    if record.target.header_names:
        rows.append(("headers", ", ".join(record.target.header_names) + " (values are not recorded)"))
    if record.target.certificate_checked is not None:
        rows.append(("certificate", "checked" if record.target.certificate_checked else "NOT checked"))
    return _table("Settings", (), rows) + f"<footer>{escape(record.tool)}</footer>"


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, numbers: bool = False) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(_cell(cell, first=not headings and n == 0) for n, cell in enumerate(row))}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if headings else ""
    kind = ' class="numbers"' if numbers else ""
    table = f"<table{kind}>{top}<tbody>{body}</tbody></table>"
    return f'<section><h2>{escape(title)}</h2><div class="scroll">{table}</div></section>'


def _cell(cell: Cell, *, first: bool) -> str:
    if first and isinstance(cell, str):
        return f'<th scope="row">{escape(cell)}</th>'
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    return f'<td class="{escape(cell[1].split()[0])}">{escape(cell[0])}</td>'
