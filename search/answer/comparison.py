"""Compare two recommendations: is the later one worse by more than the uncertainties of both?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.comparison import Bounds, Figure, bounds_of, check_same, compare_figures
from loadgen.records.formats import format_rate
from loadgen.records.record import ComparisonRecord
from loadgen.statistics.dependence import ONE_SIDED_95
from search.record import Record
from search.records.recommendation import RecommendationRecord
from search.records.slo import Slo, WorkloadRecord
from search.records.trial import TrialRecord

SAME_WITHIN = 0.02
"""A figure may be worse by this share: machines differ from hour to hour, which no statistics of one run show."""

SAME_RATE = 0.005
"""Rates within 0.5 % of each other count as the same load."""

CAPACITY = "capacity"

Answer = Literal["worse", "better", "no difference seen"]


class RunComparisonRecord(Record):
    """The figures that could be compared; `notes` names the others and the reasons."""

    baseline: str
    now: str
    answer: Answer
    tolerance: float
    figures: tuple[ComparisonRecord, ...]
    notes: tuple[str, ...]


def conditions(slo: Slo, workload: WorkloadRecord) -> dict[str, str]:
    """Return what must be the same in runs that are compared, or share traffic."""
    return {"limit": slo.text, "traffic": workload.text or "poisson arrivals of single rows"}


def compare_runs(
    before: RecommendationRecord,
    now: RecommendationRecord,
    *,
    paths: tuple[Path, Path],
    tolerance: float = SAME_WITHIN,
) -> RunComparisonRecord:
    """Compare capacity, latency, cost and accuracy of the winners; differences below `tolerance` do not count.

    Raises BadInput if their limits or their traffic differ. The estimated capacity has bounds on both sides.
    Certified rates are not compared: their distance from the capacity depends on the time for confirmations.
    """
    check_same(paths[0], conditions(before.slo, before.workload), conditions(now.slo, now.workload))
    earlier, later = _figures(before), _figures(now)
    if not _latency_tells(before.winner, now.winner):
        del earlier[before.slo.first.name]
    figures = compare_figures(earlier, later, tolerance=tolerance)
    answers = {figure.answer for figure in figures}
    worst: Sequence[Answer] = ("worse", "better")
    return RunComparisonRecord(
        baseline=str(paths[0]),
        now=str(paths[1]),
        answer=next((answer for answer in worst if answer in answers), "no difference seen"),
        tolerance=tolerance,
        figures=figures,
        notes=tuple(_notes(before, now, {figure.figure for figure in figures})),
    )


def _figures(found: RecommendationRecord) -> dict[str, Figure]:
    winner, seen, rates = found.winner, found.winner.certificate, None
    if winner.state == "complete":
        rates = bounds_of(winner.rate_low_per_s, winner.rate_at_limit_per_s, winner.rate_high_per_s)
    latency = (
        None if seen is None else (seen.first.latency_low_ms, seen.first.latency_ms, seen.first.latency_high_ms)
    )
    return {
        CAPACITY: Figure("requests/s", rates, more_is_better=True),
        found.slo.first.name: Figure("ms", latency),
        "cost per million at capacity": Figure("USD", _cost_bounds(found, rates)),
        "top-1 agreement with fp32": Figure("", _agreement_bounds(found), more_is_better=True),
    }


def _latency_tells(before: TrialRecord, now: TrialRecord) -> bool:
    """True if latencies can be compared: at equal rates, or worse at a lower rate, or better at a higher one."""
    if before.certificate is None or now.certificate is None:
        return False
    faster = now.certificate.rate_per_s / before.certificate.rate_per_s - 1
    if abs(faster) <= SAME_RATE:
        return True
    slower_answers = now.certificate.first.latency_ms > before.certificate.first.latency_ms
    return slower_answers if faster < 0 else not slower_answers


def _cost_bounds(found: RecommendationRecord, rates: Bounds | None) -> Bounds | None:
    if rates is None:
        return None
    usd_per_million = found.cost.price.usd_per_hour / 3600 * 1e6 / found.workload.rows_per_request
    low, rate, high = rates
    return usd_per_million / high, usd_per_million / rate, usd_per_million / low if low > 0 else math.inf


def _agreement_bounds(found: RecommendationRecord) -> Bounds | None:
    """Return the lowest top-1 agreement of the winner's precision over its outputs, with bounds, if known."""
    precision = found.winner.config.engine.partition("-")[2]
    shares = [
        (output.top1_agreement, record.inputs)
        for record in found.accuracy
        if record.precision == precision
        for output in record.outputs
        if output.top1_agreement is not None and record.inputs
    ]
    return bounds_of(*wilson(*min(shares))) if shares else None


def wilson(share: float, count: int) -> Bounds:
    """Return a share of `count` with its one-sided 95 % bounds. Source: Wilson, JASA 22 (1927), 209-212."""
    spread = ONE_SIDED_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = ONE_SIDED_95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), share, min(1.0, middle + half)


def _notes(before: RecommendationRecord, now: RecommendationRecord, compared_figures: set[str]) -> Iterator[str]:
    if before.model.sha256 != now.model.sha256:
        yield f"The models differ: {before.model.name} {before.model.sha256[:12]}, {now.model.sha256[:12]}."
    machines = [_machine(found) for found in (before, now)]
    if machines[0] != machines[1]:
        yield f"The machines differ, and so may their speed: {machines[0]}; {machines[1]}."
    changed = [
        f"{name} {version} to {now.machine.versions[name]}"
        for name, version in before.machine.versions.items()
        if now.machine.versions.get(name, version) != version
    ]
    if changed:
        yield f"Versions changed: {', '.join(changed)}."
    for which, found in (("earlier", before), ("later", now)):
        mark = mark_of(found.contention)
        if mark is not None:
            yield f"During the {which} run {mark}."
    if CAPACITY not in compared_figures:
        yield "Capacity and its cost were not compared: one of the runs has no bounds for its highest rate."
    rates = [
        found.winner.certificate.rate_per_s for found in (before, now) if found.winner.certificate is not None
    ]
    name = now.slo.first.name
    if name not in compared_figures and len(rates) == 2:
        at = " and ".join(format_rate(rate) for rate in rates)
        yield f"{name} was not compared: it was certified at {at} requests/s."


def _machine(found: RecommendationRecord) -> str:
    cores = "1 core" if found.machine.cores == 1 else f"{found.machine.cores} cores"
    return ", ".join([*found.machine.gpus, found.machine.cpu, cores])
