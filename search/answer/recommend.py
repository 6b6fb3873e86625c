"""From finished trials to the recommendation: gain, cost, alternatives and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from search.choices import ObjectiveName
from search.cost.cost import PriceRecord, cost_per_million_inferences_usd, replicas
from search.labels import knobs_text
from search.records.recommendation import CostRecord
from search.records.trial import TrialRecord
from search.trials.objective import COST, Objective, energy_kwh_of
from search.trials.trial import Trial

ALTERNATIVES = 5


def gain_over(winner: Trial, baseline: Trial | None) -> float | None:
    """Return the winner's certified rate over the baseline's; None if the baseline has no certificate.

    Only certified rates are compared: an estimate could be too high or too low.
    """
    if winner.certificate is None or baseline is None or baseline.certificate is None:
        return None
    return winner.certificate.rate_per_s / baseline.certificate.rate_per_s


def cost_of(
    price: PriceRecord,
    winner: Trial,
    baseline: Trial | None,
    *,
    rate_to_serve_per_s: float | None,
    peak_rate_per_s: float | None = None,
    rows_per_request: int = 1,
) -> CostRecord:
    """Return the cost at the certified rates, with replicas and their total if there is a rate to serve.

    Every batch item of a request is an inference.
    """

    def million_usd(rate_per_s: float) -> float:
        return cost_per_million_inferences_usd(price.usd_per_hour, rows_per_request * rate_per_s)

    assert winner.certificate is not None
    rate = winner.certificate.rate_per_s
    needed = None if rate_to_serve_per_s is None else replicas(rate_to_serve_per_s, rate)
    certified = baseline.certificate if baseline is not None else None
    return CostRecord(
        price=price,
        cost_per_million_inferences_usd=million_usd(rate),
        baseline_cost_per_million_inferences_usd=None if certified is None else million_usd(certified.rate_per_s),
        rate_to_serve_per_s=rate_to_serve_per_s,
        replicas=needed,
        total_usd_per_hour=None if needed is None else needed * price.usd_per_hour,
        energy_kwh_per_million_inferences=energy_of(winner, rows_per_request),
        baseline_energy_kwh_per_million_inferences=None
        if baseline is None
        else energy_of(baseline, rows_per_request),
        peak_rate_per_s=peak_rate_per_s,
    )


def energy_of(trial: TrialRecord, rows_per_request: int = 1) -> float | None:
    """Return kWh per million inferences at the certified rate; None if power was not measured."""
    measured = trial.measurement
    if trial.certificate is None or measured is None:
        return None
    return energy_kwh_of(measured, rows_per_request=rows_per_request)


def alternatives_to(winner: Trial, trials: Sequence[Trial], objective: Objective = COST) -> list[Trial]:
    """Return the next best complete trials, best first."""
    return objective.best_first([trial for trial in trials if trial.number != winner.number])[:ALTERNATIVES]


def reason_for(winner: Trial, trials: Sequence[Trial], objective: Objective = COST) -> str:
    """Return the reason for the winner, in sentences that can be checked against `trials.jsonl`."""
    counts = Counter(trial.state for trial in trials)
    text = (
        f"{knobs_text(winner.served)} {_BEST_BY[objective.name]} of {len(trials)} configurations tried "
        f"({counts['complete']} measured, {counts['pruned']} dropped early because they could not beat the best, "
        f"{counts['infeasible']} did not meet the SLO, {counts['failed']} failed)."
    )
    runner_up = next(iter(alternatives_to(winner, trials, objective)), None)
    searched = next((one for one in trials if one.number == winner.number), winner)
    mine = objective.worth(searched)
    other = None if runner_up is None else objective.worth(runner_up)
    if runner_up is None or not mine or not other:
        return text
    ratio = other / mine if objective.name == "cost" else mine / other
    behind = "behind" if ratio <= 1 else "ahead by its short runs, which certify nothing"
    return f"{text} The next best, trial {runner_up.number}, is {100 * abs(1 - ratio):.0f} % {behind}."


_BEST_BY: Mapping[ObjectiveName, str] = {
    "cost": "sustained the highest rate",
    "latency": "answered soonest",
    "energy": "took the least energy per inference",
}
