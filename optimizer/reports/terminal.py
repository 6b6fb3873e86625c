"""A recommendation on the terminal: the answer first, then why, at what price, and where the time goes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.records.formats import format_dollars, format_rate
from loadgen.reports.kit import terminal_table
from optimizer.config import OptimizeConfig
from optimizer.reports import tables, text, trial_tables
from optimizer.run.prepare import Prepared
from optimizer.run_file import objective_of, slo_of
from search.labels import runtime_text
from search.records.recommendation import RecommendationRecord


def recommendation_view(found: RecommendationRecord, directory: Path) -> RenderableType:
    """Return the whole answer; its files are in `directory`."""
    shown = (tables.comparison(found), tables.stages(found), tables.frontier(found), trial_tables.seconds(found))
    parts: list[RenderableType] = [_headline(found)]
    for table in shown:
        if table is not None:
            parts += [terminal_table(table), ""]
    seconds = found.seconds
    lines = {
        "Time": None if found.time_use is None else found.time_use.summary,
        "Why": found.reason,
        "Close": " ".join(_accuracy(found)),
        "Spent": f"{seconds.total:.0f} s, of them {seconds.load:.0f} s load and {seconds.loading_models:.0f} s "
        "loading models",
        "Next": found.advice,
        "Serve": f"optimize serve {shlex.quote(str(directory))}",
        "Files": f"{directory}/report.html, recommendation.json, trials.jsonl, {found.repository}",
    }
    parts += [
        Text.assemble((f"{name:<6} ", "bold"), text, overflow="fold") for name, text in lines.items() if text
    ]
    return Group(*parts)


def _accuracy(found: RecommendationRecord) -> Iterator[str]:
    """Yield how close the winner's precision comes to fp32, if that was measured."""
    for record in found.accuracy:
        if not found.winner.config.engine.endswith(f"-{record.precision}") or record.precision == "fp32":
            continue
        close = "equal results" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.0f} dB"
        subject = f"{record.precision} to fp32 on {record.inputs} {record.input_source} inputs"
        yield f"{subject}: {close}. Accuracy on your task takes labelled data."


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
    table.add_row("limit", text.limits_text(slo_of(config)))
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
    certificate, price = found.winner.certificate, found.cost.price
    assert certificate is not None
    head = text.headline(found), "bold green" if certificate.confirmed_again else "bold yellow"
    lines = [Text.assemble(head), *map(Text, filter(None, (*text.lead(found), text.share_of_engine(found))))]
    if found.runtime is not None:
        runtime = runtime_text(found.runtime, found.winner.config.engine.partition("-")[0])
        deployed = ", which the bundle deploys" if found.workload.shared_memory == "none" else ""
        lines.append(Text(f"Measured on {runtime}{deployed}.", style="dim"))
    source = ", ".join(filter(None, (price.describes, price.source, price.as_of)))
    lines.append(Text(f"Price: {format_dollars(price.usd_per_hour)} an hour ({source}).", style="dim"))
    lines += [Text(caveat, style="yellow") for caveat in text.caveats(found)]
    return Panel(Group(*lines), title=Text(found.model.name), title_align="left")
