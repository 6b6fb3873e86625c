"""The tables of what was tried: trials, load runs, confirmations, why they ended, and the time they took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import UNKNOWN, format_ms, format_rate
from loadgen.reports.kit import NUMBER, Cell, Table, count, number
from optimizer.reports.evidence import Evidence
from search.labels import rate_text
from search.records.confirmations import ConfirmationRecord
from search.records.recommendation import RecommendationRecord, StepRecord
from search.records.trial import LoadRunRecord, TrialRecord

LONGEST_REASON = 200
"""A reason of more than 200 characters, such as a server's log, is folded after its first words."""


def reason_of(trial: TrialRecord) -> str:
    """Return why the trial ended as it did, how its load runs changed, and the CPU contention meanwhile."""
    ending = trial.reason
    if trial.state == "infeasible" and trial.lone_latency_ms is not None:
        ending += f": {format_ms(trial.lone_latency_ms)} ms one at a time"
    mark = mark_of(trial.contention)
    reason = "; ".join([ending, *trial.changes])
    return reason if mark is None else f"{reason} ({mark})"


def short_and_rest(reason: str) -> tuple[str, str]:
    """Return the first words of a long reason, and all of it; a short one, and ""."""
    if len(reason) <= LONGEST_REASON:
        return reason, ""
    first = reason[:LONGEST_REASON].rsplit(maxsplit=1)[0]
    return f"{first} ...", reason


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


def trials(evidence: Evidence) -> Table | None:
    """Every trial, its result and the reason; None without trials."""
    name = evidence.slo.first.name
    headings = ("trial", "configuration", "state", "rate", f"{name} ms", "seconds", "load runs", "why")
    rows = tuple(_trial_row(evidence, trial) for trial in evidence.trials)
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def _trial_row(evidence: Evidence, trial: TrialRecord) -> tuple[Cell, ...]:
    measured, quantile = trial.measurement, evidence.slo.first.quantile
    reason, whole = short_and_rest(reason_of(trial))
    return (
        number(trial.number, count),
        Cell(text=evidence.words(trial.config)),
        Cell(text=trial.state, style=trial.state),
        Cell(text=rate_text(trial) if trial.state == "complete" else "", order=trial.rate_at_limit_per_s or 0.0),
        number(None if measured is None else measured.latency_at_ms(quantile), format_ms),
        number(trial.loading_s + trial.load_s, _one_decimal),
        number(trial.probes, count),
        Cell(text=reason, style="reason", more=whole),
    )


def confirmations(
    attempts: Sequence[ConfirmationRecord], knobs: Mapping[int, str] | None = None, *, latency: str = "latency"
) -> Table | None:
    """Every attempt to confirm a rate, with the knobs of its trial by number if given; None if there was none."""
    rows = tuple(
        (
            number(one.rate_per_s, format_rate),
            *([] if knobs is None else [Cell(text=knobs.get(one.trial, UNKNOWN))]),
            number(one.latency_ms, format_ms),
            Cell(text=f"{one.violations:,} of {one.requests:,}", order=one.violations, style=NUMBER),
            number(one.seconds, _one_decimal),
            Cell(text="second" if one.again else "first"),
            Cell(text=confirmation_answer(one), style=f"reason {'' if one.problems else one.answer}".strip()),
            Cell(text=one.why or ""),
        )
        for one in attempts
    )
    configuration = () if knobs is None else ("configuration",)
    headings = (
        "rate/s",
        *configuration,
        f"{latency} ms",
        "over the limit",
        "seconds",
        "time",
        "answer",
        "because",
    )
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def load_runs(trial: TrialRecord) -> Table | None:
    """Every load run of a trial; None if there was none."""
    rows = tuple(
        (
            number(run.rate_per_s, format_rate),
            number(run.seconds, _one_decimal),
            number(run.requests, count),
            number(run.violations, count),
            number(run.latency_ms, format_ms),
            Cell(text=load_run_answer(run), style="reason"),
            Cell(text=UNKNOWN if run.seed is None else str(run.seed), style=NUMBER),
        )
        for run in trial.load_runs
    )
    headings = ("rate/s", "seconds", "requests", "over the limit", "latency ms", "answer", "seed")
    return Table(headings=headings, rows=rows) if rows else None


def _one_decimal(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def seconds(found: RecommendationRecord) -> Table | None:
    """Where the wall time of the run went: the stages, and the steps of the preparation; None if not recorded."""
    spent = found.seconds
    rows = []
    for stage in spent.stages:
        parts = (stage.seconds, stage.load, stage.loading_models, stage.waiting)
        rows.append((Cell(text=STAGES.get(stage.stage, stage.stage), style="main"), *map(_seconds, parts)))
        if stage.stage == "prepare":
            rows += [_step_row(step) for step in spent.preparation]
    return Table(headings=("seconds of", "all", "load", "loading", "else"), rows=tuple(rows)) if rows else None


STAGES = {
    "prepare": "preparation",
    "profile": "profiles",
    "search": "trials",
    "certify": "certification",
    "finish": "profile of the recommendation",
}
"""The stages in the words of the reports."""


def _step_row(step: StepRecord) -> tuple[Cell, ...]:
    empty = Cell(text="", style=NUMBER)
    return (Cell(text=f"- {step.step}{' (cached)' if step.cached else ''}"), _seconds(step.seconds), *[empty] * 3)


def _seconds(value: float) -> Cell:
    return Cell(text=_one_decimal(value), style=NUMBER)


def spent(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The number of trials per state, and the time that the run took."""
    for state in ("complete", "pruned", "infeasible", "failed"):
        ended = sum(trial.state == state for trial in evidence.trials)
        if ended:
            yield state, str(ended)
    if evidence.found is not None:
        seconds = evidence.found.seconds
        yield "under load", f"{seconds.load:.0f} s"
        yield "loading models", f"{seconds.loading_models:.0f} s"
        yield "in all", f"{seconds.total:.0f} s"
