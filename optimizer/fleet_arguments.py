"""The arguments of `optimize fleet`, checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.errors import BadInput
from optimizer.fleet import FleetOrder
from search.prices import TERMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from search.prices import Term


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
    """What was asked for. Raises BadInput, naming the option."""
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
    """Pairs of a run and its positive number from texts such as `runs/a=0.5`."""
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
