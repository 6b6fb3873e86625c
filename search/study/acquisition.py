"""Rank the predicted configurations that are worth a run, the most promising first, by the objective."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from model_repo.spec import ServingConfig
from search.records.trial import Cause, PredictionRecord, WhyRecord
from search.simulator.service_times_file import service_times_record
from search.simulator.surrogate import Kind, Predicted, Surrogate
from search.space import knobs_of
from search.study.store import TrialStore
from search.study.trial_runner import TrialRunner
from search.trials.predicted_trial import run_predicted_trial
from search.trials.trial import Trial

WORTH = 1.015
"""A prediction is worth a run if its optimistic value is more than 1.5 % above the best verified value."""

SPARING = 0.25
"""A service class can only take the least energy if its predicted rate is at least 25 % of the best rate."""


def rank_candidates(surrogate: Surrogate, store: TrialStore) -> Iterator[Predicted]:
    """Yield predictions that may beat the best so far, of points that are untried and not being measured."""
    orders = {"cost": _by_rate, "latency": _by_latency, "energy": _by_energy}
    promising = orders[store.objective.name](surrogate, store)
    return (prediction for prediction in promising if store.untried(prediction.knobs))


def verify(
    runner: TrialRunner, surrogate: Surrogate, prediction: Predicted, cause: Cause = "predicted", *, once: bool
) -> Trial | None:
    """Run the trial of a prediction, see `run_predicted_trial`; None if it is tried already, or was stopped."""
    asked = runner.store.ask_for([prediction.knobs], wanted=lambda _: True)

    def measured(config: ServingConfig, number: int) -> Trial | None:
        server = surrogate.server(config)
        return run_predicted_trial(runner, server, config, number, prediction.rate_per_s, once=once)

    why = why_predicted(prediction, surrogate, runner.store, cause)
    return None if asked is None else runner.run_trial(asked, measured, why)


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


def _by_rate(surrogate: Surrogate, store: TrialStore) -> Iterator[Predicted]:
    least = WORTH * _best_per_s(surrogate, store)
    for prediction in surrogate.best_first():
        if prediction.at_best <= least:
            return
        yield prediction


def _best_per_s(surrogate: Surrogate, store: TrialStore) -> float:
    """Return the capacity of the best so far, at least as it is predicted.

    Its measured estimate is cautious. Compared with that, adjacent points, which are predicted without caution,
    would all look worth a run.
    """
    best = store.best()
    if best is None:
        return 0.0
    predicted = surrogate.predicted(knobs_of(best.served))
    return max(best.rate_at_limit_per_s or 0.0, 0.0 if predicted is None else predicted.rate_per_s)


def _by_latency(surrogate: Surrogate, store: TrialStore) -> Iterator[Predicted]:
    """Yield predictions that may meet the SLO at the rate with a lower latency than the best.

    If no prediction meets it there, yield the nearest one, so that a rate within reach can be reported.
    """
    rate_per_s, most_ms = store.objective.rate_per_s, _most(store)
    assert rate_per_s is not None
    able = [one for one in surrogate.best_first() if one.at_best >= rate_per_s]
    latencies = [surrogate.latency_ms(one, rate_per_s) for one in able]
    for latency_ms, index in sorted(zip(latencies, range(len(able)), strict=True)):
        if latency_ms * math.exp(-able[index].sd) < most_ms:
            yield able[index]
    if not able and not store.trials[1:]:
        yield from surrogate.best_first()[:1]


def _by_energy(surrogate: Surrogate, store: TrialStore) -> Iterator[Predicted]:
    """Yield the fastest of each group whose power is not known, then those that may take the least energy.

    All configurations of a group are assumed to need the power that was measured for it.
    """
    power = _power(surrogate, store)
    predictions = surrogate.best_first()
    fastest: dict[tuple[Kind, int], Predicted] = {}
    for prediction in predictions:
        if prediction.at_best >= SPARING * predictions[0].at_best:
            fastest.setdefault(_group(surrogate, prediction.knobs), prediction)
    yield from (prediction for group, prediction in fastest.items() if group not in power)
    most = _most(store)
    groups = [(_group(surrogate, one.knobs), one) for one in predictions]
    energies = [(power[group] / one.at_best, one) for group, one in groups if group in power]
    yield from (one for energy, one in sorted(energies, key=lambda pair: pair[0]) if energy < most)


def _power(surrogate: Surrogate, store: TrialStore) -> dict[tuple[Kind, int], float]:
    """Return the power of each group that was measured, the lowest if there are several."""
    found: dict[tuple[Kind, int], float] = {}
    for trial in store.trials:
        worth = store.objective.worth(trial)
        if worth is not None and trial.measurement is not None:
            group = _group(surrogate, knobs_of(trial.served))
            power = -worth * trial.measurement.achieved_rate_per_s
            found[group] = min(power, found.get(group, power))
    return found


def _group(surrogate: Surrogate, knobs: Mapping[str, int | str]) -> tuple[Kind, int]:
    return surrogate.kind_of(knobs), int(knobs["instance_count"])


def _most(store: TrialStore) -> float:
    """Return the latency or energy that a candidate has to stay below."""
    best = store.best()
    worth = None if best is None else store.objective.worth(best)
    return math.inf if worth is None else -worth / WORTH
