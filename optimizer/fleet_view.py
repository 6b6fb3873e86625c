"""A fleet's plan on the terminal: the bill first, then the hours, then what else it could be."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from optimizer.report import dollars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from search.fleet_records import FleetRecord, OfferRecord


def fleet_view(fleet: FleetRecord) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [_headline(fleet), _hours(fleet), ""]
    if fleet.alternatives:
        parts += [_alternatives(fleet), ""]
    parts += [Text.from_markup(line) for line in _offers(fleet)]
    return Group(*parts)


def _headline(fleet: FleetRecord) -> Panel:
    low, high = min(fleet.rates_per_s), max(fleet.rates_per_s)
    traffic = f"{high:,.0f} requests/s" if low == high else f"{low:,.0f} to {high:,.0f} requests/s"
    spare = f", {100 * fleet.headroom:g} % of every replica left free" if fleet.headroom else ""
    text = (
        f"[bold green]{dollars(fleet.usd_per_day)} a day[/bold green] serves {traffic} with "
        f"p{100 * fleet.quantile:g} within {fleet.limit_ms:g} ms{spare}"
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
            dollars(usd),
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
        table.add_row(other.plan, most, dollars(other.usd_per_day), f"{100 * other.dearer_by:.1f} %")
    return table


def _offer_name(fleet: FleetRecord, offer: OfferRecord) -> str:
    """The run, and how it is bought where it is offered in two ways."""
    twice = sum(other.run == offer.run for other in fleet.offers) > 1
    return f"{offer.run} {offer.term}" if twice else offer.run


def _offers(fleet: FleetRecord) -> Iterator[str]:
    for offer in fleet.offers:
        energy = offer.energy_kwh_per_million_inferences
        known = f", {energy:.3g} kWh per million (GPUs alone)" if energy is not None else ""
        when = f", {offer.price_as_of}" if offer.price_as_of else ""
        kept = ", paid around the clock" if offer.committed else ""
        yield (
            f"[bold]{escape(_offer_name(fleet, offer))}[/bold]  {offer.certified_rate_per_s:,.0f}/s certified, "
            f"{dollars(offer.usd_per_hour)} an hour{kept}{known} "
            f"[dim]{escape(offer.describes)} ({escape(offer.price_source + when)})[/dim]"
        )
