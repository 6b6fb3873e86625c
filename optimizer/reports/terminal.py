"""Terminal output: a recommendation, the plan of a run, and finished runs explained, compared and priced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
from optimizer.reports.card import answer_card
from optimizer.reports.evidence import RunsRecord
from optimizer.reports.report import REPORT_FILE, details
from optimizer.run.prepare import Prepared
from optimizer.run.recommendation import DIFF_FILE, machine_record
from optimizer.run_file import objective_of, slo_of
from search.answer.comparison import RunComparisonRecord
from search.answer.explain import Explanation, RateExplanation
from search.labels import hidden_knobs, record_text, trial_text
from search.records.fleet import FleetRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import shown_directory
from search.trials.trial import config_to_record
from search.workload import Workload

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
    tone = TONES["met"] if sure else TONES.get(found.status, "yellow")
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
    if found.config_diff is not None:
        parts += _changed(found.config_diff, f"{shown_directory(directory)}/{DIFF_FILE}")
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


def _changed(diff: str, place: str) -> Iterator[RenderableType]:
    """Yield how many lines of the user's own `config.pbtxt` changed, and the lines if they are few."""
    changed = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    what = f"{place}: {len(changed)} lines changed"
    yield _named("Diff", what if changed else "none: your config.pbtxt is the recommendation")
    for line in changed if len(changed) <= MOST_LINES else ():
        yield Text(printable(line, most=len(line)), style="green" if line[0] == "+" else "red", overflow="fold")


def recommendation_view(found: RecommendationRecord) -> RenderableType:
    """Return all that a run found of its recommendation, without what to type next."""
    tone = "bold yellow" if found.provisional else "bold green"
    parts: list[RenderableType] = [Text.assemble(f"{found.model.name}: ", (text.headline(found), tone))]
    parts += map(Text, text.lead(found))
    parts += [Text(caveat, style="yellow") for caveat in text.caveats(found)]
    parts += ["", *map(Text, text.remarks(found))]
    card = answer_card(found)
    facts = table_of_texts((), [(name, [value]) for name, value in card.facts])
    parts += _part(card.title, (card.code, card.note), facts)
    parts += _part("Compared", (), tables.comparison(found))
    for section in details(found):
        if section.table is not None:
            parts += _part(section.title, (section.note,), section.table)
    return Group(*parts)


def _part(title: str, lines: Iterable[str], table: Table | None = None) -> Iterator[RenderableType]:
    """Yield the lines and the table under a title; nothing if there are none."""
    inside: list[RenderableType] = [*map(Text, filter(None, lines))]
    inside += [] if table is None else [terminal_table(table)]
    if inside:
        yield from ("", Text(title, style="bold"), Padding(Group(*inside), (0, 0, 0, 2)))


def explanation_view(explanation: Explanation, found: RecommendationRecord | None = None) -> RenderableType:
    """Return the questions on a trial and their answers, with every load run that decided anything.

    Of the recommendation `found`, all else that is known of it comes before.
    """
    trial, knobs = explanation.trial, trial_text(explanation.trial)
    spent = f"{trial.load_s:.1f} s of load, {trial.loading_s:.1f} s of loading the model"
    parts: list[RenderableType] = [] if found is None else [recommendation_view(found), ""]
    role = "" if explanation.role is None else f", the {explanation.role}"
    parts += [Text.assemble((f"Trial {trial.number}", "bold"), f"{role}: {knobs}")]
    parts += _part("Why it was tried", explanation.why)
    parts += _part("Prediction", explanation.predicted)
    parts += _part("Measurement", explanation.seen, trial_tables.rate_steps(explanation.steps))
    parts += _part("How it ended", (explanation.ended,))
    return Group(*parts, *_part("Cost", (spent,)))


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


PLAN_SCHEMA_VERSION = 1


def plan_record(
    prepared: Prepared, config: OptimizeConfig, workload: Workload, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the plan as values for JSON; `knobs` has the values to try of each knob."""
    space = prepared.space
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "model": prepared.record,
        "inputs": [
            {"name": spec.name, "datatype": spec.datatype, "shape": spec.concrete_shape or spec.shape}
            for spec in prepared.engines[0].inputs
        ],
        "slo": slo_of(config),
        "objective": objective_of(config).record,
        "workload": workload.record,
        "protocol": config.protocol,
        "machine": machine_record(prepared.machine),
        "price": prepared.price,
        "server": config.server,
        "knobs": space.axes(),
        "configurations": space.size(),
        "baseline": config_to_record(space.baseline()),
        "start": None if space.start is None else config_to_record(space.start),
        "time_budget_s": config.time_budget_s,
        "output": printable(str(config.output)),
        "notes": [printable(note, lines=True) for note in notes],
    }


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """Return a plan for the terminal."""
    model, workload, objective, machine, price = (
        plan[name] for name in ("model", "workload", "objective", "machine", "price")
    )
    rows = model.fixed_rows * workload.rows_per_request
    at = "" if objective.rate_per_s is None else f" at {format_rate(objective.rate_per_s)} requests/s per replica"
    hidden = hidden_knobs(plan["baseline"])
    texts = {
        "model": model.label,
        "batching": model.batching,
        "inputs": "\n".join(f"{one['name']} {one['datatype']} {[*one['shape']]}" for one in plan["inputs"]),
        "limit": text.limits_text(plan["slo"]),
        "objective": f"the lowest {objective.name}{at}",
        "traffic": f"{workload.arrivals}, {rows} row{'s' if rows > 1 else ''} per request",
        "protocol": plan["protocol"],
        "machine": ", ".join((machine.cpu, f"{machine.cores} cores", *machine.gpus)),
        "price": f"{format_dollars(price.usd_per_hour)} an hour: {price.describes}",
        "server": plan["server"],
        **{name: ", ".join(map(str, values)) for name, values in plan["knobs"].items() if name not in hidden},
        "configurations": f"{plan['configurations']}, of which a part is tried",
        "time": f"at most {plan['time_budget_s']:g} s; about 3 s for a trial that cannot win, 15 for others",
        "output": plan["output"],
    }
    return terminal_table(table_of_texts((), [(name, [value]) for name, value in texts.items()]))
