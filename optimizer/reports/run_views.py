"""The explanation of a trial and the plan of a fleet, on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.records.formats import UNKNOWN, format_dollars, format_ms, format_rate
from loadgen.spec.limits import quantile_name
from optimizer.reports.reasons import confirmation_answer, load_run_answer
from search.answer.explain import Explanation
from search.labels import record_text
from search.records.fleet import FleetRecord, OfferRecord

_ROLES = {
    "winner": ", the recommendation",
    "baseline": ", the baseline",
    "alternative": ", an alternative of the recommendation",
    None: "",
}


def explanation_view(explanation: Explanation) -> RenderableType:
    """Return four questions and their answers, with every load run that decided anything."""
    trial = explanation.trial
    on_gpu = trial.measurement is not None and trial.measurement.gpu is not None
    knobs = record_text(trial.config, on_gpu=on_gpu)
    parts: list[RenderableType] = [
        Text.from_markup(f"[bold]Trial {trial.number}[/bold]{_ROLES[explanation.role]}: {escape(knobs)}"),
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


def fleet_view(fleet: FleetRecord) -> RenderableType:
    """Return the plan of a fleet: its price, the hours, alternatives and machines."""
    parts: list[RenderableType] = [_headline(fleet), _hours(fleet), ""]
    if fleet.alternatives:
        parts += [_alternatives(fleet), ""]
    parts += [Text.from_markup(line) for line in _offers(fleet)]
    return Group(*parts)


def _headline(fleet: FleetRecord) -> Panel:
    low, high = min(fleet.rates_per_s), max(fleet.rates_per_s)
    start = "" if low == high else f"{format_rate(low)} to "
    traffic = f"{start}{format_rate(high)} requests/s"
    spare = f", {100 * fleet.headroom:g} % of every replica left free" if fleet.headroom else ""
    text = (
        f"[bold green]{format_dollars(fleet.usd_per_day)} a day[/bold green] serves {traffic} with "
        f"{quantile_name(fleet.quantile)} within {fleet.limit_ms:g} ms{spare}"
    )
    return Panel(Text.from_markup(text), title="cheapest fleet", title_align="left")


def _hours(fleet: FleetRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("hours")
    table.add_column("requests/s", justify="right")
    for offer in fleet.offers:
        table.add_column(_offer_name(fleet, offer), justify="right")
    table.add_column("an hour", justify="right")
    for (replicas, usd), group in groupby(fleet.hours, key=lambda hour: (hour.replicas, hour.usd)):
        hours = list(group)
        rates = sorted({round(hour.rate_per_s) for hour in hours})
        table.add_row(
            f"{hours[0].hour:02}-{hours[-1].hour + 1:02}",
            f"{rates[0]:,}" if len(rates) == 1 else f"{rates[0]:,} to {rates[-1]:,}",
            *(str(count) if count else "-" for count in replicas),
            format_dollars(usd),
        )
    return table


def _alternatives(fleet: FleetRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("instead")
    table.add_column("replicas at most", justify="right")
    table.add_column("a day", justify="right")
    table.add_column("dearer by", justify="right")
    for other in fleet.alternatives:
        if other.usd_per_day is None or other.most_replicas is None or other.dearer_by is None:
            table.add_row(other.plan, "cannot serve the highest rate", "-", "-")
            continue
        most = " + ".join(str(count) for count in other.most_replicas if count) or "0"
        table.add_row(other.plan, most, format_dollars(other.usd_per_day), f"{100 * other.dearer_by:.1f} %")
    return table


def _offer_name(fleet: FleetRecord, offer: OfferRecord) -> str:
    """Return the run's name, with its term if the run is offered on two terms."""
    twice = sum(other.run == offer.run for other in fleet.offers) > 1
    return f"{offer.run} {offer.term}" if twice else offer.run


def _offers(fleet: FleetRecord) -> Iterator[str]:
    for offer in fleet.offers:
        energy = offer.energy_kwh_per_million_inferences
        known = f", {energy:.3g} kWh per million (only GPUs)" if energy is not None else ""
        when = f", {offer.price_as_of}" if offer.price_as_of else ""
        kept = ", paid around the clock" if offer.committed else ""
        yield (
            f"[bold]{escape(_offer_name(fleet, offer))}[/bold]  {format_rate(offer.certified_rate_per_s)}/s "
            f"certified, {format_dollars(offer.usd_per_hour)} an hour{kept}{known} "
            f"[dim]{escape(offer.describes)} ({escape(offer.price_source + when)})[/dim]"
        )
