"""The answer on the terminal: the verdict first, then the figures it stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.reports import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from loadgen.reports.record import CapacityRecord, LoadTestRecord, MeasurementRecord, ServerRecord

_STYLES = {
    "kept": "bold green",
    "measured": "bold",
    "worse": "bold red",
    "broken": "bold red",
    "undecided": "bold yellow",
    "untrustworthy": "bold magenta",
    "interrupted": "bold yellow",
}
MOST_OF_AN_ERROR = 240  # characters
_ANSWER_STYLES = {"kept": "green", "broken": "red", "undecided": "yellow"}


def answer_view(record: LoadTestRecord) -> RenderableType:
    """The whole answer, readable at 80 columns."""
    parts: list[RenderableType] = [_headline(record)]
    if record.checks:
        parts += [_checks(record), ""]
    if record.capacity is not None and record.capacity.probes:
        parts += [_capacity(record.capacity), ""]
    if record.measurement is not None:
        parts += [_latency(record.measurement), "", _figures(record, record.measurement)]
    return Group(*parts)


def _headline(record: LoadTestRecord) -> Panel:
    style = _STYLES[record.outcome]
    text = Text()
    text.append(words.HEADLINES[record.outcome], style=style)
    for number, reason in enumerate(record.reasons):
        text.append("  " if number == 0 else "\n")
        text.append(reason)
    for compared in record.comparison:
        text.append(
            f"\n{words.comparison_in_words(compared)}", style="bold red" if compared.answer == "worse" else ""
        )
    text.append(f"\n{words.load_in_words(record.load)}", style="dim")
    title = f"{record.target.model_name} at {record.target.url}"
    return Panel(text, title=Text(title, overflow="ellipsis"), title_align="left", border_style=style)


def _checks(record: LoadTestRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in (
        "limit",
        "answer",
        f"seen (bounds at {100 * record.checks[0].confidence:g} %)",
        "over the limit",
    ):
        table.add_column(heading)
    for check in record.checks:
        over = f"{check.violations:,} of {check.requests:,}" if check.requests else words.UNKNOWN
        table.add_row(
            check.name,
            Text(check.answer, style=_ANSWER_STYLES[check.answer]),
            words.observed_in_words(check),
            over,
        )
    return table


def _latency(measured: MeasurementRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("latency ms")
    for name in ("p50", "p90", "p95", "p99", "p99.9", "max", "mean"):
        table.add_column(name, justify="right", style="bold" if name == "p99" else "")
    values = (
        measured.latency_p50_ms,
        measured.latency_p90_ms,
        measured.latency_p95_ms,
        measured.latency_p99_ms,
        measured.latency_p999_ms,
        measured.latency_max_ms,
        measured.latency_mean_ms,
    )
    table.add_row("from due time", *(words.ms(value) for value in values))
    return table


def _figures(record: LoadTestRecord, measured: MeasurementRecord) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("requests", words.traffic_in_words(measured))
    table.add_row("errors", Text(words.errors_in_words(record), style="red" if measured.failures else ""))
    if measured.error_example:
        table.add_row("", Text(measured.error_example[:MOST_OF_AN_ERROR], style="dim"))
    if measured.server is not None:
        table.add_row("server", _server_text(measured.server))
        table.add_row("outside it", f"{words.ms(measured.network_and_client_ms)} ms in network and client, mean")
    if measured.gpu is not None and measured.gpu.utilization is not None:
        table.add_row("GPU", f"{words.percent(measured.gpu.utilization)} busy")
    table.add_row(
        "client",
        f"send lag p50 {words.ms(measured.send_lag_p50_ms)}, p99 {words.ms(measured.send_lag_p99_ms)} ms; busiest "
        f"process {words.percent(measured.client_cpu_share)} of a core",
    )
    if (note := words.percentiles_note(measured)) is not None:
        table.add_row("figures", note)
    for problem in measured.problems:
        table.add_row(Text("problem", style="bold magenta"), Text(problem))
    for note in record.notes:
        table.add_row(Text("note", style="yellow"), Text(note))
    return table


def _server_text(server: ServerRecord) -> str:
    batch = "" if server.mean_batch_size is None else f"; batches of {server.mean_batch_size:.2f}"
    return (
        f"queue {words.ms(server.queue_ms)}, input {words.ms(server.input_ms)}, "
        f"infer {words.ms(server.infer_ms)}, output {words.ms(server.output_ms)} ms{batch}"
    )


def _capacity(found: CapacityRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("rate/s", "seconds", "requests", "over the limit", f"p{100 * found.quantile:g} ms"):
        table.add_column(heading, justify="right")
    table.add_column("answer")
    for probe in found.probes:
        table.add_row(*words.probe_in_words(probe))
    return table
