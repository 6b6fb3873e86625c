"""`optimize fleet`: check the arguments, and plan the cheapest mix of measured machines for a day's traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.records.formats import format_rate
from search.choices import COMMITMENTS, TERMS, Term
from search.cost.fleet_day import (
    DayPlan,
    DayRates,
    TooManyPlans,
    cheapest_day,
    constant_rate,
    held_day,
    read_traffic,
)
from search.cost.fleet_mix import Option, RateTooHigh
from search.records.fleet import AlternativeRecord, FleetRecord, HourRecord, OfferRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation
from search.records.slo import traffic_text


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOrder:
    """A request for a plan. Keys of prices and limits are the runs' directories as they were given."""

    runs: tuple[Path, ...]
    rate_per_s: float | None
    traffic: Path | None
    terms: tuple[Term, ...]
    prices_usd_per_hour: Mapping[Path, float]
    at_most: Mapping[Path, int]
    headroom: float


def plan_fleet(order: FleetOrder) -> FleetRecord:
    """Return the cheapest plan of the day and the costs of the alternatives. Raises BadInput."""
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
            f"The highest rate, {format_rate(error.rate_per_s)}/s, is over the fleet's limit: all replicas "
            f"together serve {format_rate(error.most_per_s)}/s.",
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
        limit_ms=found[order.runs[0]].slo.first.limit_ms,
        quantile=found[order.runs[0]].slo.first.quantile,
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
    """Raise BadInput unless all runs have the same model, traffic and limits: only then can they share traffic."""
    (first_path, first), *others = found.items()
    for path, other in others:
        if other.model.sha256 != first.model.sha256:
            raise BadInput(
                f"{path} is a run of {other.model.name} ({other.model.sha256[:12]}), {first_path} one of "
                f"{first.model.name} ({first.model.sha256[:12]}): they cannot share traffic.",
                "Give runs of one model file.",
            )
        if other.workload.text != first.workload.text:
            raise BadInput(
                f"{path} was measured with {traffic_text(other.workload)}, {first_path} with "
                f"{traffic_text(first.workload)}.",
                "Give runs under the same traffic.",
            )
        if other.slo.limits != first.slo.limits:
            raise BadInput(
                f"{path} was certified for {other.slo.text}, {first_path} for {first.slo.text}.",
                "Give runs with the same limit.",
            )


def _names(runs: Sequence[Path]) -> dict[Path, str]:
    """Return the directories' names; whole paths if two have the same name."""
    last = [path.resolve().name for path in runs]
    return {path: name if last.count(name) == 1 else str(path) for path, name in zip(runs, last, strict=True)}


def _offers(
    order: FleetOrder, path: Path, name: str, found: RecommendationRecord
) -> Iterator[tuple[Option, OfferRecord]]:
    """Yield the run's machine by the hour and committed, each at the cheapest wanted term that has a price."""
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
    """Return USD per hour by term. Raises BadInput if no wanted term has a price.

    A price that was given is that of a commitment if only commitments are wanted, else of a machine by the hour.
    """
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
            f"Give the price: --price-per-hour {path}=USD",
        )
    return wanted


def _alternatives(options: Sequence[Option], rates: DayRates, best: DayPlan) -> Iterator[AlternativeRecord]:
    """Yield each run alone, and the peak's fleet kept all day; the cheapest first, impossible ones last."""
    plans: dict[str, DayPlan | None] = {}
    names = dict.fromkeys(option.name for option in options)
    for name in names if len(names) > 1 else ():
        indices = [index for index, option in enumerate(options) if option.name == name]
        try:
            alone = cheapest_day([options[index] for index in indices], rates)
        except RateTooHigh:
            plans[f"only {name}"] = None
            continue
        plans[f"only {name}"] = _spread(alone, indices, len(options))
    if len(set(rates)) > 1:
        plans["the peak's mix, all day"] = held_day(options, rates)
    ordered = sorted(plans.items(), key=lambda item: float("inf") if item[1] is None else item[1].usd_per_day)
    for title, plan in ordered:
        yield AlternativeRecord(
            plan=title,
            usd_per_day=None if plan is None else plan.usd_per_day,
            most_replicas=None if plan is None else plan.most,
            dearer_by=None if plan is None else plan.usd_per_day / best.usd_per_day - 1,
        )


def _spread(plan: DayPlan, indices: Sequence[int], width: int) -> DayPlan:
    """Return the plan with zeros for the options that it leaves out."""
    from dataclasses import replace

    def spread(counts: Sequence[int]) -> tuple[int, ...]:
        of = dict(zip(indices, counts, strict=True))
        return tuple(of.get(index, 0) for index in range(width))

    return replace(plan, hours=tuple(replace(mix, counts=spread(mix.counts)) for mix in plan.hours))


def fleet_order(
    runs: Sequence[Path],
    *,
    rate: float | None,
    traffic: Path | None,
    prices: Sequence[str],
    terms: Sequence[str],
    at_most: Sequence[str],
    headroom: float,
) -> FleetOrder:
    """Check the options and return the request. Raises BadInput, which names the option."""
    if rate is not None and not 0 < rate < math.inf:
        raise BadInput(
            f"--rate {rate:g} is not above zero.", "Give --rate a positive number of requests per second."
        )
    if not 0 <= headroom <= 0.9:
        raise BadInput(f"--headroom {headroom:g} is out of range.", "Give --headroom a share from 0 to 0.9.")
    different = tuple(dict.fromkeys(path.resolve() for path in runs))
    if len(different) < len(runs):
        raise BadInput(
            "One run was given twice.", "Give every run's directory once; replicas are counted for you."
        )
    counts = dict(_by_run(runs, at_most, option="--at-most"))
    for path, count in counts.items():
        if count != int(count):
            raise BadInput(f"--at-most {path}={count:g} is no number of machines.", "Give a whole number.")
    return FleetOrder(
        runs=tuple(runs),
        rate_per_s=rate,
        traffic=traffic,
        terms=tuple(_terms(terms)),
        prices_usd_per_hour=dict(_by_run(runs, prices, option="--price-per-hour")),
        at_most={path: int(count) for path, count in counts.items()},
        headroom=headroom,
    )


def _terms(texts: Sequence[str]) -> Iterator[Term]:
    for text in texts:
        known = next((term for term in TERMS if term == text), None)
        if known is None:
            raise BadInput(f"--price-term {text} is no way to buy a machine.", f"Choose among {', '.join(TERMS)}.")
        yield known


def _by_run(runs: Sequence[Path], texts: Sequence[str], *, option: str) -> Iterator[tuple[Path, float]]:
    """Yield pairs of a run and its positive number, from texts such as `runs/a=0.5`. Raises BadInput."""
    for text in texts:
        name, _, number = text.rpartition("=")
        run = next((path for path in runs if name and path.resolve() == Path(name).resolve()), None)
        if run is None:
            raise BadInput(
                f"{option} {text} names none of the runs.",
                f"Write {option} RUN_DIR=NUMBER with a run that is given.",
            )
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise BadInput(f"{option} {text} has no number above zero.", f"Write {option} {name}=NUMBER")
        yield run, value
