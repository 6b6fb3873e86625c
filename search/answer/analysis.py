"""Rates and latencies: which compare, which no other beats, and how much each knob decided (PED-ANOVA)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence

from search.labels import member_name
from search.records.recommendation import FrontierRecord
from search.records.trial import TrialRecord
from search.space import MEMBER_KNOBS

SIMILAR_RATES = 1.1
"""Latencies are compared if their rates differ by at most 10 %: at higher rates requests wait longer."""


def similar_rates(one_per_s: float, other_per_s: float) -> bool:
    """True if latencies at these rates can be compared."""
    return max(one_per_s, other_per_s) <= SIMILAR_RATES * min(one_per_s, other_per_s)


def unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (rate, latency) pairs that no other beats in both, by rising rate."""
    best: list[tuple[float, float]] = []
    for rate, latency in sorted(points, key=lambda point: (point[1], -point[0])):
        if not best or rate > best[-1][0]:
            best.append((rate, latency))
    return best


def frontier_of(trials: Sequence[TrialRecord]) -> tuple[FrontierRecord, ...]:
    """Return the Pareto frontier of all trusted load runs that met the SLO, also certified ones, by rising rate.

    If a rate and its latency occur twice, the certified run is kept.
    """
    points = sorted(_points(trials), key=lambda point: point.certified)
    by_pair = {(point.rate_per_s, point.latency_ms): point for point in points}
    return tuple(by_pair[pair] for pair in unbeaten(by_pair))


def _points(trials: Sequence[TrialRecord]) -> Iterator[FrontierRecord]:
    for trial in trials:
        runs = [(run.rate_per_s, run.latency_ms, False) for run in trial.load_runs if run.met and run.trusted]
        if trial.certificate is not None:
            runs.append((trial.certificate.rate_per_s, trial.certificate.first.latency_ms, True))
        for rate_per_s, latency_ms, certified in runs:
            if latency_ms is not None and trial.state in ("complete", "pruned"):
                yield FrontierRecord(
                    trial=trial.number,
                    config=trial.config,
                    rate_per_s=rate_per_s,
                    latency_ms=latency_ms,
                    certified=certified,
                )


MIN_TRIALS = 8
"""With fewer than 8 trials, the shares reflect the order of trials more than the knobs."""

TOP_SHARE = 0.25
"""PED-ANOVA ranks the knobs that distinguish the best quarter of the trials. Its default of a tenth would be one
or two trials here."""


def knob_importances(trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Return each knob's importance for being among the best trials, the largest first; they add up to 1.

    Pruned trials count with their upper bound, infeasible ones with 0. Empty if there are fewer than
    `MIN_TRIALS`, or if all have the same rate or the same knobs.
    """
    known = [(_knobs(trial), trial.rate_at_limit_per_s) for trial in trials]
    rated = [(knobs, rate) for knobs, rate in known if rate is not None]
    if len(rated) < MIN_TRIALS or len({rate for _, rate in rated}) < 2:
        return {}
    names = [name for name in rated[0][0] if len({knobs[name] for knobs, _ in rated}) > 1]
    if not names:
        return {}
    return _ped_anova([({name: knobs[name] for name in names}, rate) for knobs, rate in rated])


def _knobs(trial: TrialRecord) -> dict[str, int | str]:
    """Return the knobs of a trial: lists as 0 or 1, without dynamic batching, which follows from the batch."""
    values = trial.config.model_dump(exclude={"dynamic_batching", "members"})
    for member in trial.config.members:
        name, theirs = member_name(member), member.model_dump(include={*MEMBER_KNOBS})
        values |= {f"{name}.{knob}": value for knob, value in theirs.items()}
    return {name: value if isinstance(value, int | str) else int(bool(value)) for name, value in values.items()}


def _ped_anova(rated: Sequence[tuple[dict[str, int | str], float]]) -> dict[str, float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values = {name: sorted({knobs[name] for knobs, _ in rated}) for name in rated[0][0]}
    axes: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(choices) for name, choices in values.items()
    }
    study = optuna.create_study(direction="maximize")
    for knobs, rate in rated:
        study.add_trial(optuna.trial.create_trial(params=knobs, distributions=axes, value=rate))
    with warnings.catch_warnings():
        # "Experimental" means "may change" in Optuna, which our version bounds rule out.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {str(name): float(share) for name, share in found.items()}
