"""One trial: serve a configuration, find the rate at which it stops keeping the limit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from search import events
from search.bench import BenchFailed
from search.edge import Edge, EdgeFinder, Seen
from search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from model_repo.spec import ServingConfig
    from search.bench import Bench
    from search.records import MeasurementRecord, Slo
    from search.trial import TrialState

log = logging.getLogger("tritune.evaluate")

WORTH_BEATING_BY = 1.03
"""A configuration is worth the seconds of finding its edge when it keeps the best rate so far, and a little more:
less than that is within the noise of the estimates."""


def evaluate(
    config: ServingConfig,
    bench: Bench,
    *,
    number: int,
    slo: Slo,
    budget_s: float,
    incumbent: Trial | None,
    seed: int,
    on_event: events.OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
) -> Trial | None:
    """The finished trial; None when `stop` ended it before anything was learnt."""
    loading_before, load_before = bench.spent.loading_s, bench.spent.load_s
    measured: list[tuple[Seen, MeasurementRecord | None]] = []

    def on_probe(seen: Seen) -> None:
        measured.append((seen, bench.last_measurement()))
        p99_ms = seen.p99_ms if seen.p99_ms == seen.p99_ms else None
        on_event(events.Probed(number=number, rate_per_s=seen.rate_per_s, p99_ms=p99_ms, verdict=seen.verdict))

    def finished(state: TrialState, reason: str, **known: float | None) -> Trial:
        return Trial(
            number=number,
            config=config,
            state=state,
            reason=reason,
            measurement=_best_measurement(measured),
            probes=len(measured),
            loading_s=bench.spent.loading_s - loading_before,
            load_s=bench.spent.load_s - load_before,
            **known,  # type: ignore[arg-type]
        )

    beat = None if incumbent is None else (incumbent.rate_at_limit_per_s or 0.0) * WORTH_BEATING_BY
    try:
        bench.load(config)
        finder = EdgeFinder(
            measure=bench.measure,
            slo=slo,
            seed=seed + 104729 * (1 + number),
            budget_s=budget_s,
            spent_s=lambda: bench.spent.load_s,
            stop=stop,
            on_probe=on_probe,
        )
        edge = finder.find(beat_per_s=beat, start_per_s=None)
    except BenchFailed as failure:
        log.warning("trial %d failed: %s", number, failure.reason)
        return finished("failed", failure.reason)
    if stop() and edge.kept_per_s is None:
        return None
    return _concluded(edge, slo, finished)


def _concluded(edge: Edge, slo: Slo, finished: Callable[..., Trial]) -> Trial:
    if edge.gave_up:
        last = edge.probes[-1]
        return finished(
            "pruned",
            f"breaks the limit at {last.rate_per_s:,.0f}/s, which the best so far nearly keeps",
            rate_at_limit_per_s=min(last.throughput_per_s, last.rate_per_s),
            rate_high_per_s=last.rate_per_s,
        )
    if edge.kept_per_s is not None:
        return finished(
            "complete",
            "the rate at the limit was found",
            rate_at_limit_per_s=edge.estimate_per_s,
            rate_low_per_s=edge.kept_per_s,
            rate_high_per_s=edge.broken_per_s,
        )
    if edge.broken_per_s is None or (edge.problems and edge.lone_p99_ms is None):
        why = edge.problems[0] if edge.problems else "the time for it ran out"
        return finished("failed", f"no trustworthy measurement: {why}")
    return finished(
        "infeasible",
        f"over {slo.limit_ms:g} ms at {edge.broken_per_s:,.3g}/s already",
        rate_at_limit_per_s=0.0,
        rate_high_per_s=edge.broken_per_s,
        lone_p99_ms=edge.lone_p99_ms or edge.probes[-1].p99_ms,
    )


def _best_measurement(measured: list[tuple[Seen, MeasurementRecord | None]]) -> MeasurementRecord | None:
    """That of the highest rate that was kept; of the last probe where none was."""
    kept = [pair for pair in measured if pair[0].verdict == "kept"]
    if kept:
        return max(kept, key=lambda pair: pair[0].rate_per_s)[1]
    return measured[-1][1] if measured else None
