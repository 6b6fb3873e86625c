"""A recommendation on the terminal: the answer first, then why, at what price, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from optimizer.time_view import layer_parts, time_table
from search.neighbours import mark_of
from search.words import memory_text, quantile_name, record_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from loadgen.order import LatencyLimit
    from optimizer.config import OptimizeConfig
    from optimizer.prepare import Prepared
    from search.records import (
        RecommendationRecord,
        Slo,
        TrialRecord,
    )

UNKNOWN = "-"


def recommendation_view(found: RecommendationRecord, directory: Path) -> RenderableType:
    """The whole answer; `directory` is where its files lie."""
    parts: list[RenderableType] = [_headline(found), _comparison(found), "", time_table(found), ""]
    if found.time_use is not None:
        parts += [*layer_parts(found.time_use), ""]
    if found.frontier:
        parts += [_frontier(found), ""]
    parts.append(Text.from_markup(f"[bold]Why[/bold]    {escape(found.reason)}"))
    parts += [Text.from_markup(line) for line in _accuracy(found)]
    parts.append(Text.from_markup(_spent(found)))
    beside = disturbed_by_others(found)
    if beside is not None:
        parts.append(Text.from_markup(f"[bold]Note[/bold]   [yellow]{escape(beside)}[/yellow]"))
    repository = directory / found.repository
    parts.append(Text.from_markup(f"[bold]Serve[/bold]  {escape(str(repository))}", overflow="fold"))
    parts.append(
        Text.from_markup(
            f"[bold]Files[/bold]  {escape(str(directory))}/report.html, recommendation.json, trials.jsonl"
        )
    )
    return Group(*parts)


def _accuracy(found: RecommendationRecord) -> Iterator[str]:
    """How close the winner's precision comes to fp32, where that was judged."""
    for record in found.accuracy:
        if not found.winner.config.engine.endswith(f"-{record.precision}") or record.precision == "fp32":
            continue
        close = "equal results" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.0f} dB"
        what = escape(f"{record.precision} to fp32 on {record.inputs} {record.input_source} inputs")
        yield (f"[bold]Close[/bold]  {what}: {close}. Accuracy on your task takes labelled data.")


def plan_view(prepared: Prepared, config: OptimizeConfig) -> RenderableType:
    """What a run would do, for `--dry-run`."""
    space, machine = prepared.space, prepared.machine
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("model", f"{prepared.model.name} (opset {prepared.source.opset})")
    table.add_row("batching", prepared.batching.reason)
    for tensor in prepared.engines[0].inputs:
        table.add_row("input", f"{tensor.name} {tensor.datatype} {list(tensor.concrete_shape or tensor.shape)}")
    table.add_row("limit", promise_text(config.slo))
    if config.objective != "cost":
        at = "" if config.aim.rate_per_s is None else f" at {config.aim.rate_per_s:,.4g} requests/s a replica"
        table.add_row("objective", f"the lowest {config.objective}{at}")
    table.add_row("traffic", _traffic(config))
    table.add_row("machine", f"{machine.cpu}, {machine.logical_cores} cores" + _gpus(prepared))
    table.add_row("price", f"{dollars(prepared.price.usd_per_hour)} an hour: {prepared.price.describes}")
    table.add_row("server", config.server)
    for name, values in space.axes().items():
        table.add_row(name.replace("_", " "), ", ".join(str(value) for value in values))
    table.add_row("configurations", f"{space.size()}, of which a part is tried")
    table.add_row(
        "time", f"at most {config.time_budget_s:g} s; about 3 s for a trial that cannot win, 15 for others"
    )
    table.add_row("output", str(config.output))
    return table


def _traffic(config: OptimizeConfig) -> str:
    arrivals = config.arrivals if config.trace is None else f"trace {config.trace.name}"
    rows = config.client_batch
    return f"{arrivals}, {rows} row{'s' if rows > 1 else ''} a request"


def _gpus(prepared: Prepared) -> str:
    return "".join(f", {gpu.name}" for gpu in prepared.machine.gpus)


def _headline(found: RecommendationRecord) -> Panel:
    certificate = found.winner.certificate
    assert certificate is not None
    promise = " and ".join(f"{limit.name} {limit.limit_ms:g} ms" for limit in found.slo.limits)
    cost = dollars(found.cost.cost_per_million_inferences_usd)
    colour = "green" if certificate.confirmed_again else "yellow"
    rate = f"[bold {colour}]{certificate.rate_per_s:,.0f} requests/s[/bold {colour}]"
    lines = [f"{rate} within {promise}, {cost} per million"]
    if not certificate.confirmed_again:
        lines.append("[yellow]Not a firm promise: it was certified once, and not again; see below[/yellow]")
    if found.demand.text:
        lines.append(escape(f"for {found.demand.text}"))
    beside = against_default(found)
    if beside is not None:
        lines.append(beside)
    elif found.gain is not None and found.baseline is not None:
        lines.append(f"{_gain_text(found.gain)} (Triton's default configuration)")
    if found.cost.replicas is not None and found.cost.total_usd_per_hour is not None:
        lines.append(
            f"{found.cost.rate_to_serve_per_s:,.0f} requests/s need {found.cost.replicas} "
            f"replica{'s' if found.cost.replicas > 1 else ''}: "
            f"{dollars(found.cost.total_usd_per_hour)} an hour"
        )
    price = found.cost.price
    source = ", ".join(filter(None, (price.source, price.as_of)))
    lines.append(f"[dim]{dollars(price.usd_per_hour)} an hour: {escape(price.describes)} ({escape(source)})[/dim]")
    return Panel(Text.from_markup("\n".join(lines)), title=escape(found.model.name), title_align="left")


def _comparison(found: RecommendationRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("recommended", style="bold")
    shown = [found.winner]
    if found.baseline is not None and found.baseline.number != found.winner.number:
        table.add_column("Triton default")
        shown.append(found.baseline)
    for name, value in _ROWS:
        first = f"{found.slo.limits[0].name} at that rate"
        table.add_row(first if value is _p99_text else name, *(value(trial) for trial in shown))
        if value is _p99_text:
            for limit in found.slo.further:
                table.add_row(f"{limit.name} at that rate", *(_further_text(trial, limit) for trial in shown))
    if found.slo.max_memory_bytes is not None:
        table.add_row(f"memory (limit {memory_text(found.slo.max_memory_bytes)})", *map(_memory_text, shown))
    costs = [dollars(found.cost.cost_per_million_inferences_usd)]
    if len(shown) > 1:
        other = found.cost.baseline_cost_per_million_inferences_usd
        costs.append(UNKNOWN if other is None else dollars(other))
    table.add_row("cost per million", *costs)
    return table


def _rate_text(trial: TrialRecord) -> str:
    if trial.certificate is not None:
        return f"{trial.certificate.rate_per_s:,.0f}/s certified"
    return UNKNOWN if trial.rate_at_limit_per_s is None else "not certified"


def _edge_text(trial: TrialRecord) -> str:
    """Where the search saw the limit break: beside a certified rate, so that two rates of one kind compare."""
    return UNKNOWN if trial.rate_at_limit_per_s is None else f"about {trial.rate_at_limit_per_s:,.0f}/s"


def _p99_text(trial: TrialRecord) -> str:
    certificate = trial.certificate
    if certificate is None:
        return UNKNOWN
    return (
        f"{certificate.p99_ms:.1f} ms ({certificate.p99_low_ms:.1f} to {certificate.p99_high_ms:.1f} "
        f"at {100 * certificate.confidence:.3g} %)"
    )


def _further_text(trial: TrialRecord, limit: LatencyLimit) -> str:
    also = () if trial.certificate is None else trial.certificate.also
    seen = next((seen for seen in also if seen.quantile == limit.quantile), None)
    if seen is None:
        return UNKNOWN
    return f"{seen.latency_ms:.1f} ms ({seen.latency_low_ms:.1f} to {seen.latency_high_ms:.1f})"


def _memory_text(trial: TrialRecord) -> str:
    return UNKNOWN if trial.memory_bytes is None else memory_text(trial.memory_bytes)


def _tested_text(trial: TrialRecord) -> str:
    certificate = trial.certificate
    if certificate is None:
        return UNKNOWN
    caveat = f"; {certificate.caveat}" if certificate.caveat else ""
    return (
        f"{certificate.requests:,} requests, {certificate.violations:,} over the limit, "
        f"{certificate.runs} run{'s' if certificate.runs > 1 else ''}{caveat}"
    )


_ROWS = (
    ("engine", lambda trial: trial.config.engine),
    ("max batch size", lambda trial: str(trial.config.max_batch_size or "no batching")),
    ("instances", lambda trial: str(trial.config.instance_count)),
    ("threads each", lambda trial: str(trial.config.intra_op_threads or "all cores")),
    (
        "queue delay",
        lambda trial: f"{trial.config.max_queue_delay_us / 1000:g} ms" if trial.config.dynamic_batching else "-",
    ),
    ("limit breaks at", _edge_text),
    ("sustained rate", _rate_text),
    ("latency at that rate", _p99_text),
    ("tested with", _tested_text),
)


def _frontier(found: RecommendationRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("frontier (none beats it)", justify="right")
    table.add_column(found.slo.limits[0].name, justify="right")
    for heading in ("trial", "configuration", ""):
        table.add_column(heading)
    for point in found.frontier:
        knobs = record_text(point.config, on_gpu=bool(found.machine.gpus))
        table.add_row(
            f"{point.rate_per_s:,.0f}/s",
            f"{point.latency_ms:.1f} ms",
            str(point.trial),
            knobs,
            "certified" if point.certified else "short run",
        )
    return table


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


def against_default(found: RecommendationRecord) -> str | None:
    """Latency or energy beside that of Triton's default, where one of them was asked for; None where cost was."""
    default = "Triton's default configuration"
    if found.objective.name == "latency":
        winner = found.winner.certificate
        baseline = None if found.baseline is None else found.baseline.certificate
        assert winner is not None
        latency = f"{quantile_name(winner.quantile)} {winner.p99_ms:.1f} ms"
        if found.baseline is not None and found.baseline.number == found.winner.number:
            return f"{latency}, with {default}"
        if baseline is None:
            return f"{latency}; {default} is not certified at that rate"
        return f"{latency} instead of {baseline.p99_ms:.1f} ms of {default}"
    cost = found.cost
    mine, other = cost.energy_kwh_per_million_inferences, cost.baseline_energy_kwh_per_million_inferences
    if found.objective.name == "cost" or mine is None:
        return None
    instead = "" if other is None else f" instead of {other:.3g} kWh of {default}"
    return f"{mine:.3g} kWh per million inferences, of the GPUs alone{instead}"


def disturbed_by_others(found: RecommendationRecord) -> str | None:
    """What others took of the processors, and what follows; None where it is not worth a word."""
    for trial, what in (
        (found.winner, "while this rate was certified: the promise may be lower than this machine can keep"),
        (found.baseline, "while Triton's default was certified: the gain may be smaller than it looks"),
    ):
        mark = None if trial is None or trial.certificate is None else mark_of(trial.certificate.neighbours)
        if mark is not None:
            return f"{mark[0].upper()}{mark[1:]} {what}."
    mark = mark_of(found.neighbours)
    if mark is None:
        return None
    return f"{mark[0].upper()}{mark[1:]} in all: on a quiet machine another configuration may be better."


def promise_text(slo: Slo) -> str:
    """`p99 within 50 ms`, the other limits, and what memory it may take."""
    return slo.text if slo.max_memory_bytes is None else f"{slo.text} in {memory_text(slo.max_memory_bytes)}"


def dollars(amount: float) -> str:
    """An amount with three significant digits at least: $0.0123, $4.50, $1,234.00."""
    if 0 < amount < 1:
        digits = 2
        while amount * 10**digits < 100 and digits < 9:
            digits += 1
        return f"${amount:.{digits}f}"
    return f"${amount:,.2f}"
