"""How much each knob decided the rate: Optuna's PED-ANOVA over a run's finished trials."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search.records import TrialRecord

LEAST_TRIALS = 8
"""With fewer the shares say more about the order of trials than about the knobs."""

TOP_SHARE = 0.25
"""What counts as good: PED-ANOVA asks which knobs set the best quarter apart. Its default of a tenth would be one
or two trials here."""


def knob_importances(trials: Sequence[TrialRecord]) -> dict[str, float]:
    """Each knob's share of what sets the best trials apart, the largest first; the shares add up to 1.

    Pruned trials count with the bound that they were given up at, infeasible ones with 0. Empty where there are
    fewer than `LEAST_TRIALS`, or all had the same rate or the same knobs.
    """
    known = [(_knobs(trial), trial.rate_at_limit_per_s) for trial in trials]
    rated = [(knobs, rate) for knobs, rate in known if rate is not None]
    if len(rated) < LEAST_TRIALS or len({rate for _, rate in rated}) < 2:
        return {}
    names = [name for name in rated[0][0] if len({knobs[name] for knobs, _ in rated}) > 1]
    if not names:
        return {}
    return _ped_anova([({name: knobs[name] for name in names}, rate) for knobs, rate in rated])


def _knobs(trial: TrialRecord) -> dict[str, int | str]:
    """Lists of sizes count as whether there are any; dynamic batching follows from the batch size."""
    values = trial.config.model_dump(exclude={"dynamic_batching"})
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
        # "Experimental" is optuna's word for "may change", which our version bounds answer.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {str(name): float(share) for name, share in found.items()}
