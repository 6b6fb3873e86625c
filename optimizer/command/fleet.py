"""`optimize fleet`: how many machines of each of several runs a rate needs, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.records.comparison import check_same
from loadgen.records.formats import format_rate
from search.answer.comparison import conditions
from search.choices import TERMS, Term
from search.cost.cost import replicas
from search.records.fleet import FleetRecord, OfferRecord
from search.records.recommendation import RecommendationRecord
from search.records.run_files import named_run, read_recommendation

MAX_REPLICAS = 10_000
"""If more are needed, the rates or the units are wrong."""


def plan_fleet(
    runs: Sequence[Path],
    *,
    rate_per_s: float,
    prices: Sequence[str] = (),
    term: Term | None = None,
    headroom: float = 0.0,
) -> FleetRecord:
    """Return what the rate costs on the machine of each run, the cheapest first.

    `prices` are texts such as `runs/a=0.5`, in USD per hour. Raises BadInput.
    """
    if len({path.resolve() for path in runs}) < len(runs):
        raise BadInput(
            "One run was given twice.", "Give every run's directory once; replicas are counted for you."
        )
    given = dict(_given_prices(runs, prices))
    found = {path: read_recommendation(path) for path in runs}
    _check_one_promise(found)
    last = [path.resolve().name for path in runs]
    offers = []
    for path, run in found.items():
        name = path.resolve().name
        price = run.cost.price
        own = path in given
        bought, usd = (term, given[path]) if own else _price(path, run, term)
        certificate = run.winner.certificate
        assert certificate is not None
        count = replicas(rate_per_s, certificate.rate_per_s, headroom=headroom)
        if count > MAX_REPLICAS:
            raise BadInput(
                f"{format_rate(rate_per_s)}/s would take over {MAX_REPLICAS:,} machines of {path}.",
                "Check the rate's unit (requests per second).",
            )
        offers.append(
            OfferRecord(
                run=name if last.count(name) == 1 else str(path),
                certified_rate_per_s=certificate.rate_per_s,
                provisional=run.provisional,
                replicas=count,
                usd_per_replica_hour=usd,
                usd_per_hour=count * usd,
                term=bought,
                price_source="--price-per-hour" if own else price.source,
                price_as_of="" if own else price.as_of,
                describes="as given" if own else price.describes,
                energy_kwh_per_million_inferences=run.cost.energy_kwh_per_million_inferences,
            )
        )
    first = found[runs[0]].slo.first
    return FleetRecord(
        rate_per_s=rate_per_s,
        headroom=headroom,
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
        check_same(path, conditions(other.slo, other.workload), conditions(first.slo, first.workload))


def _price(path: Path, found: RecommendationRecord, term: Term | None) -> tuple[Term | None, float]:
    """Return the wanted term and its recorded USD per hour. Raises BadInput if it has no price."""
    price = found.cost.price
    known = {price.term: price.usd_per_hour} | dict[Term | None, float](price.other_terms_usd_per_hour.items())
    wanted = term or price.term
    if wanted not in known:
        have = ", ".join(one for one in TERMS if one in known) or f"only {price.source}"
        raise BadInput(
            f"The run in {path} has no {wanted} price (it has: {have}).",
            f"Give the price: --price-per-hour {path}=USD",
        )
    return wanted, known[wanted]


def _given_prices(runs: Sequence[Path], texts: Sequence[str]) -> Iterator[tuple[Path, float]]:
    """Yield the run and the price of each `--price-per-hour`. Raises BadInput."""
    for text in texts:
        name, _, number = text.rpartition("=")
        run = next((path for path in runs if name and path.resolve() == named_run(Path(name)).resolve()), None)
        if run is None:
            raise BadInput(
                f"--price-per-hour {text} names none of the runs.",
                "Write --price-per-hour RUN_DIR=NUMBER with a run that is given.",
            )
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise BadInput(
                f"--price-per-hour {text} has no number above zero.", f"Write --price-per-hour {name}=NUMBER"
            )
        yield run, value
