"""Rates and latencies: which compare, and which no other beats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from search.records.recommendation import FrontierRecord
from search.records.trial import TrialRecord

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
