"""Which predicted configurations are worth a run, the most promising first, by what is asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from search.space import knobs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from search.forecast import Forecast, Kind, Predicted
    from search.ledger import Ledger

WORTH = 1.005
"""What a prediction must be at its best, against the best verified one, to be worth a run."""

SPARING = 0.25
"""Of the best predicted rate, the least at which a kind of instance group may still take the least energy."""


def worth_verifying(forecast: Forecast, ledger: Ledger) -> Iterator[Predicted]:
    """Predictions that may beat the best so far, of what is untried and not being tried."""
    orders = {"cost": _by_rate, "latency": _by_latency, "energy": _by_energy}
    promising = orders[ledger.objective.name](forecast, ledger)
    return (prediction for prediction in promising if ledger.untried(prediction.knobs))


def _by_rate(forecast: Forecast, ledger: Ledger) -> Iterator[Predicted]:
    least = WORTH * _best_per_s(forecast, ledger)
    for prediction in forecast.best_first():
        if prediction.at_best <= least:
            return
        yield prediction


def _best_per_s(forecast: Forecast, ledger: Ledger) -> float:
    """What the best so far keeps, by the same reckoning as the predictions: its own estimate is a cautious one, so
    that its neighbours, predicted without caution, would all look worth a run.
    """
    best = ledger.best()
    if best is None:
        return 0.0
    predicted = forecast.predicted(knobs_of(best.config))
    return max(best.rate_at_limit_per_s or 0.0, 0.0 if predicted is None else predicted.rate_per_s)


def _by_latency(forecast: Forecast, ledger: Ledger) -> Iterator[Predicted]:
    """Those that may keep the limits at the rate, and answer sooner than the best does.

    Where no prediction keeps them there, the one that comes nearest, so that it is seen what is within reach.
    """
    rate_per_s, most_ms = ledger.objective.rate_per_s, _most(ledger)
    assert rate_per_s is not None
    able = [one for one in forecast.best_first() if one.at_best >= rate_per_s]
    latencies = [forecast.latency_ms(one, rate_per_s) for one in able]
    for latency_ms, index in sorted(zip(latencies, range(len(able)), strict=True)):
        if latency_ms * math.exp(-able[index].sd) < most_ms:
            yield able[index]
    if not able and not ledger.current[1:]:
        yield from forecast.best_first()[:1]


def _by_energy(forecast: Forecast, ledger: Ledger) -> Iterator[Predicted]:
    """First the fastest of each kind of instance group whose power is not known; then what may take the least.

    All of a kind are taken to need as much power as those that were measured.
    """
    power = _power(forecast, ledger)
    predictions = forecast.best_first()
    fastest: dict[tuple[Kind, int], Predicted] = {}
    for prediction in predictions:
        if prediction.at_best >= SPARING * predictions[0].at_best:
            fastest.setdefault(_group(forecast, prediction.knobs), prediction)
    yield from (prediction for group, prediction in fastest.items() if group not in power)
    most = _most(ledger)
    groups = [(_group(forecast, one.knobs), one) for one in predictions]
    energies = [(power[group] / one.at_best, one) for group, one in groups if group in power]
    yield from (one for energy, one in sorted(energies, key=lambda pair: pair[0]) if energy < most)


def _power(forecast: Forecast, ledger: Ledger) -> dict[tuple[Kind, int], float]:
    """Energy times rate of each kind that was measured, the least where there are several."""
    found: dict[tuple[Kind, int], float] = {}
    for trial in ledger.current:
        worth = ledger.objective.worth(trial)
        if worth is not None and trial.measurement is not None:
            group = _group(forecast, knobs_of(trial.config))
            power = -worth * trial.measurement.achieved_rate_per_s
            found[group] = min(power, found.get(group, power))
    return found


def _group(forecast: Forecast, knobs: Mapping[str, int | str]) -> tuple[Kind, int]:
    return forecast.kind_of(knobs), int(knobs["instance_count"])


def _most(ledger: Ledger) -> float:
    """What is to be undercut, of figures that are better the smaller they are."""
    best = ledger.best()
    worth = None if best is None else ledger.objective.worth(best)
    return math.inf if worth is None else -worth / WORTH
