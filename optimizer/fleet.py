"""`optimize fleet`: the cheapest mix of the machines that several runs measured, for a day's traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizer.errors import BadInput
from search.demand import traffic_text
from search.fleet import Option, RateTooHigh
from search.fleet_day import TooManyPlans, cheapest_day, held_day
from search.fleet_records import (
    AlternativeRecord,
    FleetRecord,
    HourRecord,
    OfferRecord,
)
from search.prices import COMMITMENTS, TERMS
from search.run_files import read_recommendation
from search.traffic import constant_rate, read_traffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from search.fleet_day import DayPlan
    from search.prices import Term
    from search.records import RecommendationRecord
    from search.traffic import DayRates


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOrder:
    """What was asked for. Prices and limits are by the runs' directories as they were given."""

    runs: tuple[Path, ...]
    rate_per_s: float | None
    traffic: Path | None
    terms: tuple[Term, ...]
    prices_usd_per_hour: Mapping[Path, float]
    at_most: Mapping[Path, int]
    headroom: float


def plan_fleet(order: FleetOrder) -> FleetRecord:
    """The cheapest day and what the alternatives cost. Raises BadInput."""
    rates = _day(order)
    found = {path: read_recommendation(path) for path in order.runs}
    _check_one_promise(found)
    names = _names(order.runs)
    pairs = [pair for path in order.runs for pair in _offers(order, path, names[path], found[path])]
    options = [option for option, _ in pairs]
    try:
        best = cheapest_day(options, rates)
    except RateTooHigh as error:
        raise BadInput(
            f"The highest rate, {error.rate_per_s:,.0f}/s, is over the fleet's limit: all replicas together serve "
            f"{error.most_per_s:,.0f}/s.",
            "Raise --at-most, add a run on another machine, or check the rate's unit (requests per second).",
        ) from error
    except TooManyPlans as error:
        raise BadInput(
            f"The best commitments cannot be found: {error}.",
            "Limit them with --at-most, or give one --price-term.",
        ) from error
    return FleetRecord(
        rates_per_s=rates,
        headroom=order.headroom,
        limit_ms=found[order.runs[0]].slo.limit_ms,
        quantile=found[order.runs[0]].slo.quantile,
        offers=tuple(offer for _, offer in pairs),
        hours=tuple(
            HourRecord(hour=hour, rate_per_s=rate, replicas=mix.counts, usd=mix.usd_per_hour)
            for hour, (rate, mix) in enumerate(zip(rates, best.hours, strict=True))
        ),
        usd_per_day=best.usd_per_day,
        alternatives=tuple(_alternatives(options, rates, best)),
    )


def _day(order: FleetOrder) -> DayRates:
    if (order.rate_per_s is None) == (order.traffic is None):
        raise BadInput(
            "A fleet is for some traffic: one rate, or a curve over the day.",
            "Add either --rate PER_S or --traffic FILE.csv",
        )
    if order.traffic is not None:
        return read_traffic(order.traffic)
    assert order.rate_per_s is not None
    return constant_rate(order.rate_per_s)


def _check_one_promise(found: Mapping[Path, RecommendationRecord]) -> None:
    """Replicas share traffic only if they serve the same model under the same limit."""
    (first_path, first), *others = found.items()
    for path, other in others:
        if other.model.sha256 != first.model.sha256:
            raise BadInput(
                f"{path} is a run of {other.model.name} ({other.model.sha256[:12]}), {first_path} one of "
                f"{first.model.name} ({first.model.sha256[:12]}): they cannot share traffic.",
                "Give runs of one model file.",
            )
        if other.demand.text != first.demand.text:
            raise BadInput(
                f"{path} was measured with {traffic_text(other.demand)}, {first_path} with "
                f"{traffic_text(first.demand)}.",
                "Give runs under the same traffic.",
            )
        if other.slo.limits != first.slo.limits:
            raise BadInput(
                f"{path} keeps {other.slo.text}, {first_path} {first.slo.text}.",
                "Give runs with the same limit.",
            )


def _names(runs: Sequence[Path]) -> dict[Path, str]:
    """The directories' names; whole paths where two are called the same."""
    last = [path.resolve().name for path in runs]
    return {path: name if last.count(name) == 1 else str(path) for path, name in zip(runs, last, strict=True)}


def _offers(
    order: FleetOrder, path: Path, name: str, found: RecommendationRecord
) -> Iterator[tuple[Option, OfferRecord]]:
    """The run's machine by the hour and committed, each at the cheapest of the wanted terms that have a price."""
    certificate = found.winner.certificate
    assert certificate is not None
    prices = _prices(order, path, found)
    for committed in (False, True):
        fitting = {term: usd for term, usd in prices.items() if (term in COMMITMENTS) == committed}
        if not fitting:
            continue
        term = min(fitting, key=lambda term: fitting[term])
        option = Option(
            name=name,
            rate_per_s=certificate.rate_per_s * (1 - order.headroom),
            usd_per_hour=fitting[term],
            at_most=order.at_most.get(path),
            committed=committed,
        )
        price = found.cost.price
        given = path in order.prices_usd_per_hour
        yield (
            option,
            OfferRecord(
                run=name,
                certified_rate_per_s=certificate.rate_per_s,
                usd_per_hour=option.usd_per_hour,
                term=term,
                committed=committed,
                price_source="--price-per-hour" if given else price.source,
                price_as_of="" if given else price.as_of,
                describes="as given" if given else price.describes,
                energy_kwh_per_million_inferences=found.cost.energy_kwh_per_million_inferences,
            ),
        )


def _prices(order: FleetOrder, path: Path, found: RecommendationRecord) -> dict[Term | None, float]:
    """USD an hour by term. A price that was given holds for the terms that were asked for."""
    price = found.cost.price
    if path in order.prices_usd_per_hour:
        only_commitments = bool(order.terms) and all(term in COMMITMENTS for term in order.terms)
        return {order.terms[0] if only_commitments else None: order.prices_usd_per_hour[path]}
    if not order.terms:
        return {price.term: price.usd_per_hour}
    known: dict[Term | None, float] = {price.term: price.usd_per_hour}
    known.update(price.other_terms_usd_per_hour.items())
    wanted: dict[Term | None, float] = {term: known[term] for term in order.terms if term in known}
    if not wanted:
        have = ", ".join(term for term in TERMS if term in known) or f"only {price.source}"
        raise BadInput(
            f"The run in {path} has no {' or '.join(order.terms)} price (it has: {have}).",
            f"Say what it costs: --price-per-hour {path}=USD",
        )
    return wanted


def _alternatives(options: Sequence[Option], rates: DayRates, best: DayPlan) -> Iterator[AlternativeRecord]:
    """Each run alone, and the peak's fleet kept all day; dearest last."""
    plans: dict[str, DayPlan | None] = {}
    names = dict.fromkeys(option.name for option in options)
    for name in names if len(names) > 1 else ():
        indices = [index for index, option in enumerate(options) if option.name == name]
        try:
            alone = cheapest_day([options[index] for index in indices], rates)
        except RateTooHigh:
            plans[f"{name} alone"] = None
            continue
        plans[f"{name} alone"] = _spread(alone, indices, len(options))
    if len(set(rates)) > 1:
        plans["the peak's mix, kept all day"] = held_day(options, rates)
    ordered = sorted(plans.items(), key=lambda item: float("inf") if item[1] is None else item[1].usd_per_day)
    for title, plan in ordered:
        yield AlternativeRecord(
            plan=title,
            usd_per_day=None if plan is None else plan.usd_per_day,
            most_replicas=None if plan is None else plan.most,
            dearer_by=None if plan is None else plan.usd_per_day / best.usd_per_day - 1,
        )


def _spread(plan: DayPlan, indices: Sequence[int], width: int) -> DayPlan:
    """The same plan with zeros for the options that it leaves out."""
    from dataclasses import replace

    def spread(counts: Sequence[int]) -> tuple[int, ...]:
        of = dict(zip(indices, counts, strict=True))
        return tuple(of.get(index, 0) for index in range(width))

    return replace(plan, hours=tuple(replace(mix, counts=spread(mix.counts)) for mix in plan.hours))
