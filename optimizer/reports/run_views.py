"""Finished runs on the terminal: the explanation of a trial, two runs compared, and the price of a fleet."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from loadgen.printable import printable
from loadgen.records.formats import format_dollars, format_rate
from loadgen.reports.kit import NUMBER, TONES, Cell, Table, literal, markdown_table, table_of_texts, terminal_table
from loadgen.reports.tables import comparison as comparison_table
from loadgen.spec.limits import quantile_name
from optimizer.reports import trial_tables
from search.answer.comparison import RunComparisonRecord
from search.answer.explain import Explanation
from search.labels import trial_text
from search.records.fleet import FleetRecord

_ROLES = {
    "winner": ", the recommendation",
    "baseline": ", the baseline",
    "alternative": ", an alternative of the recommendation",
    None: "",
}


def explanation_view(explanation: Explanation) -> RenderableType:
    """Return the questions on a trial and their answers, with every load run that decided anything."""
    trial, knobs = explanation.trial, trial_text(explanation.trial)
    spent = f"{trial.load_s:.1f} s of load, {trial.loading_s:.1f} s of loading the model"
    sections: tuple[tuple[str, tuple[str, ...], Table | None], ...] = (
        ("Why it was tried", explanation.why, None),
        ("Prediction", explanation.predicted, None),
        ("Measurement", explanation.seen, trial_tables.load_runs(trial)),
        ("How it ended", (explanation.ended,), None),
        ("Confirmations", (), trial_tables.confirmations(explanation.confirmations, {trial.number: knobs})),
        ("Cost", (spent,), None),
    )
    parts: list[RenderableType] = [
        Text.assemble((f"Trial {trial.number}", "bold"), f"{_ROLES[explanation.role]}: {knobs}")
    ]
    for title, lines, table in sections:
        answers: list[RenderableType] = [Text(line) for line in lines]
        answers += [] if table is None else [terminal_table(table)]
        if answers:
            parts += ["", Text(title, style="bold"), Padding(Group(*answers), (0, 0, 0, 2))]
    return Group(*parts)


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
    limit = f"{quantile_name(fleet.quantile)} within {fleet.limit_ms:g} ms{spare}"
    headline = Text.assemble(
        (fleet_text, "bold green"),
        f": the least that serves {format_rate(fleet.rate_per_s)} requests/s with {limit}",
    )
    rows, prices = [], []
    for offer in fleet.offers:
        usd = (offer.usd_per_replica_hour, offer.usd_per_hour, 24 * offer.usd_per_hour)
        figures = (
            f"{format_rate(offer.certified_rate_per_s)}/s",
            f"{offer.replicas:,}",
            *map(format_dollars, usd),
        )
        rows.append((offer.run, [Cell(text=figure, style=NUMBER) for figure in figures]))
        energy = offer.energy_kwh_per_million_inferences
        known = f"; {energy:.3g} kWh per million inferences (only GPUs)" if energy is not None else ""
        when = f", {offer.price_as_of}" if offer.price_as_of else ""
        prices.append(Text(f"{offer.run}: {offer.describes} ({offer.price_source}{when}){known}", style="dim"))
    table = table_of_texts(("run", "certified", "replicas", "each, an hour", "all, an hour", "all, a day"), rows)
    return Group(Panel(headline), terminal_table(table), "", *prices)
