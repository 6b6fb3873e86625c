"""Why a trial ended as it did, and how a confirmation ended, in words for users."""

from __future__ import annotations

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_ms, format_rate
from search.records.confirmations import ConfirmationRecord
from search.records.trial import LoadRunRecord, TrialRecord

LONGEST_REASON = 200
"""A reason of more than 200 characters, such as a server's log, is folded after its first words."""

AS_PROFILED = 0.02
"""Executions took as long as profiled if the times differ by less than 2 %."""


def reason_of(trial: TrialRecord) -> str:
    """Return why the trial ended as it did, how its load runs changed, and the CPU contention meanwhile."""
    mark = mark_of(trial.contention)
    reason = "; ".join([_ending(trial), *trial.changes])
    return reason if mark is None else f"{reason} ({mark})"


def short_and_rest(reason: str) -> tuple[str, str]:
    """Return the first words of a long reason, and all of it; a short one, and ""."""
    if len(reason) <= LONGEST_REASON:
        return reason, ""
    first = reason[:LONGEST_REASON].rsplit(maxsplit=1)[0]
    return f"{first} ...", reason


def _ending(trial: TrialRecord) -> str:
    prediction = None if trial.why is None else trial.why.prediction
    if trial.state == "complete" and trial.replay is not None and prediction is not None:
        slowdown = trial.replay.slowdown
        return (
            f"About {format_rate(prediction.rate_per_s)}/s was expected from its execution times; under load they "
            f"were {_compared(slowdown)} profiled"
        )
    if trial.state == "infeasible" and trial.lone_latency_ms is not None:
        return f"{trial.reason}: {format_ms(trial.lone_latency_ms)} ms one at a time"
    return trial.reason


def _compared(slowdown: float) -> str:
    """Return how execution times compare with those in the profile, such as `19 % longer than`."""
    change = slowdown - 1
    if abs(change) < AS_PROFILED:
        return "as long as"
    return f"{100 * abs(change):.0f} % {'longer' if change > 0 else 'shorter'} than"


def confirmation_answer(one: ConfirmationRecord) -> str:
    """Return `met`, `violated` or `inconclusive`, and why nothing was decided, or what happened."""
    if one.problems:
        return f"not trusted: {'; '.join(one.problems)}"
    meanwhile = "overloaded" if one.overloaded else one.change
    return one.answer if meanwhile is None else f"{one.answer}: {meanwhile}"


def load_run_answer(run: LoadRunRecord) -> str:
    """Return the answer of a trial's load run in a word or two, or why there is none, and how the run changed."""
    if not run.trusted:
        return f"not trusted: {'; '.join(run.problems)}" if run.problems else "not trusted"
    return run.word if run.change is None else f"{run.word}: {run.change}"
