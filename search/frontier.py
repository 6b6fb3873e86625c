"""Rates and latencies that no measured configuration beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.records import FrontierRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from search.records import TrialRecord


def unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (rate, latency) pairs that none beats in both, with rising rates."""
    best: list[tuple[float, float]] = []
    for rate, latency in sorted(points, key=lambda point: (point[1], -point[0])):
        if not best or rate > best[-1][0]:
            best.append((rate, latency))
    return best


def frontier_of(trials: Sequence[TrialRecord]) -> tuple[FrontierRecord, ...]:
    """The frontier of all load runs that were trusted and kept the limits, certified ones among them; rates rise.

    Where a rate and its latency were seen twice, the certified run stands for them.
    """
    points = sorted(_points(trials), key=lambda point: point.certified)
    by_pair = {(point.rate_per_s, point.latency_ms): point for point in points}
    return tuple(by_pair[pair] for pair in unbeaten(by_pair))


def _points(trials: Sequence[TrialRecord]) -> Iterator[FrontierRecord]:
    for trial in trials:
        runs = [(run.rate_per_s, run.latency_ms, False) for run in trial.load_runs if run.kept and run.trusted]
        if trial.certificate is not None:
            runs.append((trial.certificate.rate_per_s, trial.certificate.p99_ms, True))
        for rate_per_s, latency_ms, certified in runs:
            if latency_ms is not None and trial.state in ("complete", "pruned"):
                yield FrontierRecord(
                    trial=trial.number,
                    config=trial.config,
                    rate_per_s=rate_per_s,
                    latency_ms=latency_ms,
                    certified=certified,
                )
