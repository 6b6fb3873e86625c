"""The report of a run, as a page for the browser and as Markdown for a pull request: `optimize report`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.files import write_atomically
from loadgen.records.formats import format_percent, format_rate
from loadgen.reports.kit import Report, Section, markdown, page
from optimizer.config import KEPT, OptimizeConfig
from optimizer.reports import plots, tables, text, trial_tables
from optimizer.reports.card import answer_card
from optimizer.reports.evidence import Evidence, compared_at_one_rate, read_evidence
from optimizer.reports.trials_csv import TRIALS_CSV, trials_csv
from search.records.recommendation import RecommendationRecord
from search.records.run_files import shown_directory

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
    remarks: tuple[str | None, ...] = ()
    headline = f"No configuration is certified for {text.limits_text(evidence.slo)}"
    lead = [_why_nothing(evidence)]
    if found is not None:
        headline, lead = text.headline(found), [*text.lead(found)]
        remarks = found.reason, text.share_of_engine(found), text.answers_under_load(found)
    subject = [evidence.model_name]
    if found is not None:
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
        remarks=tuple(filter(None, remarks)),
        sections=list(_sections(evidence)),
        footer="tritune" if outcome is None else f"tritune {outcome.tritune_version}",
    )


def _why_nothing(evidence: Evidence) -> str:
    if evidence.outcome is not None:
        return f"{evidence.outcome.status_reason} {evidence.outcome.advice}".strip()
    return f"The run has not ended. Go on with optimize --resume {evidence.directory}"


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
        yield from _money(found, evidence)
        yield from _time(found, evidence)
    plot = plots.certainty(evidence)
    if plot is not None:
        more = "" if plot[1]["timed"] else " When they began was not recorded, so they follow each other."
        more += " Below, the machine's speed in each second where it is known." if plot[1]["speeds"] else ""
        yield Section(
            title="What every load run decided" if found is None else "How certain the answer is",
            plot=plot,
            caption="Each bar is a load run, as long as it took; its mark is what the run decided by itself. "
            f"Thick bars are confirmations with fresh arrivals, on which a certificate is based.{more}",
        )
    yield Section(
        title="Confirmations of a rate",
        note="Each is a load run with fresh arrivals, which lasts until it is decided whether the rate can be "
        f"certified. Of all requests, {format_percent(1 - first.quantile)} may be over the limit.",
        table=trial_tables.confirmations(
            evidence.confirmations,
            {trial.number: evidence.words(trial.config) for trial in evidence.trials},
            latency=first.name,
        ),
    )
    ended = len(evidence.trials)
    yield Section(
        title=f"{ended} trial{'' if ended == 1 else 's'}",
        facts=tuple(trial_tables.spent(evidence)),
        table=trial_tables.trials(evidence),
    )
    if found is not None:
        yield from _context(found)
    yield Section(title="Commands", commands=tuple(commands(evidence)))


def _money(found: RecommendationRecord, evidence: Evidence) -> Iterator[Section]:
    yield Section(
        title="Cost of the traffic to serve",
        plot=plots.replicas(evidence),
        caption="USD an hour for as many replicas as the traffic takes. The dotted line is the cost pro rata, for "
        "the part of the replicas that is used.",
        note="Pro rata, also a month: the cost of the traffic if other work pays for the rest of a replica.",
        table=tables.replicas(found),
    )
    yield Section(title="Price", table=tables.price(found))


def _time(found: RecommendationRecord, evidence: Evidence) -> Iterator[Section]:
    used, shown = found.time_use, compared_at_one_rate(found)
    at = f" at {format_rate(shown[0][1].rate_per_s)}/s" if shown else ""
    yield Section(
        title="Where the time goes",
        plot=plots.stages(evidence),
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


def _context(found: RecommendationRecord) -> Iterator[Section]:
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
    yield Section(
        title="Machine and versions",
        note="The recommendation holds for these.",
        table=tables.machine(found),
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
        kept, value = one.declared, getattr(config, one.field)
        if name == "model" or kept.show is None or value is None or (value == one.usual and not kept.always):
            continue
        shown = kept.show(value)
        for word in [shown] if isinstance(shown, str) else shown or ():
            yield one.flag if one.kind is bool else f"{one.flag} {shlex.quote(word)}"
