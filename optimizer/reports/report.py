"""The report of a run, as a page for the browser, as Markdown for a pull request and as CSV: `optimize report`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.files import write_atomically
from loadgen.records.formats import format_percent, format_rate
from loadgen.reports.kit import Report, Section, markdown, page
from loadgen.reports.write import table
from optimizer.config import KEPT, OptimizeConfig
from optimizer.reports import plots, tables, text, trial_tables
from optimizer.reports.card import answer_card
from optimizer.reports.evidence import Evidence, compared_at_one_rate, read_evidence
from search.answer.explain import rate_steps
from search.labels import is_ensemble, is_own, member_name
from search.records.recommendation import RecommendationRecord
from search.records.run_files import shown_directory
from search.records.slo import Slo
from search.records.trial import ConfigRecord, GpuRecord, MeasurementRecord, TrialRecord

REPORT_FILE = "report.html"


def html_page(evidence: Evidence) -> str:
    """Return the whole page."""
    return page(report_of(evidence))


def markdown_report(directory: Path) -> str:
    """Return the report of a run's directory as Markdown. Raises BadInput."""
    return markdown(report_of(read_evidence(directory)))


def write_report(directory: Path, *, output: Path | None = None, csv: bool = False) -> Path:
    """Write the page to `output`, or to `report.html` in the run's directory. Raises BadInput.

    With `csv` write the trials as CSV, or to `trials.csv`, instead.
    """
    evidence = read_evidence(directory)
    written = trials_csv(evidence) if csv else html_page(evidence)
    path = directory / (TRIALS_CSV if csv else REPORT_FILE) if output is None else output
    try:
        write_atomically(path, written)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}.", "Give another place with --output FILE."
        ) from error
    return path


def report_of(evidence: Evidence) -> Report:
    """Return the report of a run, for the page and for Markdown."""
    found, outcome = evidence.found, evidence.outcome
    headline = f"No configuration is certified for {text.limits_text(evidence.slo)}"
    lead = [f"The run has not ended. Go on with optimize --resume {evidence.directory}"]
    if outcome is not None:
        lead = [f"{outcome.status_reason} {outcome.advice}".strip()]
    subject = [evidence.model_name]
    if found is not None:
        headline, lead = text.headline(found), [*text.lead(found)]
        subject.append(", ".join(found.machine.gpus) or found.machine.cpu)
    if outcome is not None:
        subject.append(outcome.created_at[:10])
    return Report(
        title=f"{evidence.model_name}: {headline}",
        subject=" · ".join(subject),
        headline=headline,
        tone="" if outcome is None or outcome.status == "certified" else outcome.status,
        card=None if found is None else answer_card(found),
        lead=tuple(lead),
        caveats=() if found is None else tuple(text.caveats(found)),
        remarks=() if found is None else tuple(text.remarks(found)),
        sections=list(_sections(evidence)),
        footer="tritune" if outcome is None else f"tritune {outcome.tritune_version}",
    )


def _sections(evidence: Evidence) -> Iterator[Section]:
    """Yield what is shown below the card: rates, configurations, cost, time, and how certain it all is."""
    found, first = evidence.found, evidence.slo.first
    if found is not None:
        yield Section(title="The recommendation", table=tables.comparison(found))
    rates = plots.rates(evidence)
    predicted = rates is not None and rates[1]["curves"]
    yield Section(
        title=f"{first.name} over the rate",
        plot=rates,
        caption=("The lines were simulated from measured execution times. " if predicted else "")
        + "Each mark is a load run, large ones are confirmations. Latency counts from the time a request was due.",
    )
    hatched = " The simulator predicted what is hatched; the rest was measured." if evidence.predictions else ""
    yield Section(
        title="Capacity of the configurations",
        plot=plots.configurations(evidence),
        caption="Requests/s within the limit, by batch size and instances: the best of all threads, delays and "
        f"engines.{hatched}",
        table=tables.configurations(evidence),
    )
    if found is not None:
        yield Section(
            title="Cost of the traffic to serve",
            plot=plots.replicas(evidence),
            caption="USD an hour for as many replicas as the traffic takes. The dotted line is the cost pro rata, "
            "for the part of the replicas that is used.",
            note="Pro rata, also a month: the cost of the traffic if other work pays for the rest of a replica.",
            table=tables.replicas(found),
        )
        yield from details(found)
    plot = plots.certainty(evidence)
    more = " Below, the machine's speed in each second where it is known." if plot and plot[1]["speeds"] else ""
    yield Section(
        title="What every load run decided" if found is None else "How the rate was found",
        plot=plot,
        caption="Each bar is a load run, as long as it took; its mark is what the run decided by itself. "
        "Thick bars are confirmations with fresh arrivals, on which a certificate is based. The band is where "
        f"the capacity was believed to be, with 90 %.{more}",
        note="A confirmation lasts until it is decided whether the rate can be certified. Of all requests, "
        f"{format_percent(1 - first.quantile)} may be over the limit. {trial_tables.BELIEVED}",
        table=trial_tables.rate_steps(rate_steps(evidence.trials, evidence.confirmations)),
    )
    ended = len(evidence.trials)
    yield Section(
        title=f"{ended} trial{'' if ended == 1 else 's'}",
        facts=tuple(trial_tables.spent(evidence)),
        table=trial_tables.trials(evidence),
    )
    if found is not None:
        yield Section(
            title="Machine and versions",
            note="The recommendation holds for these.",
            table=tables.machine(found),
        )
    yield Section(title="Commands", commands=tuple(commands(evidence)))


def details(found: RecommendationRecord) -> Iterator[Section]:
    """Yield what is shown of a recommendation everywhere: price, time, frontier and accuracy."""
    yield Section(title="Price", table=tables.price(found))
    used, shown = found.time_use, compared_at_one_rate(found)
    at = f" at {format_rate(shown[0][1].rate_per_s)}/s" if shown else ""
    yield Section(
        title="Where the time goes",
        plot=plots.stages(found),
        caption=f"Mean ms of a request in each stage{at}.",
        note="" if used is None else used.summary,
        table=tables.stages(found),
    )
    profile = None if used is None else used.winner
    if profile is not None and profile.layers:
        note = (
            f"The slowest of {profile.layer_count} layers, by the profile of {profile.profiler}: standalone, "
            f"batches of {profile.batch_size}, random inputs."
        )
        yield Section(title="Slowest layers", note=note, table=tables.layers(found))
    yield Section(
        title="Frontier of rate and latency",
        note="Runs within the limits that no other run beat in both. Only certified rates are confirmed.",
        table=tables.frontier(found),
    )
    yield Section(
        title="Accuracy per precision",
        note="Distance of the results from the fp32 model's. A pass means numerically close, not as accurate.",
        table=tables.accuracy(found),
    )
    yield Section(
        title="Where the time of the run went",
        note="Wall time. A step marked as cached was done by an earlier run with the same inputs.",
        table=trial_tables.seconds(found),
    )


def commands(evidence: Evidence) -> list[tuple[str, str]]:
    """Return pairs of a purpose and a command line."""
    directory = shown_directory(evidence.directory)
    pairs = [("Run it again", _optimize(evidence))]
    if evidence.found is None:
        return [*pairs, ("Go on with this run", f"optimize --resume {directory}")]
    return [
        *pairs,
        ("Serve the recommendation", text.serve_command(evidence.found, evidence.directory)),
        ("Check the certified rate", text.loadtest_command(evidence.found, evidence.directory, evidence.config)),
        ("Render its deployment bundle", f"optimize bundle {directory}"),
        ("Compare with a later run", f"optimize compare {directory} LATER_RUN_DIR"),
    ]


def _optimize(evidence: Evidence) -> str:
    if evidence.config is not None:
        return "optimize " + " ".join(_arguments(evidence.config))
    assert evidence.found is not None
    model, slo = evidence.found.model, evidence.slo
    limits = text.limit_options(slo.limits)
    return f"optimize --model {shlex.quote(model.file)} {limits} --seed {evidence.found.seed}"


def _arguments(config: OptimizeConfig) -> Iterator[str]:
    """Yield the options that decide the run; those at their defaults are left out."""
    yield f"--model {shlex.quote(str(config.model))} {text.limit_options(config.limits)}"
    for name, one in KEPT.items():
        value = getattr(config, one.field)
        if name == "model" or one.show is None or value is None or (value == one.usual and not one.always):
            continue
        shown = one.show(value)
        for word in [shown] if isinstance(shown, str) else shown or ():
            yield one.flag if one.kind is bool else f"{one.flag} {shlex.quote(word)}"


TRIALS_CSV = "trials.csv"

_MB = 1e6  # as Model Analyzer counts
_NO_GPU = GpuRecord(utilization=None, memory_used_bytes=None, power_w=None, energy_per_1000_inferences_j=None)


def trials_csv(evidence: Evidence) -> str:
    """Return a line per measured trial, and no column that is empty in all of them. Raises BadInput without any.

    `Model Config Path` is the model's name with the trial's number, and the rate is that of an open loop: Model
    Analyzer, too, has `Request Rate` in place of `Concurrency` then.
    """
    measured = [(trial, trial.measurement) for trial in evidence.trials if trial.measurement is not None]
    if not measured:
        raise BadInput(
            f"{evidence.directory} has no trial that was measured.",
            f"Go on with optimize --resume {evidence.directory}",
        )
    gpus = any(one.gpu is not None for _, one in measured)
    if evidence.found is not None:
        gpus, rows_per_request = bool(evidence.found.machine.gpus), evidence.found.workload.rows_per_request
    else:
        assert evidence.config is not None
        rows_per_request = evidence.config.client_batch
    rows = [_row(evidence, trial, one, rows_per_request, on_gpu=gpus) for trial, one in measured]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return table(columns, [[row[name] for name in columns] for row in rows])


def _row(
    evidence: Evidence, trial: TrialRecord, seen: MeasurementRecord, rows_per_request: int, *, on_gpu: bool
) -> dict[str, object]:
    config, stages_ms, gpu = trial.config, seen.stages_ms, seen.gpu or _NO_GPU
    # The groups of a model of one's own may be of several kinds, which the record does not have.
    kind = "" if on_gpu and is_own(config) else ":GPU" if on_gpu else ":CPU"
    return {
        "Model": evidence.model_name,
        "Batch": rows_per_request,
        "Request Rate": _rounded(seen.rate_per_s),
        "Model Config Path": f"{evidence.model_name}_trial_{trial.number}",
        "Instance Group": _of_each(config, lambda one: f"{one.instance_count}{kind}"),
        "Max Batch Size": _of_each(config, lambda one: one.max_batch_size),
        "Satisfies Constraints": "Yes" if _satisfies(evidence.slo, trial, seen) else "No",
        "Throughput (infer/sec)": _rounded(rows_per_request * seen.achieved_rate_per_s),
        "Avg Latency (ms)": _rounded(seen.latency_mean_ms),
        "p90 Latency (ms)": _rounded(seen.latency_p90_ms),
        "p95 Latency (ms)": _rounded(seen.latency_p95_ms),
        "p99 Latency (ms)": _rounded(seen.latency_p99_ms),
        "Server Queue time (ms)": _rounded(stages_ms["queue"]),
        "Server Compute Input time (ms)": _rounded(stages_ms["input"]),
        "Server Compute Infer time (ms)": _rounded(stages_ms["inference"]),
        "Server Compute Output time (ms)": _rounded(stages_ms["output"]),
        "RAM Usage (MB)": _rounded(trial.memory_bytes, per=_MB),
        "GPU Memory Usage (MB)": _rounded(gpu.memory_used_bytes, per=_MB),
        "GPU Utilization (%)": _rounded(gpu.utilization, per=0.01),
        "GPU Power Usage (W)": _rounded(gpu.power_w),
    }


def _of_each(config: ConfigRecord, figure: Callable[[ConfigRecord], int | str]) -> int | str:
    """Return a figure of the model; with members, one for each of the models by name."""
    if not config.members:
        return figure(config)
    own = () if is_ensemble(config) else (config,)
    return ", ".join(f"{member_name(one)} {figure(one)}" for one in (*own, *config.members))


def _satisfies(slo: Slo, trial: TrialRecord, seen: MeasurementRecord) -> bool:
    """True if the measurement can be trusted, and met the limits of latency and memory."""
    within = [
        (latency_ms := seen.latency_at_ms(one.quantile)) is not None and latency_ms <= one.limit_ms
        for one in slo.limits
    ]
    memory = slo.max_memory_bytes is None or (trial.memory_bytes or 0) <= slo.max_memory_bytes
    return all(within) and memory and not seen.problems


def _rounded(value: float | None, *, per: float = 1.0) -> float | None:
    return None if value is None else round(value / per, 3)
