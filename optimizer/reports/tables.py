"""The report's tables as text, with what to sort them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizer.reports import words
from optimizer.reports.plots import LEAST_REPLICAS
from optimizer.reports.words import KNOBS, UNKNOWN
from optimizer.time_words import BOUND_WORDS, stage_means
from search.neighbours import mark_of
from search.words import memory_text, record_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optimizer.reports.evidence import Evidence
    from search.records import TrialRecord

HOURS_A_MONTH = 730


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown; `order` is what it is sorted by where that is not the text."""

    text: str
    order: float | None = None
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headings. The first column names the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False


def number(value: float | None, show: Callable[[float | None], str]) -> Cell:
    """A figure that sorts as one; what is not known comes last."""
    return Cell(text=show(value), order=value, style="number")


def comparison(evidence: Evidence) -> Table | None:
    """The recommendation beside Triton's default: knobs, promise, money."""
    found = evidence.found
    if found is None:
        return None
    shown = [found.winner] if evidence.baseline is None else [found.winner, evidence.baseline]
    costs = [found.cost.cost_per_million_inferences_usd, found.cost.baseline_cost_per_million_inferences_usd]
    energies = [
        found.cost.energy_kwh_per_million_inferences,
        found.cost.baseline_energy_kwh_per_million_inferences,
    ]
    first = f"{found.slo.limits[0].name} at that rate"
    rows = [(name.format(latency=first), [value(trial) for trial in shown]) for name, value in _FIGURES]
    if found.slo.max_memory_bytes is not None:
        rows.append(("server's memory", [_memory(trial) for trial in shown]))
    if any(trial.measurement is not None and trial.measurement.gpu is not None for trial in shown):
        rows.append(("GPUs meanwhile", [_gpu(trial) for trial in shown]))
    marks = [None if trial.certificate is None else mark_of(trial.certificate.neighbours) for trial in shown]
    if any(marks):
        rows.append(("meanwhile", [mark or "nothing else took much of the processors" for mark in marks]))
    rows.append(("cost per million", [words.money(usd) for usd in costs[: len(shown)]]))
    if any(energy is not None for energy in energies):
        texts = [UNKNOWN if energy is None else f"{energy:.3g} kWh" for energy in energies[: len(shown)]]
        rows.append(("energy per million, GPUs alone", texts))
    return _named_rows(("", "recommended", "Triton default")[: len(shown) + 1], rows)


def _rate(trial: TrialRecord) -> str:
    if trial.certificate is not None:
        return f"{words.rate(trial.certificate.rate_per_s)}/s"
    return f"not certified; about {words.rate(trial.rate_at_limit_per_s)}/s"


def _gpu(trial: TrialRecord) -> str:
    gpu = None if trial.measurement is None else trial.measurement.gpu
    if gpu is None:
        return UNKNOWN
    busy = [] if gpu.utilization is None else [f"{100 * gpu.utilization:.0f} % busy"]
    power = [] if gpu.power_w is None else [f"{gpu.power_w:,.0f} W"]
    memory = [] if gpu.memory_used_bytes is None else [f"{gpu.memory_used_bytes / 2**30:.1f} GiB"]
    return ", ".join([*busy, *power, *memory]) or UNKNOWN


def _memory(trial: TrialRecord) -> str:
    return UNKNOWN if trial.memory_bytes is None else memory_text(trial.memory_bytes)


def _tested(trial: TrialRecord) -> str:
    seen = trial.certificate
    if seen is None:
        return UNKNOWN
    plural = "s" if seen.runs > 1 else ""
    return f"{seen.requests:,} requests, {seen.violations:,} over the limit, in {seen.runs} run{plural}"


_FIGURES: Sequence[tuple[str, Callable[[TrialRecord], str]]] = (
    ("certified rate", _rate),
    ("{latency}", lambda t: UNKNOWN if t.certificate is None else words.certified_p99(t.certificate)),
    ("tested with", _tested),
    (KNOBS["engine"], lambda t: t.config.engine),
    (KNOBS["max_batch_size"], lambda t: str(t.config.max_batch_size or "no batching")),
    (KNOBS["instance_count"], lambda t: str(t.config.instance_count)),
    (KNOBS["intra_op_threads"], lambda t: str(t.config.intra_op_threads or "all cores")),
    (
        KNOBS["max_queue_delay_us"],
        lambda t: f"{t.config.max_queue_delay_us / 1000:g} ms" if t.config.dynamic_batching else UNKNOWN,
    ),
)


def stages(evidence: Evidence) -> Table | None:
    """Mean ms by stage, as the plot of it has them."""
    found = evidence.found
    if found is None or found.winner.measurement is None:
        return None
    shown = [found.winner.measurement]
    if evidence.baseline is not None and evidence.baseline.measurement is not None:
        shown.append(evidence.baseline.measurement)
    columns = [stage_means(measured) for measured in shown]
    known = [stage for stage in columns[0] if stage != "response" or any(column[stage] for column in columns)]
    rows = [(stage, [words.ms(column[stage]) for column in columns]) for stage in known]
    sizes = [None if measured.server is None else measured.server.mean_batch_size for measured in shown]
    rows.append(("mean batch size", [words.ms(size) for size in sizes]))
    return _named_rows(("mean ms of a request", "recommended", "Triton default")[: len(shown) + 1], rows)


def layers(evidence: Evidence) -> Table | None:
    """The slowest layers of the recommendation's engine, and of the default's where that is another one."""
    used = None if evidence.found is None else evidence.found.time_use
    if used is None:
        return None
    profiles = [("recommended", used.winner)]
    if used.baseline != used.winner:
        profiles.append(("Triton default", used.baseline))
    rows = tuple(
        (
            Cell(text=role),
            Cell(text=layer.name),
            Cell(text=layer.operator),
            number(layer.mean_ms, words.ms),
            number(100 * layer.share, lambda value: f"{value:.1f} %"),
            Cell(text=BOUND_WORDS[layer.bound]),
        )
        for role, profile in profiles
        if profile is not None
        for layer in profile.layers
    )
    headings = ("engine", "layer", "operator", "ms an execution", "of all layers", "bound by")
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def frontier(evidence: Evidence) -> Table | None:
    """What no other run beat in rate and latency; None where it was not asked for."""
    found = evidence.found
    if found is None or not found.frontier:
        return None
    rows = tuple(
        (
            number(point.rate_per_s, words.rate),
            number(point.latency_ms, words.ms),
            number(point.trial, lambda value: f"{value:.0f}"),
            Cell(text=record_text(point.config, on_gpu=evidence.on_gpu)),
            Cell(text="certified" if point.certified else "one short run"),
        )
        for point in found.frontier
    )
    headings = ("requests/s", f"{found.slo.limits[0].name} ms", "trial", "configuration", "")
    return Table(headings=headings, rows=rows, sortable=True)


def trials(evidence: Evidence) -> Table:
    """Every trial, what came of it and why."""
    return Table(
        headings=("trial", "configuration", "state", "rate at limit", "p99 ms", "seconds", "probes", "why"),
        rows=tuple(_trial_row(evidence, trial) for trial in evidence.trials),
        sortable=True,
    )


def _trial_row(evidence: Evidence, trial: TrialRecord) -> tuple[Cell, ...]:
    measured = trial.measurement
    seconds = trial.loading_s + trial.load_s
    return (
        number(trial.number, lambda value: f"{value:.0f}"),
        Cell(text=words.knobs(evidence, trial)),
        Cell(text=trial.state, style=f"state {trial.state}"),
        number(trial.rate_at_limit_per_s, words.rate),
        number(None if measured is None else measured.latency_p99_ms, words.ms),
        number(seconds, lambda value: f"{value:.1f}"),
        number(trial.probes, lambda value: f"{value:.0f}"),
        Cell(text=words.reason(trial), style="reason"),
    )


def accuracy(evidence: Evidence) -> Table | None:
    """Each precision's distance from fp32; None where none was looked at."""
    rows = tuple(
        (
            Cell(text=record.precision),
            Cell(text=f"{output.output}, batch {output.batch_size}"),
            Cell(text="passed" if output.passed else "failed", style="complete" if output.passed else "failed"),
            Cell(text="exact", order=float("inf"), style="number")
            if output.exact
            else number(output.sqnr_db, words.ms),
            number(output.cosine, lambda value: UNKNOWN if value is None else f"{value:.6f}"),
            number(output.top1_agreement, lambda value: UNKNOWN if value is None else f"{100 * value:.2f} %"),
            Cell(text=record.reason, style="reason"),
        )
        for record in evidence.accuracy
        for output in record.outputs
    )
    headings = ("precision", "output", "gate", "SQNR dB", "cosine", "top-1 agreement", "why")
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def replicas(evidence: Evidence) -> Table | None:
    """What so many replicas serve and cost, and what the default would cost for as much."""
    found = evidence.found
    if found is None or found.winner.certificate is None:
        return None
    from search.cost import replicas as count_of

    one, usd = found.winner.certificate.rate_per_s, found.cost.price.usd_per_hour
    other = evidence.baseline.certificate if evidence.baseline is not None else None
    counts = sorted({*range(1, LEAST_REPLICAS + 1), found.cost.replicas or 1})
    headings = ["replicas", "serve up to /s", "an hour", "a month"]
    rows = []
    for count in counts:
        cells = [
            number(count, lambda value: f"{value:.0f}"),
            number(count * one, words.rate),
            number(count * usd, words.money),
            number(count * usd * HOURS_A_MONTH, words.money),
        ]
        if other is not None:
            cells.append(number(count_of(count * one, other.rate_per_s) * usd * HOURS_A_MONTH, words.money))
        rows.append(tuple(cells))
    if other is not None:
        headings.append("a month with Triton's default")
    return Table(headings=tuple(headings), rows=tuple(rows), sortable=True)


def price(evidence: Evidence) -> Table | None:
    """Where the price is from, and what the machine costs bought otherwise."""
    if evidence.found is None:
        return None
    paid = evidence.found.cost.price
    rows = [("machine", [paid.describes]), ("price", [f"{words.money(paid.usd_per_hour)} an hour"])]
    listed = f"{paid.source}, a list price of {paid.as_of}: check it before you decide on money"
    rows.append(("published", [listed if paid.as_of else paid.source]))
    rows += [(term, [f"{words.money(usd)} an hour"]) for term, usd in paid.other_terms_usd_per_hour.items()]
    return _named_rows((), rows)


def machine(evidence: Evidence) -> Table | None:
    """Where it was measured, with which versions."""
    found = evidence.found
    if found is None:
        return None
    where = found.machine
    memory = f"{where.memory_bytes / 2**30:.0f} GiB"
    rows = [("processor", [f"{where.cpu}, {where.cores} core{'s' if where.cores > 1 else ''}, {memory}"])]
    rows += [("GPU", [name]) for name in where.gpus]
    rows += [("model", [f"{found.model.file}, opset {found.model.opset}, SHA-256 {found.model.sha256}"])]
    rows += [("batching", [found.model.batching]), ("measured", [found.created_at])]
    rows += [(name, [version]) for name, version in where.versions.items()]
    return _named_rows((), rows)


def spent(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """How many trials ended how, and where the time went."""
    for state in ("complete", "pruned", "infeasible", "failed"):
        count = sum(trial.state == state for trial in evidence.trials)
        if count:
            yield state, str(count)
    if evidence.found is not None:
        seconds = evidence.found.seconds
        yield "under load", f"{seconds.load:.0f} s"
        yield "loading models", f"{seconds.loading_models:.0f} s"
        yield "in all", f"{seconds.total:.0f} s"


def _named_rows(headings: tuple[str, ...], rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
    return Table(
        headings=headings,
        rows=tuple((Cell(text=name), *(Cell(text=text) for text in texts)) for name, texts in rows),
    )
