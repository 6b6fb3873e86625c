"""From finished trials to the answer: which configuration, what it promises, what it costs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.convert import trial_to_record
from search.records import CostRecord, PriceRecord
from search.words import knobs_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search.cost import Price
    from search.records import TrialRecord
    from search.trial import Trial

ALTERNATIVES = 5


def gain_over(winner: Trial, baseline: Trial | None) -> float | None:
    """The winner's certified rate over the baseline's; None where the baseline keeps no rate or has none.

    Only certified rates are compared: an estimate would flatter or wrong one of the two.
    """
    if winner.certificate is None or baseline is None or baseline.certificate is None:
        return None
    return winner.certificate.rate_per_s / baseline.certificate.rate_per_s


def cost_of(
    price: Price,
    winner: Trial,
    baseline: Trial | None,
    *,
    rate_to_serve_per_s: float | None,
    peak_rate_per_s: float | None = None,
) -> CostRecord:
    """Money at the certified rates; replicas and their total where a rate to serve was given."""
    from search.cost import cost_per_million_inferences_usd, replicas

    assert winner.certificate is not None
    rate = winner.certificate.rate_per_s
    needed = None if rate_to_serve_per_s is None else replicas(rate_to_serve_per_s, rate)
    certified = baseline.certificate if baseline is not None else None
    return CostRecord(
        price=PriceRecord(
            usd_per_hour=price.usd_per_hour,
            source=price.source,
            as_of=price.as_of,
            describes=price.describes,
            term=price.term,
            other_terms_usd_per_hour=dict(price.other_terms_usd_per_hour),
        ),
        cost_per_million_inferences_usd=cost_per_million_inferences_usd(price.usd_per_hour, rate),
        baseline_cost_per_million_inferences_usd=None
        if certified is None
        else cost_per_million_inferences_usd(price.usd_per_hour, certified.rate_per_s),
        rate_to_serve_per_s=rate_to_serve_per_s,
        replicas=needed,
        total_usd_per_hour=None if needed is None else needed * price.usd_per_hour,
        energy_kwh_per_million_inferences=energy_of(winner),
        baseline_energy_kwh_per_million_inferences=None if baseline is None else energy_of(baseline),
        peak_rate_per_s=peak_rate_per_s,
    )


def energy_of(trial: Trial) -> float | None:
    """kWh per million inferences while the certified rate was answered; None where power was not measured."""
    from search.cost import JOULES_PER_KWH, energy_kwh_per_million_inferences

    measured = trial.measurement
    if trial.certificate is None or measured is None or measured.gpu is None:
        return None
    if measured.gpu.energy_per_1000_inferences_j is not None:
        return measured.gpu.energy_per_1000_inferences_j * 1000 / JOULES_PER_KWH
    if measured.gpu.power_w is None:
        return None
    return energy_kwh_per_million_inferences(measured.gpu.power_w, measured.achieved_rate_per_s)


def alternatives_to(winner: Trial, trials: Sequence[Trial]) -> tuple[TrialRecord, ...]:
    """The next best complete trials, best first."""
    others = [trial for trial in trials if trial.state == "complete" and trial.number != winner.number]
    others.sort(key=lambda trial: -(trial.rate_at_limit_per_s or 0.0))
    return tuple(trial_to_record(trial) for trial in others[:ALTERNATIVES])


def reason_for(winner: Trial, trials: Sequence[Trial]) -> str:
    """Why this configuration, in a sentence or two that a person can check against `trials.jsonl`."""
    counts = {state: sum(trial.state == state for trial in trials) for state in ("complete", "pruned", "failed")}
    infeasible = sum(trial.state == "infeasible" for trial in trials)
    text = (
        f"{knobs_text(winner.config)} sustained the highest rate of {len(trials)} configurations tried "
        f"({counts['complete']} measured to the limit, {counts['pruned']} dropped early because they could not "
        f"beat the best, {infeasible} over the limit at any rate, {counts['failed']} failed)."
    )
    runner_up = alternatives_to(winner, trials)[:1]
    if runner_up and winner.rate_at_limit_per_s and runner_up[0].rate_at_limit_per_s:
        lead = 1 - runner_up[0].rate_at_limit_per_s / winner.rate_at_limit_per_s
        text += f" The next best, trial {runner_up[0].number}, is {100 * abs(lead):.0f} % "
        text += "behind." if lead >= 0 else "ahead by estimate, but its rate could not be certified."
    return text
