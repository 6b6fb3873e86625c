"""The record of a load test as one page for the browser, and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from loadgen.measurement.streams import GOOD
from loadgen.records.formats import HEADLINES, comparison_in_words, load_in_words
from loadgen.records.record import LoadTestRecord
from loadgen.reports import tables
from loadgen.reports.kit import Data, Plot, Report, Section, Table, nines, page, terminal_table
from loadgen.spec.limits import quantile_name

_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
_STYLES = {
    "met": "bold green",
    "measured": "bold",
    "worse": "bold red",
    "violated": "bold red",
    "inconclusive": "bold yellow",
    "untrustworthy": "bold magenta",
    "interrupted": "bold yellow",
}


def html_page(record: LoadTestRecord) -> str:
    """Return the whole page."""
    headline = HEADLINES[record.outcome].capitalize()
    target = record.target
    model = target.model_name + (f", version {target.model_version}" if target.model_version else "")
    when = f"{record.started_at:%Y-%m-%d %H:%M:%S %Z}"
    problems = () if record.measurement is None else record.measurement.problems
    return page(
        Report(
            title=f"{target.model_name}: {headline.lower()}",
            subject=f"{model} · {target.url} · {load_in_words(record.load)} · {when}",
            headline=headline,
            tone=record.outcome,
            lead=record.reasons,
            caveats=(*problems, *record.notes),
            sections=list(_sections(record)),
            footer=record.tool,
        )
    )


def _sections(record: LoadTestRecord) -> Iterator[Section]:
    yield Section(title="Limits", table=tables.checks(record, reasons=True))
    yield Section(title=f"Compared with {record.baseline}", table=tables.comparison(record.comparison))
    yield Section(
        title="Latency distribution",
        plot=_distribution(record),
        caption="From the time each request was due. Every further nine is as wide as the one before.",
    )
    yield Section(
        title="Latency over time",
        plot=_timeline(record),
        caption="Each stretch of the run by the time its requests were due, and the rate at which they were due.",
    )
    measured = record.measurement
    if measured is not None:
        if measured.streams is not None:
            yield Section(title="Tokens", note=GOOD, table=tables.streams(measured.streams))
        yield Section(title="Latency in ms, from the time each request was due", table=tables.latency(measured))
        yield Section(title="Traffic", table=tables.traffic(record, measured))
        if (server := measured.server) is not None:
            yield Section(title="Where the time goes", table=tables.stages(measured, server))
            mean = "" if server.mean_batch_size is None else f"{server.mean_batch_size:.2f} on average."
            yield Section(title="Batches that the server formed", note=mean, table=tables.batches(server))
    if record.capacity is not None:
        yield Section(title="The search for the highest rate", table=tables.probes(record.capacity))
    yield Section(title="Settings", table=tables.settings(record))


def _distribution(record: LoadTestRecord) -> Plot | None:
    """Latency over the share of requests that were at least so fast; x counts nines."""
    curve = record.curve
    if curve is None or len(curve.quantile) < 3:
        return None
    slowest = curve.quantile[-2]
    points = [
        {
            "role": "this run",
            "label": "this run",
            "nines": nines(min(share, slowest)),
            "name": "slowest" if share == 1 else f"p{100 * share:.6g}",
            "ms": latency_ms,
        }
        for share, latency_ms in zip(curve.quantile, curve.latency_ms, strict=True)
    ]
    ticks = [(nines(share), quantile_name(share)) for share in _TICKS if share <= slowest]
    return "quantiles", {"points": points, "roles": [], "ticks": ticks, "limits": _limits(record)}


def _timeline(record: LoadTestRecord) -> Plot | None:
    """p50, p99, the slowest request and failures of each stretch of the run, and the rate."""
    line = record.timeline
    if line is None:
        return None
    bins = [
        {
            "start": start,
            "middle": start + line.bin_s / 2,
            "end": start + line.bin_s,
            "rate": due,
            "failures": failed,
            "p50": p50,
            "p99": p99,
            "slowest": slowest,
        }
        for start, due, failed, p50, p99, slowest in zip(
            line.start_s, line.due_per_s, line.failures, line.p50_ms, line.p99_ms, line.max_ms, strict=True
        )
    ]
    return "timeline", {"bins": bins, "end": line.start_s[-1] + line.bin_s, "limits": _limits(record)}


def _limits(record: LoadTestRecord) -> list[Data]:
    return [{"ms": check.limit, "name": check.name} for check in record.checks if check.kind == "latency"]


def answer_view(record: LoadTestRecord) -> RenderableType:
    """Return the whole answer, readable at 80 columns: the verdict comes last, where a screen of 24 lines ends."""
    measured, capacity = record.measurement, record.capacity
    shown: list[Table | None] = (
        [] if measured is None else [tables.traffic(record, measured), tables.latency(measured)]
    )
    shown += [None if measured is None or measured.streams is None else tables.streams(measured.streams)]
    shown += [None if capacity is None else tables.probes(capacity), tables.checks(record)]
    parts: list[RenderableType] = []
    for table in shown:
        if table is not None:
            parts += [terminal_table(table), ""]
    problems = () if measured is None else measured.problems
    parts += [Text.assemble(("problem  ", "bold magenta"), problem) for problem in problems]
    parts += [Text.assemble(("note  ", "yellow"), note) for note in record.notes]
    return Group(*parts, _headline(record))


def _headline(record: LoadTestRecord) -> Panel:
    style = _STYLES[record.outcome]
    text = Text.assemble((HEADLINES[record.outcome], style))
    for position, reason in enumerate(record.reasons):
        text.append("\n" if position else "  ").append(reason)
    for compared in record.comparison:
        tone = "bold red" if compared.answer == "worse" else ""
        text.append(f"\n{comparison_in_words(compared)}", style=tone)
    text.append(f"\n{load_in_words(record.load)}", style="dim")
    title = f"{record.target.model_name} at {record.target.url}"
    return Panel(text, title=Text(title, overflow="ellipsis"), title_align="left", border_style=style)
