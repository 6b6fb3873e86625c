"""The record of a load test as one page for the browser, and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from loadgen.measurement.streams import GOOD
from loadgen.records.formats import comparison_in_words, format_rate, load_in_words
from loadgen.records.record import CapacityRecord, CurveRecord, LoadTestRecord, TimelineRecord
from loadgen.reports import tables
from loadgen.reports.kit import TONES, Data, Plot, Report, Section, Table, nines, page, terminal_table
from loadgen.spec.limits import quantile_name

_DECIDED = {
    "met": "met",
    "confirmed": "met",
    "violated": "violated",
    "overloaded": "violated",
    "client late": "not trusted",
}
_DUE = "From the time each request was due."
_OF_TOKENS = {
    "ttft": ("Time to first token (TTFT)", _DUE),
    "tpot": ("Time per token (TPOT)", "From the first token to the last, per token after the first."),
}
_PHASES = "By the time at which requests were due; p99 is that of answers."
_LEAST_MS = 1e-3  # axes are logarithmic, and tokens of one write have no time between them
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


def html_page(record: LoadTestRecord) -> str:
    """Return the whole page."""
    headline = record.outcome.capitalize()
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
    measured = record.measurement
    if record.capacity is not None:
        yield _capacity(record.capacity)
    yield from _curves(record)
    if measured is not None:
        if measured.streams is not None:
            yield Section(title="Tokens", note=GOOD, table=tables.streams(measured.streams))
        yield Section(title="Phases of the load", note=_PHASES, table=tables.phases(record))
        yield Section(title="Latency in ms, from the time each request was due", table=tables.latency(measured))
        yield Section(title="Traffic", table=tables.traffic(record, measured))
        if (server := measured.server) is not None:
            yield Section(title="Where the time goes", table=tables.stages(measured, server))
            mean = "" if server.mean_batch_size is None else f"{server.mean_batch_size:.2f} on average."
            yield Section(title="Batches that the server formed", note=mean, table=tables.batches(server))
    if record.capacity is not None:
        yield Section(title="Every load of the search", table=tables.probes(record.capacity))
    yield Section(title="Settings", table=tables.settings(record))


def _capacity(found: CapacityRecord) -> Section:
    """Return every load of the search by its rate: the limit's quantile, or the share of good streams."""
    unit = "good requests, %" if found.limit_ms is None else f"{quantile_name(found.quantile)}, ms"
    loads = [
        {
            "rate": one.rate_per_s,
            "value": 100 * (1 - one.violations / one.requests) if found.limit_ms is None else one.latency_ms,
            "decided": _DECIDED.get(one.answer, "inconclusive"),
            "confirms": one.confirms,
            "words": f"{one.answer}, {one.violations:,} of {one.requests:,} over the limit",
        }
        for one in found.probes
        if one.requests
    ]
    limit = 100 * found.quantile if found.limit_ms is None else found.limit_ms
    data = {
        "loads": loads,
        "unit": unit,
        "log": found.limit_ms is not None,
        "limits": [] if found.limit is None else [{"ms": limit, "name": found.limit}],
        "confirmed": []
        if (rate := found.certified_rate_per_s) is None
        else [{"rate": rate, "name": f"{format_rate(rate)}/s confirmed"}],
    }
    beyond = any(one["value"] is None for one in loads)
    return Section(
        title="The search for the highest rate",
        plot=("capacity", data) if loads else None,
        caption="Each load by its rate. Probes are short, and most are inconclusive; a confirmation has new load."
        + (" Marks at the upper edge: so many requests failed that there is no such time." if beyond else ""),
    )


def _curves(record: LoadTestRecord) -> Iterator[Section]:
    """Yield the distribution of each time that limits can be about, and the time over the run."""
    last = ""
    if record.capacity is not None and record.measurement is not None:
        last = f" The last load, of {format_rate(record.measurement.planned_rate_per_s)}/s."
    whole = "Whole replies" if record.token_times else "Latency"
    times: list[tuple[str, str, str, CurveRecord | None, TimelineRecord | None]] = [
        (measure, *_OF_TOKENS[measure], one.curve, one.timeline) for measure, one in record.token_times.items()
    ]
    times.append(("latency", whole, _DUE, record.curve, record.timeline))
    for position, (kind, name, about, curve, line) in enumerate(times):
        limits = _limits(record, kind)
        yield Section(title=f"{name}: distribution", plot=_distribution(kind, curve, limits), caption=about + last)
        rated = position == 0
        yield Section(
            title=f"{name}: over time",
            plot=_timeline(kind, line, limits, rated=rated),
            caption=f"By the time at which requests were due{', with their rate' if rated else ''}.",
        )


def _distribution(kind: str, curve: CurveRecord | None, limits: list[Data]) -> Plot | None:
    """Latency over the share of requests that were at least so fast; x counts nines."""
    if curve is None or len(curve.quantile) < 3:
        return None
    slowest = curve.quantile[-2]
    points = [
        {
            "role": "this run",
            "label": "this run",
            "nines": nines(min(share, slowest)),
            "name": "slowest" if share == 1 else f"p{100 * share:.6g}",
            "ms": max(latency_ms, _LEAST_MS),
        }
        for share, latency_ms in zip(curve.quantile, curve.latency_ms, strict=True)
    ]
    ticks = [(nines(share), quantile_name(share)) for share in _TICKS if share <= slowest]
    if len(ticks) < 2:
        ticks.append((nines(slowest), f"p{100 * slowest:.3g}"))
    return f"quantiles:{kind}", {"points": points, "roles": [], "ticks": ticks, "limits": limits}


def _timeline(kind: str, line: TimelineRecord | None, limits: list[Data], *, rated: bool) -> Plot | None:
    """p50, p99, the slowest request and failures of each stretch of the run, and the rate."""
    if line is None:
        return None
    bins = [
        {
            "start": start,
            "middle": start + line.bin_s / 2,
            "end": start + line.bin_s,
            "rate": due,
            "good": good,
            "failures": failed,
            **{
                name: None if ms is None else max(ms, _LEAST_MS)
                for name, ms in (("p50", p50), ("p99", p99), ("slowest", slowest))
            },
        }
        for start, due, good, failed, p50, p99, slowest in zip(
            line.start_s,
            line.due_per_s,
            line.good_per_s or (None,) * len(line.start_s),
            line.failures,
            line.p50_ms,
            line.p99_ms,
            line.max_ms,
            strict=True,
        )
    ]
    end = line.start_s[-1] + line.bin_s
    return f"timeline:{kind}", {"bins": bins, "end": end, "limits": limits, "rated": rated}


def _limits(record: LoadTestRecord, kind: str) -> list[Data]:
    """Return the limits on this time; if none was tested, the one that a good request keeps."""
    limits = [{"ms": check.limit, "name": check.name} for check in record.checks if check.kind == kind]
    good = record.load.good_within_ms.items()
    return limits or [
        {"ms": limit_ms, "name": f"good: {measure.upper()} <= {limit_ms:g} ms"}
        for measure, limit_ms in good
        if kind == ("latency" if measure == "e2e" else measure)
    ]


def answer_view(record: LoadTestRecord) -> RenderableType:
    """Return the whole answer, readable at 80 columns: the verdict comes last, where a screen of 24 lines ends."""
    measured, capacity = record.measurement, record.capacity
    shown: list[Table | None] = (
        [] if measured is None else [tables.traffic(record, measured), tables.latency(measured)]
    )
    shown += [None if measured is None or measured.streams is None else tables.streams(measured.streams)]
    shown += [tables.phases(record), None if capacity is None else tables.probes(capacity), tables.checks(record)]
    parts: list[RenderableType] = []
    for table in shown:
        if table is not None:
            parts += [terminal_table(table), ""]
    problems = () if measured is None else measured.problems
    parts += [Text.assemble(("problem  ", "bold magenta"), problem) for problem in problems]
    parts += [Text.assemble(("note  ", "yellow"), note) for note in record.notes]
    return Group(*parts, _headline(record))


def _headline(record: LoadTestRecord) -> Panel:
    style = f"bold {TONES.get(record.outcome, '')}".rstrip()
    text = Text.assemble((record.outcome.upper(), style))
    for position, reason in enumerate(record.reasons):
        text.append("\n" if position else "  ").append(reason)
    for compared in record.comparison:
        tone = "bold red" if compared.answer == "worse" else ""
        text.append(f"\n{comparison_in_words(compared)}", style=tone)
    text.append(f"\n{load_in_words(record.load)}", style="dim")
    title = f"{record.target.model_name} at {record.target.url}"
    return Panel(text, title=Text(title, overflow="ellipsis"), title_align="left", border_style=style)
