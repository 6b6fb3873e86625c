"""From finished trials to the recommendation: gain, cost, alternatives, reason, and the frontier of load runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from loadgen.exit_codes import Status
from loadgen.records.comparison import Bounds
from loadgen.records.formats import format_rate
from search.cost.cost import PriceRecord, cost_per_million_inferences_usd, replicas
from search.labels import knobs_text
from search.records.confirmations import ConfirmationRecord, violated_since
from search.records.recommendation import CostRecord, FrontierRecord, RecommendationRecord, WithdrawnRecord
from search.records.trial import TrialRecord
from search.trials.objective import COST, Objective, energy_kwh_of
from search.trials.trial import Trial

ALTERNATIVES = 5


def gain_over(winner: TrialRecord, other: TrialRecord | None) -> Bounds | None:
    """Return the winner's estimated capacity over another's, between its bounds; None if one is not known.

    Like is compared with like: certified rates are nearer to the capacity the longer they were tested.
    """
    if other is None or not winner.rate_at_limit_per_s or not other.rate_at_limit_per_s:
        return None
    ratio = winner.rate_at_limit_per_s / other.rate_at_limit_per_s
    spread = math.exp(math.hypot(*map(_half_width, (winner, other))))
    return ratio / spread, ratio, ratio * spread


def _half_width(trial: TrialRecord) -> float:
    """Return half of the width of the interval of ln(capacity); 0 if it is not known."""
    low, high = trial.rate_low_per_s, trial.rate_high_per_s
    return math.log(high / low) / 2 if low and high else 0.0


def withdrawn_by(
    found: RecommendationRecord | None,
    attempts: Sequence[ConfirmationRecord],
    trials: Sequence[TrialRecord],
    status: Status,
) -> WithdrawnRecord | None:
    """Return the rate that was met and later violated: that of an earlier recommendation, or else the highest.

    None if nothing contradicts it. A configuration whose batches mix rows is withdrawn, too, and a recommendation
    if the run's `status` is now that no configuration meets the SLO.
    """
    any_more = "no configuration meets the SLO any more" if found is not None and status == "violated" else None
    met = [(one.rate_per_s, one.trial) for one in attempts if one.met]
    if found is not None and found.winner.certificate is not None:
        met = [(found.winner.certificate.rate_per_s, found.winner.number)]
    failed = {trial.number: trial.reason.splitlines()[0] for trial in trials if trial.state == "failed"}
    for rate_per_s, number in sorted(met, reverse=True):
        seen = violated_since(attempts, number, rate_per_s)
        late = any_more if seen is None else f"{seen.late} at {format_rate(seen.rate_per_s)}/s in a later run"
        why = failed.get(number, late)
        if why is not None:
            return WithdrawnRecord(trial=number, rate_per_s=rate_per_s, reason=why)
    return None


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
    gain = gain_over(winner, baseline)
    return CostRecord(
        price=price,
        cost_per_million_inferences_usd=million_usd(rate),
        baseline_cost_per_million_inferences_usd=None if gain is None else gain[1] * million_usd(rate),
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
        f"{knobs_text(winner.served)} {objective.best_by} of {len(trials)} configurations tried "
        f"({counts['complete']} measured, {counts['pruned']} dropped early because they could not beat the best, "
        f"{counts['infeasible']} did not meet the SLO, {counts['failed']} failed)."
    )
    runner_up = next(iter(alternatives_to(winner, trials, objective)), None)
    searched = next((one for one in trials if one.number == winner.number), winner)
    mine = objective.worth(searched)
    other = None if runner_up is None else objective.worth(runner_up)
    if runner_up is None or not mine or not other:
        return text
    ratio = other / mine if mine > 0 else mine / other  # below zero it is less that is better
    if ratio > 1:
        better = f"Trial {runner_up.number} was predicted to be {100 * (ratio - 1):.0f} % better"
        return f"{text} {better}; this one was confirmed."
    return f"{text} The next best, trial {runner_up.number}, is predicted {100 * (1 - ratio):.0f} % behind."


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
