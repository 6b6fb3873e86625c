"""One trial: serve a configuration, find the rate at which it stops keeping the limit."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loadgen.capacity import find_capacity
from loadgen.measurement import known
from search import events
from search.bench import BenchFailed
from search.records import LoadRunRecord
from search.short_run import tell
from search.trial import Trial, failed_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loadgen.capacity import CapacityEstimate, Probe, Watch
    from loadgen.probing import Seen
    from model_repo.spec import ServingConfig
    from search.bench import Bench
    from search.records import MeasurementRecord, Slo
    from search.trial import TrialState

log = logging.getLogger("tritune.evaluate")

WORTH_BEATING_BY = 1.02
"""A configuration is worth the seconds of finding its edge when it keeps the best rate so far, and a little more:
less than that is within the noise of the estimates."""

IDLE_SHARE = 0.1
LONE_REQUESTS = 40
LONE_AT_MOST_S = 10.0
"""How the latency of a lone request is measured where no rate keeps the limit: how busy the server is then, how
many requests are wanted, and how long that may take."""

STATE_OF: Mapping[str, TrialState] = {"found": "complete", "too_slow": "infeasible", "gave_up": "pruned"}
"""What a trial is after each outcome; after any other it has failed."""


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
    before = replace(bench.spent)
    measured: list[tuple[Seen, MeasurementRecord | None, int]] = []
    seeds = [seed]

    def measure(rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        seeds.append(seed)
        return bench.measure(rate_per_s, duration_s, seed, watch)

    def on_probe(seen: Seen) -> None:
        measured.append((seen, bench.last_measurement(), seeds[-1]))
        tell(on_event, number, seen, kept=seen.reading.kept)

    def load_runs() -> tuple[LoadRunRecord, ...]:
        return tuple(load_run_of(seen, seed=its) for seen, _, its in measured)

    beat = None if incumbent is None else (incumbent.rate_at_limit_per_s or 0.0) * WORTH_BEATING_BY
    try:
        bench.load(config)
        estimate = find_capacity(
            measure,
            limit_ms=slo.limit_ms,
            quantile=slo.quantile,
            also=slo.further,
            budget_s=budget_s,
            seed=seed + 104_729 * (1 + number),
            give_up_below_per_s=beat,
            stop=stop,
            on_probe=on_probe,
        )
        if estimate.outcome == "too_slow" and not stop():
            estimate = replace(estimate, lone_latency_ms=_lone_latency_ms(bench, estimate, seed=seed))
            measured.append((estimate.probes[-1], bench.last_measurement(), seeds[-1]))
    except BenchFailed as failure:
        log.warning("trial %d failed: %s", number, failure.reason)
        failed = failed_trial(number, config, failure.reason, bench.spent.since(before), load_runs=load_runs())
        return replace(failed, measurement=_best_measurement(measured))
    log.info("trial %d: %s", number, estimate)
    if stop() and estimate.outcome != "found":
        return None
    spent = bench.spent.since(before)
    return Trial(
        number=number,
        config=config,
        state=STATE_OF.get(estimate.outcome, "failed"),
        reason=estimate.reason,
        rate_at_limit_per_s=_rate_known(estimate),
        rate_low_per_s=estimate.lower_per_s,
        rate_high_per_s=estimate.upper_per_s,
        lone_latency_ms=estimate.lone_latency_ms,
        measurement=_best_measurement(measured),
        probes=len(measured),
        loading_s=spent.loading_s,
        load_s=spent.load_s,
        load_runs=load_runs(),
    )


def load_run_of(seen: Seen, *, seed: int) -> LoadRunRecord:
    """What a trial keeps of one of its load runs."""
    return LoadRunRecord(
        rate_per_s=seen.rate_per_s,
        latency_ms=known(seen.first.latency_ms),
        kept=seen.reading.kept,
        trusted=not seen.problems,
        seconds=seen.load_s,
        requests=seen.verdict.n,
        violations=seen.verdict.violations,
        overloaded=seen.overloaded,
        seed=seed,
        problems=seen.problems,
    )


def _lone_latency_ms(bench: Bench, estimate: CapacityEstimate, *, seed: int) -> float | None:
    """The median latency of requests so rare that they meet an idle server: the least that this one can do."""
    slowest_ms = estimate.lone_latency_ms
    # Where even the rarest requests overloaded it, what it answered meanwhile is what it can do.
    at_most_per_s = 1000 / slowest_ms if slowest_ms else estimate.probes[-1].answered_per_s
    if not at_most_per_s:
        return None
    rate_per_s = IDLE_SHARE * at_most_per_s
    probe = bench.measure(rate_per_s, min(LONE_REQUESTS / rate_per_s, LONE_AT_MOST_S), seed)
    answered_ms = probe.log.latency_ns[~probe.log.failed] / 1e6
    return float(np.median(answered_ms)) if len(answered_ms) else slowest_ms


def _rate_known(estimate: CapacityEstimate) -> float | None:
    """The estimate of the rate at the limit; what bounds it where it was not sought; 0 where there is none."""
    if estimate.outcome == "too_slow":
        return 0.0
    if estimate.outcome == "gave_up":
        lowest = min(estimate.probes, key=lambda seen: seen.rate_per_s)
        return min(lowest.rate_per_s, lowest.answered_per_s or math.inf, estimate.upper_per_s or math.inf)
    return estimate.rate_per_s


def _best_measurement(measured: list[tuple[Seen, MeasurementRecord | None, int]]) -> MeasurementRecord | None:
    """That of the highest rate that was kept; of the last probe where none was."""
    kept = [one for one in measured if one[0].reading.kept and not one[0].problems]
    if kept:
        return max(kept, key=lambda one: one[0].rate_per_s)[1]
    return measured[-1][1] if measured else None
