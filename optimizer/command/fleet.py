"""`optimize fleet`: how many machines of each of several runs a rate needs, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.records.formats import format_rate
from optimizer.reports.compare import check_same_limits, check_same_traffic
from search.choices import TERMS, Term
from search.cost.cost import replicas
from search.records.fleet import FleetRecord, OfferRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation

MAX_REPLICAS = 10_000
"""If more are needed, the rates or the units are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOrder:
    """A request for a plan. Keys of the prices are the runs' directories as they were given."""

    runs: tuple[Path, ...]
    rate_per_s: float
    term: Term | None
    prices_usd_per_hour: Mapping[Path, float]
    headroom: float


def plan_fleet(order: FleetOrder) -> FleetRecord:
    """Return what the rate costs on the machine of each run, the cheapest first. Raises BadInput."""
    found = {path: read_recommendation(path) for path in order.runs}
    _check_one_promise(found)
    names = _names(order.runs)
    offers = [_offer(order, path, names[path], found[path]) for path in order.runs]
    first = found[order.runs[0]].slo.first
    return FleetRecord(
        rate_per_s=order.rate_per_s,
        headroom=order.headroom,
        limit_ms=first.limit_ms,
        quantile=first.quantile,
        offers=tuple(sorted(offers, key=lambda offer: (offer.usd_per_hour, offer.replicas))),
    )


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
        check_same_traffic(path, other, first)
        check_same_limits(path, other.slo, first.slo)


def _names(runs: Sequence[Path]) -> dict[Path, str]:
    """Return the directories' names; whole paths if two have the same name."""
    last = [path.resolve().name for path in runs]
    return {path: name if last.count(name) == 1 else str(path) for path, name in zip(runs, last, strict=True)}


def _offer(order: FleetOrder, path: Path, name: str, found: RecommendationRecord) -> OfferRecord:
    """Return as many of the run's machines as the rate needs, with their price. Raises BadInput."""
    certificate, price = found.winner.certificate, found.cost.price
    assert certificate is not None
    count = replicas(order.rate_per_s, certificate.rate_per_s, headroom=order.headroom)
    if count > MAX_REPLICAS:
        raise BadInput(
            f"{format_rate(order.rate_per_s)}/s would take over {MAX_REPLICAS:,} machines of {path}.",
            "Check the rate's unit (requests per second).",
        )
    given = path in order.prices_usd_per_hour
    term, usd = _price(order, path, found)
    return OfferRecord(
        run=name,
        certified_rate_per_s=certificate.rate_per_s,
        replicas=count,
        usd_per_replica_hour=usd,
        usd_per_hour=count * usd,
        term=term,
        price_source="--price-per-hour" if given else price.source,
        price_as_of="" if given else price.as_of,
        describes="as given" if given else price.describes,
        energy_kwh_per_million_inferences=found.cost.energy_kwh_per_million_inferences,
    )


def _price(order: FleetOrder, path: Path, found: RecommendationRecord) -> tuple[Term | None, float]:
    """Return the wanted term and its USD per hour. Raises BadInput if it has no price."""
    price = found.cost.price
    if path in order.prices_usd_per_hour:
        return order.term, order.prices_usd_per_hour[path]
    known: dict[Term | None, float] = {price.term: price.usd_per_hour}
    known.update(price.other_terms_usd_per_hour.items())
    term = price.term if order.term is None else order.term
    if term not in known:
        have = ", ".join(one for one in TERMS if one in known) or f"only {price.source}"
        raise BadInput(
            f"The run in {path} has no {term} price (it has: {have}).",
            f"Give the price: --price-per-hour {path}=USD",
        )
    return term, known[term]


def fleet_order(
    runs: Sequence[Path], *, rate: float | None, prices: Sequence[str], term: str | None, headroom: float
) -> FleetOrder:
    """Check the options and return the request. Raises BadInput, which names the option."""
    if rate is None:
        raise BadInput("A fleet is for some traffic, and none was given.", "Add --rate PER_S")
    if not 0 < rate < math.inf:
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
    known = next((one for one in TERMS if one == term), None)
    if term is not None and known is None:
        raise BadInput(f"--price-term {term} is no way to buy a machine.", f"Choose among {', '.join(TERMS)}.")
    return FleetOrder(
        runs=tuple(runs),
        rate_per_s=rate,
        term=known,
        prices_usd_per_hour=dict(_by_run(runs, prices, option="--price-per-hour")),
        headroom=headroom,
    )


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
