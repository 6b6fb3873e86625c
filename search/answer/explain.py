"""Explain a trial, or the certified rate, from a run's files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from loadgen.errors import BadInput
from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_percent, format_rate
from search.labels import is_own
from search.record import Record
from search.records.confirmations import BelievedRecord, ConfirmationRecord, believed, read_confirmations
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_trials, recommendation_if_any
from search.records.trial import Cause, ConfigRecord, SentLoadRecord, TrialRecord, WhyRecord

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


Step = Literal["trial", "confirmation", "second confirmation"]
Decided = Literal["met", "violated", "inconclusive", "not trusted"]

FOLLOWED: dict[Decided, str] = {
    "met": "counts for this rate and lower ones",
    "violated": "only lower rates follow",
    "inconclusive": "left undecided: it would take too long",
    "not trusted": "does not count",
}
"""What follows a confirmation."""


class RateStep(Record):
    """A load run: what was believed before it, what was seen, and what followed. null is unknown."""

    step: Step
    trial: int
    rate_per_s: float
    began_unix_s: float | None
    seconds: float | None
    believed: BelievedRecord | None = Field(description="Of a trial: before its first run.")
    decided: Decided
    answer: str
    requests: int | None
    violations: int | None
    latency_ms: float | None
    followed: str = Field(description="Empty: the trial went on.")


class RateExplanation(Record):
    """`optimize explain --rate --json`: why this rate is certified and no higher one."""

    certified_per_s: float | None
    trial: int | None = Field(description="The recommendation's.")
    why: tuple[str, ...]
    steps: tuple[RateStep, ...]


class Explanation(Record):
    """`optimize explain --json`."""

    trial: TrialRecord
    role: Role | None = Field(description="In the recommendation; null: it is not in it, or there is none.")
    why: tuple[str, ...]
    predicted: tuple[str, ...]
    seen: tuple[str, ...]
    ended: str
    steps: tuple[RateStep, ...]


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
        steps=rate_steps([trial], (one for one in read_confirmations(directory) if one.trial == number)),
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
    rank = f"number {guess.rank} of {guess.untried} untried"
    return [
        f"{format_rate(guess.rate_per_s)}/s of capacity, with a standard error of {100 * guess.sd:.0f} %: {rank}.",
        f"The simulation alone gives {format_rate(guess.simulated_per_s)}/s; --json has the execution times.",
    ]


def _seen(trial: TrialRecord) -> list[str]:
    lines = []
    if trial.rate_at_limit_per_s:
        lines.append(f"Its {_result(trial)}.")
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


def explain_rate(directory: Path) -> RateExplanation:
    """Explain the certified rate of the run in `directory` by its load runs. Raises BadInput if it has none."""
    steps = rate_steps(read_trials(directory), read_confirmations(directory))
    if not steps:
        raise BadInput(f"The run in {directory} has sent no load yet.", "Go on with optimize --resume RUN_DIR.")
    found = recommendation_if_any(directory)
    certificate = None if found is None else found.winner.certificate
    return RateExplanation(
        certified_per_s=None if certificate is None else certificate.rate_per_s,
        trial=None if found is None else found.winner.number,
        why=("No rate is certified.",) if found is None else tuple(_why_not_more(found, steps)),
        steps=steps,
    )


def _why_not_more(found: RecommendationRecord, steps: Iterable[RateStep]) -> Iterator[str]:
    """Yield what the certified rate stands on, and what speaks against a higher one."""
    certificate, number = found.winner.certificate, found.winner.number
    assert certificate is not None
    rate_per_s = certificate.rate_per_s
    own = [one for one in steps if one.trial == number and one.step != "trial"]
    so, times = ("certified", "twice") if certificate.confirmed_again else ("provisional", "once")
    caveat = f"; {certificate.caveat}" if certificate.caveat else ""
    yield f"{format_rate(rate_per_s)}/s of trial {number} is {so}: it or more was met {times}{caveat}."
    met_per_s = max((one.rate_per_s for one in own if one.decided == "met"), default=rate_per_s)
    if keeps_less := met_per_s > 1.001 * rate_per_s:
        yield f"It met {format_rate(met_per_s)}/s, and keeps less, simulated at all speeds that the machine had."
    before = own[-1].believed if own else None
    if (slow := certificate.slow_phases) is not None:
        yield f"The machine was {slow.slowdown:.2g} times slower for {format_percent(slow.share)} of the load."
        if before is not None:
            believed_in = f"was believed to carry {before.capacity} requests/s at the usual speed"
            yield f"Before its last run, trial {number} {believed_in}."
    above = [one for one in own if one.rate_per_s > rate_per_s and one.decided != "met"]
    if above:
        least = min(above, key=lambda one: one.rate_per_s)
        yield f"The lowest higher rate that was not met is {format_rate(least.rate_per_s)}/s: {least.answer}."
    covered_per_s = None if before is None or keeps_less else before.covered_per_s
    most = covered_per_s and f" up to {format_rate(covered_per_s)}/s, which it keeps at all speeds of the machine,"
    yield f"No other rate{most or ''} was worth the seconds of its runs any more, or the time was over."


def rate_steps(trials: Iterable[TrialRecord], confirmations: Iterable[ConfirmationRecord]) -> tuple[RateStep, ...]:
    """Return the load runs of trials and confirmations as they began; trials first if that is not known."""
    steps = [step for trial in trials for step in _trial_steps(trial)]
    for one in confirmations:
        step: Step = "second confirmation" if one.again else "confirmation"
        steps.append(_step(one, one.trial, step, one.believed, trusted=not one.problems))
    if all(one.began_unix_s is not None for one in steps):
        steps.sort(key=lambda one: one.began_unix_s or 0.0)
    return tuple(steps)


def _trial_steps(trial: TrialRecord) -> Iterator[RateStep]:
    guess = None if trial.why is None else trial.why.prediction
    belief = None if guess is None else believed(guess.rate_per_s, guess.sd)
    for left, run in zip(reversed(range(len(trial.load_runs))), trial.load_runs, strict=True):
        followed = "" if left else _result(trial)
        yield _step(run, trial.number, "trial", belief, trusted=run.trusted, followed=followed)
        belief = None


def _result(trial: TrialRecord) -> str:
    if not trial.rate_at_limit_per_s:
        return trial.state
    bounds = ""
    if trial.rate_low_per_s is not None and trial.rate_high_per_s is not None:
        bounds = f" ({format_rate(trial.rate_low_per_s)} to {format_rate(trial.rate_high_per_s)})"
    most = "at most " if trial.state == "pruned" else ""
    return f"capacity then: {most}{format_rate(trial.rate_at_limit_per_s)}/s{bounds}"


def _step(
    run: SentLoadRecord,
    trial: int,
    step: Step,
    belief: BelievedRecord | None,
    *,
    trusted: bool,
    followed: str | None = None,
) -> RateStep:
    word, why = (run.word, run.change) if trusted else ("not trusted", "; ".join(run.problems))
    decided: Decided = "violated" if run.overloaded else run.answer or "inconclusive"
    decided = decided if trusted else "not trusted"
    return RateStep(
        step=step,
        trial=trial,
        rate_per_s=run.rate_per_s,
        began_unix_s=run.began_unix_s,
        seconds=run.seconds,
        believed=belief,
        decided=decided,
        answer=f"{word}: {why}" if why else word,
        requests=run.requests,
        violations=run.violations,
        latency_ms=run.latency_ms,
        followed=FOLLOWED[decided] if followed is None else followed,
    )
