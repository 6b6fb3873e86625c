"""Terminal output: a recommendation, the plan of a run, and finished runs explained, compared and priced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from loadgen.printable import printable
from loadgen.records.formats import UNKNOWN, format_dollars, format_rate
from loadgen.reports.kit import NUMBER, TONES, Cell, Table, literal, markdown_table, table_of_texts, terminal_table
from loadgen.reports.tables import comparison as comparison_table
from loadgen.spec.limits import quantile_name
from optimizer.config import OptimizeConfig
from optimizer.reports import tables, text, trial_tables
from optimizer.reports.evidence import RunsRecord
from optimizer.reports.report import REPORT_FILE
from optimizer.run.recommendation import DIFF_FILE
from search.answer.comparison import RunComparisonRecord
from search.answer.explain import Explanation, RateExplanation
from search.labels import record_text, runtime_text, trial_text
from search.records.fleet import FleetRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import shown_directory

MOST_LINES = 3
"""So many lines of a `config.pbtxt` that changed stand on the last screen; more are in their file."""


def answer_view(
    found: RecommendationRecord, directory: Path, config: OptimizeConfig | None = None, *, whole: bool = False
) -> RenderableType:
    """Return the answer on one screen of 80x24: what to set, what it is worth, and what to type next.

    The run of this configuration is in `directory`. With `whole`, all that it found comes before.
    """
    certificate = found.winner.certificate
    assert certificate is not None
    sure = found.status == "certified"
    tone = TONES["met"] if sure else TONES["violated" if found.status == "worse" else "inconclusive"]
    parts: list[RenderableType] = [recommendation_view(found), ""] if whole else []
    parts.append(
        Text.assemble(
            (found.status.replace("_", " ").upper(), f"bold {tone}"),
            ("  " + text.rate_and_limits(found), "bold"),
            f" (exit code {found.exit_code})",
        )
    )
    parts += map(Text, text.lead(found, brief=True))
    summary = terminal_table(tables.summary(found))
    summary.padding = (0, 1, 0, 0)
    parts += ["", summary]
    on_gpu = bool(found.machine.gpus)
    parts.append(_named("Set", record_text(found.winner.config, on_gpu=on_gpu)))
    frontier = None if whole else tables.frontier(found)  # there for --pareto alone
    if frontier is not None:
        parts += [terminal_table(frontier), ""]
    if found.config_diff is not None and not whole:
        parts += _changed(found.config_diff, f"{shown_directory(directory)}/{DIFF_FILE}", most=MOST_LINES)
    caveat = ("" if sure else found.status_reason) or next(text.caveats(found), None)
    if caveat:
        parts.append(Text(caveat, style="yellow"))
    resume = text.resume_command(directory, found.advice)
    if found.advice and not sure and "--time-budget" not in resume:
        parts.append(Text(found.advice))
    serve = text.serve_command(found, directory)
    commands = [serve, text.loadtest_command(found, directory, config)]
    if not certificate.confirmed_again:
        commands = [resume, serve]
    for name, command in zip(("Next", ""), commands, strict=True):
        # On one line, however long, so that it can be copied: the terminal breaks it.
        parts.append(Text.assemble((f"{name:<6} ", "bold"), command, no_wrap=True, overflow="ignore"))
    shown = shown_directory(directory)
    parts += [_named("Report", f"{shown}/{REPORT_FILE}"), _named("More", f"optimize explain {shown}")]
    return Group(*parts)


def _named(name: str, line: str) -> Text:
    return Text.assemble((f"{name:<6} ", "bold"), line, overflow="fold")


def _changed(diff: str, place: str, *, most: int | None = None) -> Iterator[RenderableType]:
    """Yield how many lines of the user's own `config.pbtxt` changed, and the diff; if `most`, few lines alone."""
    changed = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    what = f"{place}: {len(changed)} lines changed"
    yield _named("Diff", what if changed else "none: your config.pbtxt is the recommendation")
    styles = {"+": "green", "-": "red", "@": "dim"}
    for line in diff.splitlines() if most is None else changed if len(changed) <= most else ():
        yield Text(printable(line, most=len(line)), style=styles.get(line[:1], ""), overflow="fold")


def recommendation_view(found: RecommendationRecord) -> RenderableType:
    """Return all that a run found of its recommendation, without what to type next."""
    shown = (tables.comparison(found), tables.stages(found), tables.frontier(found), trial_tables.seconds(found))
    parts: list[RenderableType] = [_headline(found)]
    for table in shown:
        if table is not None:
            parts += [terminal_table(table), ""]
    if found.config_diff is not None:
        parts += [*_changed(found.config_diff, f"{DIFF_FILE} in the run's directory, for patch -p1"), ""]
    seconds = found.seconds
    lines = {
        "Time": None if found.time_use is None else found.time_use.summary,
        "Why": found.reason,
        "Close": " ".join(_accuracy(found)),
        "Rows": text.answers_under_load(found),
        "Spent": f"{seconds.total:.0f} s, of them {seconds.load:.0f} s load and {seconds.loading_models:.0f} s "
        "loading models",
        "Advice": found.advice,
    }
    parts += [_named(name, line) for name, line in lines.items() if line]
    return Group(*parts)


def _accuracy(found: RecommendationRecord) -> Iterator[str]:
    """Yield how close the winner's precision comes to fp32, if that was measured."""
    for record in found.accuracy:
        if not found.winner.config.engine.endswith(f"-{record.precision}") or record.precision == "fp32":
            continue
        close = "equal results" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.0f} dB"
        subject = f"{record.precision} to fp32 on {record.inputs} {record.input_source} inputs"
        yield f"{subject}: {close}. Accuracy on your task takes labelled data."


def _headline(found: RecommendationRecord) -> Panel:
    certificate, price = found.winner.certificate, found.cost.price
    assert certificate is not None
    head = text.headline(found), "bold yellow" if found.provisional else "bold green"
    lines = [Text.assemble(head), *map(Text, filter(None, (*text.lead(found), text.share_of_engine(found))))]
    runtime = runtime_text(found.runtime, found.winner.config.engine.partition("-")[0])
    deployed = ", which the bundle deploys" if found.workload.shared_memory == "none" else ""
    lines.append(Text(f"Measured on {runtime}{deployed}.", style="dim"))
    source = ", ".join(filter(None, (price.describes, price.source, price.as_of)))
    lines.append(Text(f"Price: {format_dollars(price.usd_per_hour)} an hour ({source}).", style="dim"))
    lines += [Text(caveat, style="yellow") for caveat in text.caveats(found)]
    return Panel(Group(*lines), title=Text(found.model.name), title_align="left")


_ROLES = {
    "winner": ", the recommendation",
    "baseline": ", the baseline",
    "alternative": ", an alternative of the recommendation",
    None: "",
}


def explanation_view(explanation: Explanation, found: RecommendationRecord | None = None) -> RenderableType:
    """Return the questions on a trial and their answers, with every load run that decided anything.

    Of the recommendation `found`, all else that is known of it comes before.
    """
    trial, knobs = explanation.trial, trial_text(explanation.trial)
    spent = f"{trial.load_s:.1f} s of load, {trial.loading_s:.1f} s of loading the model"
    sections: tuple[tuple[str, tuple[str, ...], Table | None], ...] = (
        ("Why it was tried", explanation.why, None),
        ("Prediction", explanation.predicted, None),
        ("Measurement", explanation.seen, trial_tables.rate_steps(explanation.steps)),
        ("How it ended", (explanation.ended,), None),
        ("Cost", (spent,), None),
    )
    parts: list[RenderableType] = [] if found is None else [recommendation_view(found), ""]
    parts += [Text.assemble((f"Trial {trial.number}", "bold"), f"{_ROLES[explanation.role]}: {knobs}")]
    for title, lines, table in sections:
        answers: list[RenderableType] = [Text(line) for line in lines]
        answers += [] if table is None else [terminal_table(table)]
        if answers:
            parts += ["", Text(title, style="bold"), Padding(Group(*answers), (0, 0, 0, 2))]
    return Group(*parts)


def rate_view(explanation: RateExplanation) -> RenderableType:
    """Return why this rate is certified and no higher one, and the load runs that led to it."""
    table = trial_tables.rate_steps(explanation.steps)
    assert table is not None
    return Group(*map(Text, explanation.why), "", terminal_table(table), Text(trial_tables.BELIEVED, style="dim"))


def runs_view(listed: RunsRecord) -> RenderableType:
    """Return a row per run, the last one at the end."""
    if not listed.runs:
        return Text("There is no run here yet: optimize --model FILE.onnx --p99 50ms makes one in runs/.")
    rows = []
    for run in listed.runs:
        rate = UNKNOWN if run.rate_per_s is None else f"{format_rate(run.rate_per_s)}/s"
        limit = "".join(f"{limit.name} {limit.limit_ms:g} ms" for limit in run.limits[:1])
        met = Cell(text=f"{rate}\n{limit}", style=NUMBER)
        outcome = run.outcome.replace("_", " ")
        rows.append((f"{run.began_at.astimezone():%d %b %H:%M}", (outcome, met, f"{run.model}\n{run.directory}")))
    # Two lines each, since the default names of directories are too long for all of it on one of 80 columns.
    return terminal_table(table_of_texts(("began", "outcome", "rate\nlimit", "model\ndirectory"), rows))


def comparison_view(comparison: RunComparisonRecord) -> RenderableType:
    """Return the comparison of two runs."""
    table = comparison_table(comparison.figures)
    if table is None:
        return Group("Nothing could be compared", *map(Text, comparison.notes))
    verdict = Text(comparison.answer.capitalize(), style=TONES.get(comparison.answer, "dim"))
    return Group(verdict, terminal_table(table), *(Text(note, style="dim") for note in comparison.notes))


def comparison_markdown(comparison: RunComparisonRecord) -> str:
    """Return the comparison of two runs for a pull request."""
    table = comparison_table(comparison.figures)
    verdict = "Nothing could be compared" if table is None else comparison.answer.capitalize()
    text = "\n".join([f"**{verdict}**", *markdown_table(table), "", *map(literal, comparison.notes)]) + "\n"
    return printable(text, most=len(text), lines=True)


def fleet_view(fleet: FleetRecord) -> RenderableType:
    """Return what a rate costs on the machine of each run, and where the prices are from."""
    best = fleet.offers[0]
    spare = f", {100 * fleet.headroom:g} % of every replica left free" if fleet.headroom else ""
    fleet_text = f"{best.replicas:,} x {best.run}, {format_dollars(24 * best.usd_per_hour)} a day"
    spare += "; its rate is provisional" if best.provisional else ""
    limit = f"{quantile_name(fleet.quantile)} within {fleet.limit_ms:g} ms{spare}"
    headline = Text.assemble(
        (fleet_text, "bold green"),
        f": the least that serves {format_rate(fleet.rate_per_s)} requests/s with {limit}",
    )
    rows, prices = [], []
    for offer in fleet.offers:
        usd = (offer.usd_per_replica_hour, offer.usd_per_hour, 24 * offer.usd_per_hour)
        figures = (
            f"{format_rate(offer.certified_rate_per_s)}/s{' provisional' if offer.provisional else ''}",
            f"{offer.replicas:,}",
            *map(format_dollars, usd),
        )
        rows.append((offer.run, [Cell(text=figure, style=NUMBER) for figure in figures]))
        energy = offer.energy_kwh_per_million_inferences
        known = f"; {energy:.3g} kWh per million inferences (only GPUs)" if energy is not None else ""
        when = f", {offer.price_as_of}" if offer.price_as_of else ""
        prices.append(Text(f"{offer.run}: {offer.describes} ({offer.price_source}{when}){known}", style="dim"))
    table = table_of_texts(("run", "rate", "replicas", "each, an hour", "all, an hour", "all, a day"), rows)
    return Group(Panel(headline), terminal_table(table), "", *prices)
