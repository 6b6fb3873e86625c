"""The tables of what was tried: trials, confirmations, and the time they took."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.records.formats import UNKNOWN, format_ms, format_rate
from loadgen.reports.kit import NUMBER, Cell, Table, count, number
from optimizer.reports.evidence import Evidence
from optimizer.reports.reasons import confirmation_answer, reason_of, short_and_rest
from search.records.recommendation import RecommendationRecord, StepRecord
from search.records.trial import TrialRecord


def trials(evidence: Evidence) -> Table | None:
    """Every trial, its result and the reason; None without trials."""
    name = evidence.slo.first.name
    headings = ("trial", "configuration", "state", "capacity/s", f"{name} ms", "seconds", "load runs", "why")
    rows = tuple(_trial_row(evidence, trial) for trial in evidence.trials)
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def _trial_row(evidence: Evidence, trial: TrialRecord) -> tuple[Cell, ...]:
    measured, quantile = trial.measurement, evidence.slo.first.quantile
    reason, whole = short_and_rest(reason_of(trial))
    return (
        number(trial.number, count),
        Cell(text=evidence.knobs(trial)),
        Cell(text=trial.state, style=trial.state),
        number(trial.rate_at_limit_per_s, format_rate),
        number(None if measured is None else measured.latency_at_ms(quantile), format_ms),
        number(trial.loading_s + trial.load_s, lambda value: f"{value:.1f}"),
        number(trial.probes, count),
        Cell(text=reason, style="reason", more=whole),
    )


def confirmations(evidence: Evidence) -> Table | None:
    """Every attempt to confirm a rate; None if there was none."""
    trials = {trial.number: evidence.knobs(trial) for trial in evidence.trials}
    rows = tuple(
        (
            number(one.rate_per_s, format_rate),
            Cell(text=trials.get(one.trial, UNKNOWN)),
            number(one.latency_ms, format_ms),
            Cell(text=f"{one.violations:,} of {one.requests:,}", order=one.violations, style=NUMBER),
            number(one.violations / one.requests if one.requests else None, _percent),
            number(one.seconds, lambda value: f"{value:.1f}"),
            Cell(text="restarted" if one.again else "first"),
            Cell(text=confirmation_answer(one), style=f"reason {'' if one.problems else one.answer}".strip()),
        )
        for one in evidence.confirmations
    )
    name = evidence.slo.first.name
    headings = ("rate/s", "configuration", f"{name} ms", "over the limit", "share", "seconds", "server", "answer")
    return Table(headings=headings, rows=rows, sortable=True) if rows else None


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.3g} %"


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
    return Cell(text=f"{value:.1f}", style=NUMBER)


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
