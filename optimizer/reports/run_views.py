"""Finished runs on the terminal: the explanation of a trial, two runs compared, and the price of a fleet."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.printable import printable
from loadgen.records.formats import UNKNOWN, format_dollars, format_ms, format_rate
from loadgen.reports import tables
from loadgen.reports.kit import TONES, literal, markdown_table, terminal_table
from loadgen.spec.limits import quantile_name
from optimizer.reports.reasons import confirmation_answer, load_run_answer
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
    """Return four questions and their answers, with every load run that decided anything."""
    trial = explanation.trial
    parts: list[RenderableType] = [
        Text.from_markup(
            f"[bold]Trial {trial.number}[/bold]{_ROLES[explanation.role]}: {escape(trial_text(trial))}"
        ),
        *_section("Why it was tried", explanation.why),
        *_section("Prediction", explanation.predicted),
        *_section("Measurement", explanation.seen),
    ]
    if trial.load_runs:
        parts.append(Padding(_load_runs(explanation), (0, 0, 0, 2)))
    parts += _section("How it ended", explanation.ended)
    if explanation.confirmations:
        parts.append(Padding(_confirmations(explanation), (0, 0, 0, 2)))
    spent = f"{trial.load_s:.1f} s of load, {trial.loading_s:.1f} s of loading the model"
    parts += _section("Cost", (spent,))
    return Group(*parts)


def _section(title: str, lines: tuple[str, ...]) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(title, style="bold")
    for line in lines:
        yield Padding(Text(line), (0, 0, 0, 2))


def _load_runs(explanation: Explanation) -> Table:
    table = _table("load", "seconds", "requests", "over", "latency", "answer", "seed")
    for run in explanation.trial.load_runs:
        table.add_row(
            f"{format_rate(run.rate_per_s)}/s",
            UNKNOWN if run.seconds is None else f"{run.seconds:.1f}",
            UNKNOWN if run.requests is None else f"{run.requests:,}",
            UNKNOWN if run.violations is None else f"{run.violations:,}",
            _latency(run.latency_ms),
            load_run_answer(run),
            UNKNOWN if run.seed is None else str(run.seed),
        )
    return table


def _confirmations(explanation: Explanation) -> Table:
    table = _table("confirming", "seconds", "requests", "over", "latency", "answer", "", "because")
    for one in explanation.confirmations:
        table.add_row(
            f"{format_rate(one.rate_per_s)}/s",
            f"{one.seconds:.1f}",
            f"{one.requests:,}",
            f"{one.violations:,}",
            _latency(one.latency_ms),
            confirmation_answer(one),
            "on a restarted server" if one.again else "",
            one.why or "",
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 0 < position < 5 else "left")
    return table


def _latency(value: float | None) -> str:
    return UNKNOWN if value is None else f"{format_ms(value)} ms"


def comparison_view(comparison: RunComparisonRecord) -> RenderableType:
    """Return the comparison of two runs."""
    table = tables.comparison(comparison.figures)
    if table is None:
        return Group("Nothing could be compared", *comparison.notes)
    verdict = Text(comparison.answer.capitalize(), style=TONES.get(comparison.answer, "dim"))
    return Group(verdict, terminal_table(table), *(Text(note, style="dim") for note in comparison.notes))


def comparison_markdown(comparison: RunComparisonRecord) -> str:
    """Return the comparison of two runs for a pull request."""
    table = tables.comparison(comparison.figures)
    verdict = "Nothing could be compared" if table is None else comparison.answer.capitalize()
    text = "\n".join([f"**{verdict}**", *markdown_table(table), "", *map(literal, comparison.notes)]) + "\n"
    return printable(text, most=len(text), lines=True)


def fleet_view(fleet: FleetRecord) -> RenderableType:
    """Return what a rate costs on the machine of each run, and where the prices are from."""
    best = fleet.offers[0]
    spare = f", {100 * fleet.headroom:g} % of every replica left free" if fleet.headroom else ""
    fleet_text = f"{best.replicas:,} x {escape(best.run)}, {format_dollars(24 * best.usd_per_hour)} a day"
    headline = (
        f"[bold green]{fleet_text}[/bold green]: the least that serves {format_rate(fleet.rate_per_s)} requests/s "
        f"with {quantile_name(fleet.quantile)} within {fleet.limit_ms:g} ms{spare}"
    )
    table = _table("run", "certified", "replicas", "each, an hour", "all, an hour", "all, a day")
    prices = []
    for offer in fleet.offers:
        table.add_row(
            escape(offer.run),
            f"{format_rate(offer.certified_rate_per_s)}/s",
            f"{offer.replicas:,}",
            *map(format_dollars, (offer.usd_per_replica_hour, offer.usd_per_hour, 24 * offer.usd_per_hour)),
        )
        energy = offer.energy_kwh_per_million_inferences
        known = f"; {energy:.3g} kWh per million inferences (only GPUs)" if energy is not None else ""
        when = f", {offer.price_as_of}" if offer.price_as_of else ""
        prices.append(Text(f"{offer.run}: {offer.describes} ({offer.price_source}{when}){known}", style="dim"))
    return Group(Panel(Text.from_markup(headline)), table, "", *prices)
