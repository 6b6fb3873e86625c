"""From finished trials to the recommendation: gain, cost, alternatives and reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.records.formats import format_rate
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


def energy_of(trial: Trial, rows_per_request: int = 1) -> float | None:
    """Return kWh per million inferences at the certified rate; None if power was not measured."""
    measured = trial.measurement
    if trial.certificate is None or measured is None:
        return None
    return energy_kwh_of(measured, rows_per_request=rows_per_request)


def alternatives_to(
    winner: Trial, trials: Sequence[Trial], objective: Objective = COST
) -> tuple[TrialRecord, ...]:
    """Return the next best complete trials, best first."""
    return tuple(trial.record for trial in _others(winner, trials, objective)[:ALTERNATIVES])


def _others(winner: Trial, trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return the other candidates, best first."""
    return objective.best_first([trial for trial in trials if trial.number != winner.number])


def reason_for(
    winner: Trial,
    trials: Sequence[Trial],
    objective: Objective = COST,
    *,
    rate_to_serve_per_s: float | None = None,
) -> str:
    """Return the reason for the winner, in sentences that can be checked against `trials.jsonl`."""
    counts = {state: sum(trial.state == state for trial in trials) for state in ("complete", "pruned", "failed")}
    infeasible = sum(trial.state == "infeasible" for trial in trials)
    at_rate = objective.rate_per_s
    measured = "measured to the limit" if at_rate is None else f"within the limits at {format_rate(at_rate)}/s"
    over = "within the limits at no rate" if at_rate is None else "over a limit there"
    text = (
        f"{knobs_text(winner.served)} {_BEST_BY[objective.name]} of {len(trials)} configurations tried "
        f"({counts['complete']} {measured}, {counts['pruned']} dropped early because they could not "
        f"beat the best, {infeasible} {over}, {counts['failed']} failed)."
    )
    if objective.name == "cost" and rate_to_serve_per_s is not None and winner.certificate is not None:
        count = replicas(rate_to_serve_per_s, winner.certificate.rate_per_s)
        text += f" So {format_rate(rate_to_serve_per_s)}/s take the fewest replicas, {count}."
    return text + _lead(winner, trials, objective)


_BEST_BY: Mapping[ObjectiveName, str] = {
    "cost": "sustained the highest rate",
    "latency": "answered soonest",
    "energy": "took the least energy per inference",
}


def _lead(winner: Trial, trials: Sequence[Trial], objective: Objective) -> str:
    """Return how far behind the next best is by the measurements of the search."""
    runner_up = next(iter(_others(winner, trials, objective)), None)
    searched = next((one for one in trials if one.number == winner.number), winner)
    mine = objective.worth(searched)
    other = None if runner_up is None else objective.worth(runner_up)
    if runner_up is None or not mine or not other:
        return ""
    ratio = other / mine if objective.name == "cost" else mine / other
    text = f" The next best, trial {runner_up.number}, is {100 * abs(1 - ratio):.0f} % "
    if ratio <= 1:
        return text + "behind."
    by_rate = "ahead by estimate, but its rate could not be certified."
    return text + (by_rate if objective.name == "cost" else "ahead in its short run, which is not a certificate.")
