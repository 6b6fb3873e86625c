"""Rank the predicted configurations that are worth a run, the most promising first, by the objective."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median

from model_repo.spec import ServingConfig
from search.records.run_files import PredictedRecord
from search.records.trial import Cause, PredictionRecord, WhyRecord
from search.simulator.replay import MIN_REPLAY_S
from search.simulator.service_times_file import service_times_record
from search.simulator.surrogate import Predicted, Surrogate
from search.space import knobs_of
from search.study.belief import Belief
from search.study.store import TrialStore
from search.trials.objective import Prospects
from search.trials.trial import config_to_record

PATIENCE_S = 2000.0
"""A rate that is 1 % higher is worth 20 s more, of whatever is done in them."""

PROFILES = 2
"""How often a kind was profiled whose times were kept by a run that is resumed."""


def rank_candidates(
    surrogate: Surrogate, belief: Belief, store: TrialStore, then_s: float = 0.0, *, by_luck: bool = False
) -> Iterator[Predicted]:
    """Yield predictions that are worth a trial, of points that are untried and not being measured; the best first.

    `then_s`: the seconds that follow a trial because of it. `by_luck`: only those whose profiles may all have met
    slow phases, which is not known before the machine is.
    """
    by_gain = _by_gain(surrogate, belief, store, then_s, by_luck=by_luck)
    known = Prospects(surrogate=surrogate, trials=store.trials, best=store.best(), by_gain=by_gain)
    return (prediction for prediction in store.objective.rank(known) if store.untried(prediction.knobs))


def why_predicted(
    prediction: Predicted, surrogate: Surrogate, store: TrialStore, cause: Cause = "predicted"
) -> WhyRecord:
    """Return the reason of a trial with its prediction as of now, and the rank of that among the untried ones."""
    tried = [knobs_of(trial.served) for trial in store.trials]
    untried = [one for one in surrogate.best_first() if one.knobs not in tried]
    best = store.best()
    record = PredictionRecord(
        rate_per_s=prediction.rate_per_s,
        sd=prediction.sd,
        simulated_per_s=prediction.simulated_per_s,
        rank=1 + sum(one.at_best > prediction.at_best for one in untried),
        untried=len(untried),
        to_beat_per_s=None if best is None else best.rate_at_limit_per_s,
        service_times=service_times_record(surrogate.server(store.space.config(prediction.knobs))),
    )
    return WhyRecord(cause=cause, prediction=record)


CURVE_SHARES = (0.02, *(share / 20 for share in range(2, 20, 2)), 0.95, 0.98, 1.0, 1.02, 1.05, 1.1)
"""The latency over the rate is simulated at these shares of the capacity."""


def predictions(surrogate: Surrogate, answers: Iterable[ServingConfig]) -> Iterator[PredictedRecord]:
    """Yield the best prediction of each batch size and instance count, then those of `answers` with curves."""
    best: dict[tuple[int | str, int | str], Predicted] = {}
    for one in sorted(surrogate.all_predicted(), key=lambda one: -one.rate_per_s):
        best.setdefault((one.knobs["max_batch_size"], one.knobs["instance_count"]), one)
    shown = [surrogate.predicted(knobs_of(config)) for config in answers]
    for place, one in enumerate((*best.values(), *filter(None, shown))):
        rates = [share * one.rate_per_s for share in CURVE_SHARES if place >= len(best) and one.rate_per_s > 0]
        curve = tuple((rate_per_s, surrogate.latency_ms(one, rate_per_s)) for rate_per_s in rates)
        config = config_to_record(surrogate.space.config(one.knobs))
        yield PredictedRecord(config=config, rate_per_s=one.rate_per_s, curve=curve)


def _by_gain(
    surrogate: Surrogate, belief: Belief, store: TrialStore, then_s: float, *, by_luck: bool
) -> Iterator[Predicted]:
    """Yield those of which more is expected than the seconds of a trial are worth.

    What was never tried may only have been profiled in slow phases: with the probability of these, its executions
    are as much faster as slow phases are slower.
    """
    best_per_s = _best_per_s(surrogate, belief, store)
    if not best_per_s:
        yield from surrogate.best_first()
        return
    tried = {belief.speed.profile_of(trial.served) for trial in store.trials}
    slow, factor = belief.speed.slow_share()

    def gain(one: Predicted) -> float:
        above = math.log(one.rate_per_s / best_per_s)
        profile = belief.speed.profile_of(store.space.config(one.knobs))
        unlucky = 0.0 if profile in tried else slow ** (surrogate.profiles[profile] or PROFILES)
        usual = 0.0 if by_luck else (1 - unlucky) * _expected_above(above, one.sd)
        return usual + unlucky * _expected_above(above + factor, one.sd)

    gains = [(gain(one), one) for one in surrogate.best_first()]
    took_s = [trial.loading_s + trial.load_s for trial in store.trials if trial.state == "complete"]
    least = (max(MIN_REPLAY_S, median(took_s or [0.0])) + then_s) / PATIENCE_S
    yield from (one for gained, one in sorted(gains, key=lambda each: -each[0]) if gained > least)


def _expected_above(mean: float, sd: float) -> float:
    """Return E[max(0, X)] of a normal X: what a candidate may gain over the best (expected improvement)."""
    z = mean / sd
    return sd * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) + mean * (1 + math.erf(z / math.sqrt(2))) / 2


def _best_per_s(surrogate: Surrogate, belief: Belief, store: TrialStore) -> float:
    """Return the capacity of the best so far, at least as it is predicted; 0: there is none.

    Adjacent points, which are predicted, would else all look worth a trial if the best is slower than predicted.
    """
    able = [trial for trial in store.best_first() if trial.rate_at_limit_per_s]
    best = max(able, key=belief.usual_per_s, default=None)
    if best is None:
        return 0.0
    predicted = surrogate.predicted(knobs_of(best.served))
    return max(belief.usual_per_s(best), 0.0 if predicted is None else predicted.rate_per_s)
