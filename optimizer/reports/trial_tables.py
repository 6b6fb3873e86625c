"""The tables of what was tried: trials, load runs, why they ended, and the time they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import UNKNOWN, format_ms, format_percent, format_rate
from loadgen.reports.kit import NUMBER, Cell, Table, count, number
from optimizer.reports.evidence import Evidence
from optimizer.run.progress import PHASES
from search.answer.explain import RateStep
from search.labels import rate_text
from search.records.confirmations import BelievedRecord
from search.records.recommendation import RecommendationRecord
from search.records.trial import TrialRecord

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
    return f"{reason[:LONGEST_REASON].rsplit(maxsplit=1)[0]} ...", reason


def trials(evidence: Evidence) -> Table | None:
    """Every trial, its result and the reason; None without trials."""
    first = ("trial", "configuration", "state", "rate", f"{evidence.slo.first.name} ms")
    rows = tuple(_trial_row(evidence, trial) for trial in evidence.trials)
    return Table(headings=(*first, "seconds", "load runs", "why"), rows=rows, sortable=True) if rows else None


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


def rate_steps(steps: Sequence[RateStep]) -> Table | None:
    """Every load run in its order, with what was believed before and what followed; None if there was none."""
    began_s = min((one.began_unix_s for one in steps if one.began_unix_s is not None), default=0.0)
    rows = tuple(
        (
            Cell(text=UNKNOWN if one.began_unix_s is None else _clock(one.began_unix_s - began_s)),
            Cell(text=f"{STEPS[one.step]} {one.trial}"),
            number(one.rate_per_s, format_rate),
            Cell(text=UNKNOWN if one.believed is None else ";\n".join(_belief(one.believed))),
            Cell(text=";\n".join(filter(None, (_seen(one), one.followed))), style=f"reason {one.decided}"),
        )
        for one in steps
    )
    return Table(headings=("time", "step", "rate/s", "believed", "seen"), rows=rows) if rows else None


STEPS = {"trial": "trial", "confirmation": "confirm", "second confirmation": "again"}


def _clock(seconds: float) -> str:
    return "{}:{:02d}".format(*divmod(round(seconds), 60))


def _belief(one: BelievedRecord) -> Iterator[str]:
    yield one.capacity
    if one.covered_per_s is not None:
        yield f"{format_rate(one.covered_per_s)} at all speeds"
    if (slow := one.machine) is not None and slow.seen_s:
        share = f"slow for {format_percent(slow.share)} of {slow.seen_s:.0f} s"
        yield f"{share}, {slow.slowdown:.2g} times" if slow.share else share
    if one.chance is not None:
        yield f"chance {100 * one.chance:.0f} %"


def _seen(one: RateStep) -> str:
    of = "" if one.requests is None or one.violations is None else f": {one.violations:,} of {one.requests:,} late"
    took = "" if one.seconds is None else f" within {one.seconds:.1f} s"
    return f"{one.answer}{of}{took}, latency {format_ms(one.latency_ms)} ms"


BELIEVED = (
    "Again: on a restarted server. Counts leave out the warm-up. Believed before: capacity at the usual speed, "
    "its 90 % interval, what is kept at all speeds so far, for how long and by which factor the machine was slow, "
    "and the share of simulated tests of it that met it."
)


def _one_decimal(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def seconds(found: RecommendationRecord) -> Table:
    """Where the wall time of the run went: the stages, with the steps of the preparation, and in all."""
    spent = found.seconds
    rows = []
    for stage in spent.stages:
        parts = (stage.seconds, stage.load, stage.loading_models, stage.waiting)
        rows.append((Cell(text=PHASES.get(stage.stage, stage.stage), style="main"), *map(_seconds, parts)))
        if stage.stage == "prepare":
            for step in spent.preparation:
                name = Cell(text=f"- {step.step}{' (cached)' if step.cached else ''}")
                rows.append((name, _seconds(step.seconds), *[Cell(text="", style=NUMBER)] * 3))
    whole = (spent.total, spent.load, spent.loading_models, spent.other)
    rows.append((Cell(text="in all", style="main"), *map(_seconds, whole)))
    return Table(headings=("seconds of", "all", "load", "loading", "else"), rows=tuple(rows))


def _seconds(value: float) -> Cell:
    return Cell(text=_one_decimal(value), style=NUMBER)


def spent(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The number of trials per state, and the time that the run took."""
    for state in ("complete", "pruned", "infeasible", "failed"):
        if ended := sum(trial.state == state for trial in evidence.trials):
            yield state, str(ended)
    if evidence.found is not None:
        seconds = evidence.found.seconds
        yield "under load", f"{seconds.load:.0f} s"
        yield "loading models", f"{seconds.loading_models:.0f} s"
        yield "in all", f"{seconds.total:.0f} s"
