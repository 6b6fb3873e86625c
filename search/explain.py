"""Why a trial was made, what was predicted, what was seen and how it ended: from a run's files, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from loadgen.user_errors import BadInput
from search.confirmations import ConfirmationRecord, read_confirmations
from search.neighbours import mark_of
from search.record import Record
from search.records import TrialRecord
from search.run_files import RECOMMENDATION_FILE, read_recommendation, read_trials

if TYPE_CHECKING:
    from pathlib import Path

    from search.records import RecommendationRecord
    from search.why import Cause, PredictionRecord, WhyRecord

Role = Literal["winner", "baseline", "alternative"]

NOT_KEPT = "The run was made by a version that did not keep why."

CAUSES: dict[Cause, str] = {
    "baseline": "It is what Triton does with an empty config.pbtxt: everything else is compared with it.",
    "predicted": "Its prediction was the highest, at its best, of all configurations not tried yet.",
    "neighbour": "It is one step away from the best of then, along one axis.",
    "landmark": "It is one of the few points that span the space, tried before the sampler chooses.",
    "sampler": "Optuna's sampler chose it, from the trials before it.",
    "fastest": "No rate of any configuration was predicted to keep the limit, and it comes nearest.",
    "profile": "Its execution times were to be measured, with the largest batch of its kind.",
}

STATES = {
    "complete": "Its rate at the limit was found.",
    "infeasible": "No rate keeps the limit.",
    "pruned": "Dropped: it cannot beat the best, and no more was spent on it.",
    "failed": "Failed: it could not be served or measured.",
}


class Explanation(Record):
    """`optimize explain --json`."""

    trial: TrialRecord
    role: Role | None = Field(description="In the recommendation; null: it is not in it, or there is none.")
    why: tuple[str, ...]
    predicted: tuple[str, ...]
    seen: tuple[str, ...]
    ended: tuple[str, ...]
    confirmations: tuple[ConfirmationRecord, ...]


def explain_trial(directory: Path, number: int) -> Explanation:
    """What the run's directory says about one trial. Raises BadInput where there is none of that number."""
    trials = {trial.number: trial for trial in read_trials(directory)}
    if not trials:
        raise BadInput(
            f"{directory} holds no finished trial.", "Give the directory of a run, such as runs/MODEL-TIME."
        )
    if number not in trials:
        raise BadInput(
            f"The run in {directory} has no trial {number}.", f"Its trials are {min(trials)} to {max(trials)}."
        )
    trial = trials[number]
    found = read_recommendation(directory) if (directory / RECOMMENDATION_FILE).is_file() else None
    return Explanation(
        trial=trial,
        role=None if found is None else _role(found, number),
        why=tuple(_why(trial.why, trial.pace)),
        predicted=tuple(_predicted(trial.why)),
        seen=tuple(_seen(trial)),
        ended=tuple(_ended(trial, found)),
        confirmations=tuple(one for one in read_confirmations(directory) if one.trial == number),
    )


def _role(found: RecommendationRecord, number: int) -> Role | None:
    if number == found.winner.number:
        return "winner"
    if found.baseline is not None and number == found.baseline.number:
        return "baseline"
    return "alternative" if any(number == other.number for other in found.alternatives) else None


def _why(why: WhyRecord | None, pace: int) -> list[str]:
    if why is None:
        return [NOT_KEPT]
    lines = [CAUSES[why.cause]]
    if pace:
        times = "once" if pace == 1 else f"{pace} times"
        lines.append(f"The machine had changed its speed {times}, so that earlier trials no longer counted.")
    if why.best_trial is not None:
        beat = None if why.prediction is None else why.prediction.to_beat_per_s
        rate = "" if beat is None else f" with {beat:,.4g}/s"
        lines.append(f"The best so far was trial {why.best_trial}{rate}.")
    if why.retaken:
        lines.append("It had been begun before and was not finished: it was taken again.")
    elif why.resumed:
        lines.append("That was after the run had been gone on with (--resume).")
    return lines


def _predicted(why: WhyRecord | None) -> list[str]:
    if why is None:
        return [NOT_KEPT]
    if why.prediction is None:
        return ["Nothing: it was not simulated."]
    guess = why.prediction
    high, low = guess.rate_per_s * math.exp(guess.sd), guess.rate_per_s * math.exp(-guess.sd)
    about = f"{guess.rate_per_s:,.4g}/s at the limit, give or take a standard error of {100 * guess.sd:.0f} %"
    lines = [f"{about} ({low:,.4g} to {high:,.4g}/s): number {guess.rank} of {guess.untried} untried."]
    correction = guess.rate_per_s / guess.simulated_per_s
    if abs(math.log(correction)) > 1e-6:
        lines.append(
            f"The simulation says {guess.simulated_per_s:,.4g}/s; what was measured of others moved that by "
            f"{100 * (correction - 1):+.1f} %."
        )
    lines.append(_service_times(guess))
    return lines


def _service_times(guess: PredictionRecord) -> str:
    times = guess.service_times
    each = ", ".join(
        f"{size}: {busy_ms:.3g}" for size, busy_ms in zip(times.batch_sizes, times.all_busy_ms, strict=True)
    )
    return (
        f"From executions that take, by batch size with all instances at work, in ms: {each}; and "
        f"{times.overhead_ms:.3g} ms besides."
    )


def _seen(trial: TrialRecord) -> list[str]:
    if trial.rate_at_limit_per_s is None:
        return ["No rate at the limit."]
    lines = []
    if trial.rate_at_limit_per_s > 0:
        bounds = ""
        if trial.rate_low_per_s is not None and trial.rate_high_per_s is not None:
            bounds = f" ({trial.rate_low_per_s:,.4g} to {trial.rate_high_per_s:,.4g}/s)"
        least = "at most " if trial.state == "pruned" else ""
        lines.append(f"{least}{trial.rate_at_limit_per_s:,.4g}/s at the limit{bounds}.".capitalize())
    guess = None if trial.why is None else trial.why.prediction
    if guess is not None and trial.rate_low_per_s and trial.rate_high_per_s:
        off = math.sqrt(trial.rate_low_per_s * trial.rate_high_per_s) / guess.rate_per_s - 1
        lines.append(f"That is {100 * off:+.1f} % from the prediction, at the middle of the two.")
    if trial.replay is not None:
        lines.append(
            f"Replayed with the run's own arrivals, executions took {trial.replay.slowdown:.3f} times as long as "
            "profiled."
        )
    mark = mark_of(trial.neighbours)
    if mark is not None:
        lines.append(f"Meanwhile {mark}.")
    if trial.lone_latency_ms is not None:
        lines.append(f"A request that meets an idle server takes {trial.lone_latency_ms:.3g} ms (median).")
    return lines


def _ended(trial: TrialRecord, found: RecommendationRecord | None) -> list[str]:
    lines = [STATES[trial.state], trial.reason]
    role = None if found is None else _role(found, trial.number)
    if found is None or role is None or role == "alternative":
        return lines
    certified = (found.winner if role == "winner" or found.baseline is None else found.baseline).certificate
    if certified is not None:
        times = f"{certified.runs} times" if certified.runs > 1 else "once"
        lines.append(f"Confirmed {times}, at {certified.rate_per_s:,.4g}/s.")
        lines += [f"But {certified.caveat}."] if certified.caveat else []
    return lines
