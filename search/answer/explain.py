"""Explain a trial from a run's files: its reason, prediction, measurements and end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field

from loadgen.errors import BadInput
from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_rate
from search.labels import is_own
from search.record import Record
from search.records.confirmations import ConfirmationRecord, read_confirmations
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_trials, recommendation_if_any
from search.records.trial import Cause, ConfigRecord, PredictionRecord, TrialRecord, WhyRecord

Role = Literal["winner", "baseline", "alternative"]

CAUSES: dict[Cause, str] = {
    "baseline": "It is Triton's behaviour with an empty config.pbtxt: everything else is compared with it.",
    "predicted": "Its prediction was the highest, at its best, of all configurations not tried yet.",
    "adjacent": "It is one step along one axis from the best configuration at that time.",
    "start": "It is your own configuration (--start-from), which the recommendation is compared with.",
    "landmark": "It is one of the few points that span the space, tried before the sampler chooses.",
    "sampler": "Optuna's sampler chose it, from the trials before it.",
    "fastest": "No configuration was predicted to meet the SLO at any rate, and this one comes nearest.",
    "profile": "Its execution times were to be measured, with the largest batch of its kind.",
}


class Explanation(Record):
    """`optimize explain --json`."""

    trial: TrialRecord
    role: Role | None = Field(description="In the recommendation; null: it is not in it, or there is none.")
    why: tuple[str, ...]
    predicted: tuple[str, ...]
    seen: tuple[str, ...]
    ended: str
    confirmations: tuple[ConfirmationRecord, ...]


def explain_trial(directory: Path, number: int) -> Explanation:
    """Explain one trial of the run in `directory`. Raises BadInput if it has no trial of that number."""
    trials = {trial.number: trial for trial in read_trials(directory)}
    if number not in trials:
        there = f"Its trials are {min(trials)} to {max(trials)}." if trials else "It has no finished trial."
        raise BadInput(f"The run in {directory} has no trial {number}.", there)
    trial = trials[number]
    found = recommendation_if_any(directory)
    return Explanation(
        trial=trial,
        role=None if found is None else _role(found, number),
        why=tuple(_why(trial.why, trial.config)),
        predicted=tuple(_predicted(trial.why)),
        seen=tuple(_seen(trial)),
        ended=f"{trial.state}: {trial.reason}",
        confirmations=tuple(one for one in read_confirmations(directory) if one.trial == number),
    )


def _role(found: RecommendationRecord, number: int) -> Role | None:
    if number == found.winner.number:
        return "winner"
    if found.baseline is not None and number == found.baseline.number:
        return "baseline"
    return "alternative" if any(number == other.number for other in found.alternatives) else None


def _why(why: WhyRecord | None, config: ConfigRecord) -> list[str]:
    if why is None:
        return []
    lines = [CAUSES[why.cause]]
    if why.cause == "baseline" and is_own(config):
        lines = ["It is your own configuration: everything else is compared with it."]
    if why.best_trial is not None:
        beat = None if why.prediction is None else why.prediction.to_beat_per_s
        rate = "" if beat is None else f" with {format_rate(beat)}/s"
        lines.append(f"The best so far was trial {why.best_trial}{rate}.")
    if why.retaken:
        lines.append("It had been started before and was not finished: it was started again.")
    elif why.resumed:
        lines.append("That was after the run was resumed (--resume).")
    return lines


def _predicted(why: WhyRecord | None) -> list[str]:
    if why is None or why.prediction is None:
        return ["None: it was not simulated."]
    guess = why.prediction
    high, low = guess.rate_per_s * math.exp(guess.sd), guess.rate_per_s * math.exp(-guess.sd)
    about = (
        f"{format_rate(guess.rate_per_s)}/s of capacity, give or take a standard error of {100 * guess.sd:.0f} %"
    )
    lines = [
        f"{about} ({format_rate(low)} to {format_rate(high)}/s): number {guess.rank} of {guess.untried} untried."
    ]
    correction = guess.rate_per_s / guess.simulated_per_s
    if abs(math.log(correction)) > 1e-6:
        lines.append(
            f"The simulation gives {format_rate(guess.simulated_per_s)}/s; measurements of others moved that by "
            f"{100 * (correction - 1):+.1f} %."
        )
    lines.append(_service_times(guess))
    return lines


def _service_times(guess: PredictionRecord) -> str:
    times = guess.service_times
    each = ", ".join(
        f"{size}: {busy_ms:.3g}" for size, busy_ms in zip(times.batch_sizes, times.all_busy_ms, strict=True)
    )
    of_member = "" if times.model is None else f" of {times.model}, which saturates first,"
    return (
        f"From execution times{of_member} in ms, by batch size, with all instances busy: {each}; and "
        f"{times.overhead_ms:.3g} ms per request outside the execution."
    )


def _seen(trial: TrialRecord) -> list[str]:
    lines = []
    if trial.rate_at_limit_per_s:
        bounds = ""
        if trial.rate_low_per_s is not None and trial.rate_high_per_s is not None:
            bounds = f" ({format_rate(trial.rate_low_per_s)} to {format_rate(trial.rate_high_per_s)}/s)"
        rate = f"{format_rate(trial.rate_at_limit_per_s)}/s{bounds}"
        lines.append(f"The capacity is {'at most ' if trial.state == 'pruned' else ''}{rate}.")
    guess = None if trial.why is None else trial.why.prediction
    if guess is not None and trial.rate_low_per_s and trial.rate_high_per_s:
        off = math.sqrt(trial.rate_low_per_s * trial.rate_high_per_s) / guess.rate_per_s - 1
        lines.append(f"The middle of the bounds is {100 * off:+.1f} % from the prediction.")
    mark = mark_of(trial.contention)
    if mark is not None:
        lines.append(f"Meanwhile {mark}.")
    if trial.lone_latency_ms is not None:
        lines.append(f"A request that meets an idle server takes {trial.lone_latency_ms:.3g} ms (median).")
    return lines
