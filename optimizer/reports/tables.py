"""The tables of a run, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadgen.records.formats import UNKNOWN, format_dollars, format_ms, format_rate
from loadgen.reports.kit import NUMBER, Cell, Table, count, number, table_of_texts
from loadgen.spec.limits import LatencyLimit
from optimizer.profiling.text import BOUND_WORDS
from optimizer.reports.evidence import Evidence, compared_at_one_rate, default_of
from optimizer.reports.plots import MIN_REPLICAS, cells
from search.answer.recommend import energy_of, gain_over, similar_rates
from search.cost.cost import cost_per_million_inferences_usd
from search.cost.cost import replicas as count_of
from search.knobs import KNOBS
from search.labels import baseline_name, hidden_knobs, member_name, memory_text, rate_text, record_text
from search.records.recommendation import RecommendationRecord
from search.records.trial import STAGES, ConfigRecord, TrialRecord

HOURS_A_MONTH = 730
MIN_PARTS = 4
"""The cost table begins at about a quarter of what one replica serves."""

EXACT_DB = 1000.0
"""Equal results sort above every SQNR in dB; JavaScript does not read Python's `inf`."""


def comparison(found: RecommendationRecord) -> Table:
    """The recommendation compared with Triton's default: knobs, certified rate, money and power."""
    columns = {"recommended": found.winner, **compared_with(found)}
    shown = list(columns.values())
    rates = [_rate(trial, found.slo.confidence) for trial in shown]
    rows = [("capacity", [*map(_capacity, shown)]), ("certified rate", rates)]
    rows += [(f"{at.name} at that rate", [_latency(trial, at) for trial in shown]) for at in found.slo.limits]
    rows += [
        (f"{at.of} at {at.rate_per_s(0.0):g}/s", [_latency(trial, at) for trial in shown])
        for at in found.slo.colocated
    ]
    rows.append(("tested with", [_tested(trial) for trial in shown]))
    rows += _knobs([trial.config for trial in shown])
    rows += _members(shown)
    if found.slo.max_memory_bytes is not None:
        name = f"server's memory (limit {memory_text(found.slo.max_memory_bytes)})"
        sizes = [trial.memory_bytes for trial in shown]
        rows.append((name, [UNKNOWN if size is None else memory_text(size) for size in sizes]))
    rows.append(("cost per million", [million_usd_text(found, trial) for trial in shown]))
    return _first_stands_out(("", *columns), [*rows, *_circumstances(found, shown)])


def _first_stands_out(
    headings: tuple[str, ...], rows: Sequence[tuple[str, Sequence[str]]], style: str = ""
) -> Table:
    """Return a table of texts in which the first column after the names is the main one."""
    cells = [
        (name, [Cell(text=one, style=style if at else f"main {style}".strip()) for at, one in enumerate(texts)])
        for name, texts in rows
    ]
    return table_of_texts(headings, cells)


def summary(found: RecommendationRecord) -> Table:
    """The recommendation and the baselines in a row each: rate, latencies, money, and what to set."""
    rows = []
    for name, trial in {"recommended": found.winner, **compared_with(found)}.items():
        hidden = hidden_knobs(trial.config)
        knobs = [
            UNKNOWN if name in hidden else str(KNOBS[name].text(trial.config))
            for name in ("max_batch_size", "instance_count")
        ]
        about = UNKNOWN if trial.rate_at_limit_per_s is None else f"~{format_rate(trial.rate_at_limit_per_s)}/s"
        rate = about if trial.certificate is None else _rate(trial, found.slo.confidence, mark=" once")
        latencies = [_latency(trial, limit).partition(" (")[0] for limit in found.slo.limits]
        texts = rate, *latencies, million_usd_text(found, trial, about="~"), *knobs, found.workload.protocol
        cells = [Cell(text=one, style=NUMBER) for one in texts]
        rows.append(("yours" if trial is found.start else name.removeprefix("Triton "), cells))
    latencies = [limit.name for limit in found.slo.limits]
    return table_of_texts(("", "rate", *latencies, "$/million", "batch", "instances", "protocol"), rows)


def compared_with(found: RecommendationRecord) -> dict[str, TrialRecord]:
    """Return the baselines that are not the recommendation, by their names: Triton's, and that of --start-from."""
    default, start = default_of(found), found.start
    columns = {} if default is None else {baseline_name(found.winner.config): default}
    if start is not None and start.number != found.winner.number:
        columns["your config.pbtxt"] = start
    return columns


def million_usd(found: RecommendationRecord, trial: TrialRecord) -> float | None:
    """Return the cost of a million inferences at the certified rate of a trial; None if it is not known.

    Without one, at the share of the estimated capacity at which the recommendation is certified.
    """
    gain = gain_over(found.winner, trial)
    if trial.certificate is None:
        return None if gain is None else gain[1] * found.cost.cost_per_million_inferences_usd
    rate_per_s = found.workload.rows_per_request * trial.certificate.rate_per_s
    return cost_per_million_inferences_usd(found.cost.price.usd_per_hour, rate_per_s)


def million_usd_text(found: RecommendationRecord, trial: TrialRecord, *, about: str = "about ") -> str:
    """Return the same as text, with a word before an estimate."""
    usd = million_usd(found, trial)
    return f"{about if usd is not None and trial.certificate is None else ''}{format_dollars(usd)}"


def _members(shown: list[TrialRecord]) -> Iterator[tuple[str, list[str]]]:
    """Rows on the models that it calls, one each."""
    for configs in zip(*(trial.config.members for trial in shown), strict=True):
        texts = [record_text(config, on_gpu=False).partition(", ")[2] for config in configs]
        yield member_name(configs[0]), texts


def _circumstances(found: RecommendationRecord, shown: list[TrialRecord]) -> Iterator[tuple[str, list[str]]]:
    """Rows on GPUs and energy, if they were measured."""
    if any(trial.measurement is not None and trial.measurement.gpu is not None for trial in shown):
        yield "GPUs meanwhile", [_gpu(trial) for trial in shown]
    energies = [energy_of(trial, found.workload.rows_per_request) for trial in shown]
    if any(energy is not None for energy in energies):
        texts = [UNKNOWN if energy is None else f"{energy:.3g} kWh" for energy in energies]
        yield "energy per million, only GPUs", texts


def _gpu(trial: TrialRecord) -> str:
    gpu = None if trial.measurement is None else trial.measurement.gpu
    if gpu is None:
        return UNKNOWN
    busy = [] if gpu.utilization is None else [f"{100 * gpu.utilization:.0f} % busy"]
    power = [] if gpu.power_w is None else [f"{gpu.power_w:,.0f} W"]
    memory = [] if gpu.memory_used_bytes is None else [f"{gpu.memory_used_bytes / 2**30:.1f} GiB"]
    return ", ".join([*busy, *power, *memory]) or UNKNOWN


def _rate(trial: TrialRecord, confidence: float, mark: str = ", provisional") -> str:
    certificate = trial.certificate
    if certificate is None:
        return "not certified"
    return f"{format_rate(certificate.rate_per_s)}/s{'' if certificate.certifies(confidence) else mark}"


def _capacity(trial: TrialRecord) -> str:
    rate_per_s = trial.rate_at_limit_per_s
    if rate_per_s is None:
        return UNKNOWN
    text = rate_text(trial)
    return text if text.startswith("below") else f"about {format_rate(rate_per_s)}/s, predicted"


def _latency(trial: TrialRecord, limit: LatencyLimit) -> str:
    """`22.4 ms (19.8 to 31.4 at 95 %)` at the limit's quantile."""
    certificate = trial.certificate
    latencies = () if certificate is None else certificate.latencies
    of = limit.quantile, limit.model
    seen = next((seen for seen in latencies if (seen.quantile, seen.model) == of), None)
    if certificate is None or seen is None:
        return UNKNOWN
    at, low, high = map(format_ms, (seen.latency_ms, seen.latency_low_ms, seen.latency_high_ms))
    return f"{at} ms ({low} to {high} at {100 * certificate.confidence:.3g} %)"


def _tested(trial: TrialRecord) -> str:
    seen = trial.certificate
    if seen is None:
        return UNKNOWN
    runs = f"{seen.runs} run{'s' if seen.runs > 1 else ''}"
    return f"{seen.requests:,} requests, {seen.first.violations:,} over the limit, in {runs}"


def _knobs(shown: Sequence[ConfigRecord]) -> Iterator[tuple[str, list[str]]]:
    """Rows on the engine and on each knob that has an effect."""
    yield "engine", [config.engine for config in shown]
    for name, knob in KNOBS.items():
        texts = [knob.text(config) for config in shown]
        if any(texts) and name not in hidden_knobs(shown[0]):
            yield knob.label, [text or UNKNOWN for text in texts]


def latency_near_ms(trial: TrialRecord, rate_per_s: float, limit: LatencyLimit) -> float | None:
    """Return the latency at a limit's quantile in the run with the nearest rate; None if none is near enough."""
    certificate, measured = trial.certificate, trial.measurement
    seen = [] if certificate is None else [(certificate.rate_per_s, certificate.first.latency_ms)]
    seen += [(run.rate_per_s, run.latency_ms) for run in trial.load_runs if run.trusted and run.latency_ms]
    if measured is not None and (latency_ms := measured.latency_at_ms(limit.quantile)):
        seen.append((measured.rate_per_s, latency_ms))
    near = [pair for pair in seen if similar_rates(pair[0], rate_per_s)]
    return min(near, key=lambda pair: abs(pair[0] - rate_per_s))[1] if near else None


def stages(found: RecommendationRecord) -> Table:
    """Mean ms of a request in each stage; of Triton's default if it was measured at a similar rate."""
    shown = [measured for _, measured in compared_at_one_rate(found)]
    columns = [measured.stages_ms for measured in shown] or [{}]
    known = [stage for stage in STAGES if stage != "response" or any(column.get(stage) for column in columns)]
    rows = [(stage, [format_ms(column.get(stage)) for column in columns]) for stage in known]
    servers = [measured.server for measured in shown] or [None]
    sizes = [None if server is None else server.mean_batch_size for server in servers]
    rows.append(("mean batch size", [UNKNOWN if size is None else f"{size:.2f}" for size in sizes]))
    headings = ("mean ms of a request", "recommended", baseline_name(found.winner.config))[: 1 + len(columns)]
    return _first_stands_out(headings, rows, NUMBER)


def layers(found: RecommendationRecord) -> Table | None:
    """The slowest layers of the recommendation's engine, and of the default's if that is another engine."""
    used = found.time_use
    if used is None:
        return None
    profiles = [("recommended", used.winner)]
    if used.baseline != used.winner:
        profiles.append((baseline_name(found.winner.config), used.baseline))
    rows = tuple(
        (
            Cell(text=role),
            Cell(text=layer.name),
            Cell(text=layer.operator),
            number(layer.mean_ms, format_ms),
            number(100 * layer.share, lambda value: f"{value:.1f} %"),
            Cell(text=BOUND_WORDS[layer.bound]),
        )
        for role, profile in profiles
        if profile is not None
        for layer in profile.layers
    )
    headings = ("engine", "layer", "operator", "ms", "share", "bound by")
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def frontier(found: RecommendationRecord) -> Table | None:
    """The runs that no other run beat in rate and latency; None if they were not asked for."""
    if not found.frontier:
        return None
    rows = tuple(
        (
            number(point.rate_per_s, lambda value: f"{format_rate(value)}/s"),
            number(point.latency_ms, lambda value: f"{format_ms(value)} ms"),
            number(point.trial, count),
            Cell(text=record_text(point.config, on_gpu=bool(found.machine.gpus))),
            Cell(text="certified" if point.certified else "one short run"),
        )
        for point in found.frontier
    )
    headings = ("frontier", found.slo.first.name, "trial", "configuration", "")
    return Table(headings=headings, rows=rows, sortable=True)


def configurations(evidence: Evidence) -> Table | None:
    """The best configuration of each batch size and instance count, as in the plot; None if there is one alone."""
    rows = tuple(
        (
            number(cell["batch"], count),
            number(cell["instances"], count),
            Cell(text=cell["knobs"]),
            number(cell["rate"], format_rate, style="main" if cell["best"] else ""),
            Cell(text=cell["how"]),
        )
        for cell in cells(evidence)
    )
    headings = ("batch", "instances", "best configuration", "capacity/s", "")
    return Table(headings=headings, rows=rows, sortable=True) if rows[1:] else None


def accuracy(found: RecommendationRecord) -> Table | None:
    """Each precision's distance from fp32; None if none was measured."""
    rows = tuple(
        (
            Cell(text=f"{record.precision} on {record.inputs} {record.input_source} inputs"),
            Cell(text=f"{output.output}, batch {output.batch_size}"),
            Cell(text="passed" if output.passed else "failed", style="complete" if output.passed else "failed"),
            Cell(text="exact", order=EXACT_DB, style="number")
            if output.exact
            else number(output.sqnr_db, format_ms),
            number(output.cosine, lambda value: UNKNOWN if value is None else f"{value:.6f}"),
            number(output.top1_agreement, lambda value: UNKNOWN if value is None else f"{100 * value:.2f} %"),
            Cell(text=record.reason, style="reason"),
        )
        for record in found.accuracy
        for output in record.outputs
    )
    headings = ("precision", "output", "gate", "SQNR dB", "cosine", "top-1 agreement", "why")
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def replicas(found: RecommendationRecord) -> Table | None:
    """The cost of round rates, and of those that were asked for, also with Triton's default."""
    if found.winner.certificate is None:
        return None
    usd = found.cost.price.usd_per_hour
    certificates = (trial.certificate for trial in (found.winner, default_of(found)) if trial is not None)
    shown = [certificate.rate_per_s for certificate in certificates if certificate is not None]
    asked = [rate for rate in (found.cost.rate_to_serve_per_s, found.cost.peak_rate_per_s) if rate is not None]
    rows = []
    for rate in sorted({*round_rates(shown[0] / MIN_PARTS, MIN_REPLICAS * shown[0]), *asked}):
        cells = [number(rate, format_rate, style="main" if rate in asked else "")]
        for position, one in enumerate(shown):
            several = count_of(rate, one)
            hourly = [] if position else [number(several * usd, format_dollars)]
            monthly = [several * usd * HOURS_A_MONTH, rate / one * usd * HOURS_A_MONTH]
            cells += [number(several, count), *hourly, *(number(cost, format_dollars) for cost in monthly)]
        rows.append(tuple(cells))
    headings = ("requests/s", "replicas", "an hour", "a month", "pro rata",
                "default: replicas", "default: a month", "default: pro rata")  # fmt: skip
    return Table(headings=headings[: len(rows[0])], rows=tuple(rows), sortable=True)


def round_rates(low_per_s: float, high_per_s: float) -> list[float]:
    """Return the rates 1, 2, 5, 10, 20 and so on between two others, which are above zero."""
    powers = range(math.floor(math.log10(low_per_s)), math.ceil(math.log10(high_per_s)) + 1)
    rates = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return [rate for rate in rates if low_per_s <= rate <= high_per_s]


def price(found: RecommendationRecord) -> Table:
    """The source of the price, and the machine's cost on other terms."""
    paid = found.cost.price
    listed = f"{paid.source}, a list price of {paid.as_of}: check it before you decide on money"
    rows = [
        ("machine", [paid.describes]),
        ("price", [f"{format_dollars(paid.usd_per_hour)} an hour"]),
        ("published", [listed if paid.as_of else paid.source]),
    ]
    others = paid.other_terms_usd_per_hour.items()
    return table_of_texts((), rows + [(term, [f"{format_dollars(usd)} an hour"]) for term, usd in others])


def machine(found: RecommendationRecord) -> Table:
    """The machine of the run, the model, and versions."""
    computer, model = found.machine, found.model
    memory = f"{computer.memory_bytes / 2**30:.0f} GiB"
    rows = [("processor", [f"{computer.cpu}, {computer.cores} core{'s' if computer.cores > 1 else ''}, {memory}"])]
    rows += [("GPU", [name]) for name in computer.gpus]
    rows += [("model", [f"{model.label}, SHA-256 {model.sha256}"])]
    rows += [("batching", [model.batching]), ("measured", [found.created_at])]
    rows += [(name, [version]) for name, version in computer.versions.items()]
    return table_of_texts((), rows)
