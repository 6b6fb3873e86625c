"""A recommendation on the terminal: the answer first, then why, at what price, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.records.formats import format_dollars, format_rate
from loadgen.reports import kit
from loadgen.reports.kit import terminal_table
from optimizer.config import OptimizeConfig
from optimizer.reports import tables, trial_tables
from optimizer.reports.text import (
    against_default,
    disturbed_by_others,
    in_rows,
    limits_text,
    share_of_engine,
    unseen_phases,
)
from optimizer.run.prepare import Prepared
from optimizer.run_file import objective_of, slo_of
from search.labels import runtime_text
from search.records.recommendation import RecommendationRecord

SHOWN_LAYERS = 5
"""Layers on the terminal; the record and the page have ten."""


def recommendation_view(found: RecommendationRecord, directory: Path) -> RenderableType:
    """Return the whole answer; its files are in `directory`."""
    parts: list[RenderableType] = [_headline(found)]
    comparison = tables.comparison(found, brief=True)
    for table in (comparison, tables.stages(found), _layers(found), tables.frontier(found)):
        if table is not None:
            parts += [terminal_table(table), ""]
    if found.time_use is not None:
        parts.append(Text.from_markup(f"[bold]Time[/bold]   {escape(found.time_use.summary)}"))
    parts.append(Text.from_markup(f"[bold]Why[/bold]    {escape(found.reason)}"))
    unseen = unseen_phases(found)
    if unseen is not None:
        parts.append(Text.from_markup(f"[bold]Scope[/bold]  {escape(unseen)}"))
    parts += [Text.from_markup(line) for line in _accuracy(found)]
    parts.append(Text.from_markup(_spent(found)))
    where = trial_tables.seconds(found)
    if where is not None:
        parts += [terminal_table(where), ""]
    note = disturbed_by_others(found)
    if note is not None:
        parts.append(Text.from_markup(f"[bold]Note[/bold]   [yellow]{escape(note)}[/yellow]"))
    if found.advice:
        parts.append(Text.from_markup(f"[bold]Next[/bold]   {escape(f'{found.status_reason} {found.advice}')}"))
    repository = directory / found.repository
    parts.append(Text.from_markup(f"[bold]Serve[/bold]  {escape(str(repository))}", overflow="fold"))
    parts.append(
        Text.from_markup(
            f"[bold]Files[/bold]  {escape(str(directory))}/report.html, recommendation.json, trials.jsonl"
        )
    )
    return Group(*parts)


def _layers(found: RecommendationRecord) -> kit.Table | None:
    """The slowest layers of the recommendation's engine."""
    profile = None if found.time_use is None else found.time_use.winner
    table = tables.layers(found)
    if table is None or profile is None or not profile.layers:
        return None
    title = f"slowest of {profile.layer_count} layers, batch {profile.batch_size}"
    rows = tuple(row[1:] for row in table.rows[: min(SHOWN_LAYERS, len(profile.layers))])
    return kit.Table(headings=(title, *table.headings[2:]), rows=rows)


def _accuracy(found: RecommendationRecord) -> Iterator[str]:
    """Yield how close the winner's precision comes to fp32, if that was measured."""
    for record in found.accuracy:
        if not found.winner.config.engine.endswith(f"-{record.precision}") or record.precision == "fp32":
            continue
        close = "equal results" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.0f} dB"
        subject = escape(f"{record.precision} to fp32 on {record.inputs} {record.input_source} inputs")
        yield (f"[bold]Close[/bold]  {subject}: {close}. Accuracy on your task takes labelled data.")


def plan_view(prepared: Prepared, config: OptimizeConfig) -> RenderableType:
    """Return the plan of a run, for `--dry-run`."""
    space, machine = prepared.space, prepared.machine
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("model", f"{prepared.model.name} (opset {prepared.source.opset})")
    table.add_row("batching", prepared.batching.reason)
    for tensor in prepared.engines[0].inputs:
        table.add_row("input", f"{tensor.name} {tensor.datatype} {list(tensor.concrete_shape or tensor.shape)}")
    table.add_row("limit", limits_text(slo_of(config)))
    if config.objective != "cost":
        rate = objective_of(config).rate_per_s
        at = "" if rate is None else f" at {format_rate(rate)} requests/s a replica"
        table.add_row("objective", f"the lowest {config.objective}{at}")
    table.add_row("traffic", _traffic(config, config.client_batch * prepared.model.fixed_rows))
    table.add_row("machine", f"{machine.cpu}, {machine.logical_cores} cores" + _gpus(prepared))
    table.add_row("price", f"{format_dollars(prepared.price.usd_per_hour)} an hour: {prepared.price.describes}")
    table.add_row("server", config.server)
    for name, values in space.axes().items():
        table.add_row(name.replace("_", " "), ", ".join(str(value) for value in values))
    table.add_row("configurations", f"{space.size()}, of which a part is tried")
    table.add_row(
        "time", f"at most {config.time_budget_s:g} s; about 3 s for a trial that cannot win, 15 for others"
    )
    table.add_row("output", str(config.output))
    return table


def _traffic(config: OptimizeConfig, rows: int) -> str:
    arrivals = config.arrivals if config.trace is None else f"trace {config.trace.name}"
    return f"{arrivals}, {rows} row{'s' if rows > 1 else ''} a request"


def _gpus(prepared: Prepared) -> str:
    return "".join(f", {gpu.name}" for gpu in prepared.machine.gpus)


def _headline(found: RecommendationRecord) -> Panel:
    certificate = found.winner.certificate
    assert certificate is not None
    slo = " and ".join(f"{limit.name} {limit.limit_ms:g} ms" for limit in found.slo.limits)
    cost = format_dollars(found.cost.cost_per_million_inferences_usd)
    colour = "green" if certificate.confirmed_again else "yellow"
    rate = f"[bold {colour}]{format_rate(certificate.rate_per_s)} requests/s[/bold {colour}]"
    lines = [f"{rate} within {slo}, {cost} per million"]
    if not certificate.confirmed_again:
        lines.append("[yellow]Provisional: certified once, and not a second time; see below[/yellow]")
    if found.workload.text:
        lines.append(escape(f"for {found.workload.text}"))
    lines += filter(None, [in_rows(found)])
    if found.runtime is not None:
        runtime = runtime_text(found.runtime, found.winner.config.engine.partition("-")[0])
        deployed = ", which the bundle deploys" if found.workload.shared_memory == "none" else ""
        lines.append(escape(f"measured on {runtime}{deployed}"))
    of_engine = share_of_engine(found)
    if of_engine is not None:
        text, far_below = of_engine
        lines.append(f"[yellow]only {text}[/yellow]" if far_below else text)
    against = against_default(found)
    if against is not None:
        lines.append(against)
    elif found.gain is not None and found.baseline is not None:
        lines.append(f"{_gain_text(found.gain)} (Triton's default configuration)")
    if found.cost.replicas is not None and found.cost.total_usd_per_hour is not None:
        lines.append(
            f"{format_rate(found.cost.rate_to_serve_per_s)} requests/s need {found.cost.replicas} "
            f"replica{'s' if found.cost.replicas > 1 else ''}: "
            f"{format_dollars(found.cost.total_usd_per_hour)} an hour"
        )
    price = found.cost.price
    source = ", ".join(filter(None, (price.source, price.as_of)))
    lines.append(
        f"[dim]{format_dollars(price.usd_per_hour)} an hour: {escape(price.describes)} ({escape(source)})[/dim]"
    )
    return Panel(Text.from_markup("\n".join(lines)), title=escape(found.model.name), title_align="left")


def _spent(found: RecommendationRecord) -> str:
    seconds = found.seconds
    return (
        f"[bold]Spent[/bold]  {seconds.total:.0f} s: {seconds.load:.0f} s of load, "
        f"{seconds.loading_models:.0f} s loading models, {seconds.other:.0f} s else "
        f"({100 * (seconds.load + seconds.loading_models) / max(seconds.total, 1e-9):.0f} % load or loading)"
    )


def _gain_text(gain: float) -> str:
    if gain >= 1.005:
        return f"{gain:.2f} times the rate of the baseline"
    return "no better than the baseline"
