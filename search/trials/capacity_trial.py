"""A trial without a prediction: search for the capacity of a configuration, or run it at a given rate."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from loadgen.statistics.capacity import bounds
from loadgen.statistics.find_capacity import CapacityEstimate, find_capacity
from loadgen.statistics.probe import Probe, ProbeResult, Watch
from model_repo.spec import ServingConfig
from search.records.trial import LoadRunRecord, MeasurementRecord, TrialState
from search.simulator.replay import ReplayResult, replay_run
from search.simulator.server import Simulated
from search.simulator.service_times import LONE_S
from search.simulator.surrogate import engine_alone_per_s
from search.trials.bench import Bench, BenchFailed
from search.trials.context import TrialContext, emit_probed, load_run_of, run_load
from search.trials.trial import Trial, trial_of

log = logging.getLogger("tritune.evaluate")

WORTH_BEATING_BY = 1.02
"""The capacity of a configuration is only searched for if it meets the SLO 2 % above the best rate so far: smaller
gains are within the noise of the estimates."""

IDLE_SHARE = 0.1
UNLOADED_REQUESTS = 40
LONE_MAX_S = 10.0
"""If even the lowest rate violates the SLO, the unloaded latency is measured: at 10 % utilization, with 40
requests, in at most 10 s."""

GUESSED_SHARE = 0.1
"""An engine whose standalone times are known is first sent a tenth of what it does standalone: from single
requests on, the few seconds of a search are gone before it gets near the capacity, and from half on, a server with
stalls met no rate in them (two of five on an H100)."""

STATE_OF: Mapping[str, TrialState] = {"found": "complete", "too_slow": "infeasible", "gave_up": "pruned"}
"""The state of a trial by the outcome of its capacity search; after any other outcome it has failed."""


def run_capacity_trial(
    context: TrialContext,
    config: ServingConfig,
    number: int,
    *,
    most_s: float = math.inf,
    before: Sequence[ProbeResult] = (),
) -> Trial | None:
    """Return the finished trial after at most `most_s` of load; None if it was stopped before it had a result.

    The search goes on from the runs that the trial made already, `before`; those that follow get their own seeds.
    """
    bench, slo, seed, stop = context.bench, context.slo, context.seed, context.stop
    budget_s = min(context.budget.first_trial_s(), most_s)  # without the time for loading
    best_per_s = context.best_per_s() if context.objective.by_rate else None
    spent_before = replace(bench.spent)
    measured: list[tuple[ProbeResult, MeasurementRecord | None]] = []
    load_runs: list[LoadRunRecord] = []
    sent: list[tuple[Probe, int]] = []  # the run that is not evaluated yet, and its seed
    unloaded: MeasurementRecord | None = None

    def measure(rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        probe = bench.measure(rate_per_s, duration_s, seed, watch)
        sent.append((probe, seed))
        return probe

    def on_probe(seen: ProbeResult) -> None:
        probe, its = sent.pop()
        measured.append((seen, bench.last_measurement()))
        load_runs.append(load_run_of(seen, probe, slo.tested, seed=its))
        emit_probed(context.on_event, number, seen, met=seen.met)

    beat = None if best_per_s is None else best_per_s * WORTH_BEATING_BY
    try:
        bench.load(config)
        known = beat is not None or bool(before)  # what the limit allows
        estimate = find_capacity(
            measure,
            limits=slo.tested,
            budget_s=budget_s,
            seed=context.seed_of(number, len(before)),
            before=before,
            start_rate_per_s=_guess_per_s(context, config),
            alone_ms=0.0 if known else _alone_ms(bench, config, seed=context.seed_of(number, 0)),
            give_up_below_per_s=beat,
            stop=stop,
            on_probe=on_probe,
        )
        others_late = bool(load_runs) and load_runs[-1].model is not None
        if estimate.outcome == "too_slow" and not others_late and not stop():
            estimate = replace(estimate, lone_latency_ms=_lone_latency_ms(bench, estimate, seed=seed))
            unloaded = bench.last_measurement()
    except BenchFailed as failure:
        log.warning("trial %d failed: %s", number, failure.reason)
        return trial_of(
            number,
            config,
            "failed",
            failure.reason,
            spent=bench.spent.since(spent_before),
            load_runs=load_runs,
            measurement=_best_measurement(measured),
        )
    log.info("trial %d: %s", number, estimate)
    if stop() and estimate.outcome != "found":
        return None
    return trial_of(
        number,
        config,
        STATE_OF.get(estimate.outcome, "failed"),
        estimate.reason,
        spent=bench.spent.since(spent_before),
        load_runs=load_runs,
        rate_at_limit_per_s=_rate_known(estimate),
        rate_low_per_s=estimate.lower_per_s,
        rate_high_per_s=estimate.upper_per_s,
        lone_latency_ms=estimate.lone_latency_ms,
        measurement=unloaded or _best_measurement(measured),
    )


def _guess_per_s(context: TrialContext, config: ServingConfig) -> float | None:
    """Return the rate to begin at, by the engine's standalone times; None if they are not known."""
    rows_per_s = engine_alone_per_s(
        config.engine, limit_ms=context.slo.first.limit_ms, largest=max(1, config.max_batch_size)
    )
    return GUESSED_SHARE * rows_per_s / context.workload.rows_per_request or None


def _alone_ms(bench: Bench, config: ServingConfig, *, seed: int) -> float:
    """Return the median latency of one user's requests without their wait for a batch; 0 if none was answered.

    More requests fill a batch sooner.
    """
    try:
        log = bench.saturate(1, LONE_S, seed).log
    except BenchFailed:  # if the server is to blame, the first rate will fail, too
        return 0.0
    waits_ms = sum(one.max_queue_delay_us for one in config.models) / 1e3
    answered_ms = log.service_ns[~log.failed] / 1e6
    return max(0.0, float(np.median(answered_ms)) - waits_ms) if len(answered_ms) else 0.0


def _lone_latency_ms(bench: Bench, estimate: CapacityEstimate, *, seed: int) -> float | None:
    """Return the median latency of requests that meet an idle server: the lowest latency that it can reach."""
    slowest_ms = estimate.lone_latency_ms
    # If even the lowest rate overloaded it, the rate of its responses is all that it can serve.
    at_most_per_s = 1000 / slowest_ms if slowest_ms else estimate.probes[-1].answered_per_s
    if not at_most_per_s:
        return None
    rate_per_s = IDLE_SHARE * at_most_per_s
    probe = bench.measure(rate_per_s, min(UNLOADED_REQUESTS / rate_per_s, LONE_MAX_S), seed)
    answered_ms = probe.log.latency_ns[~probe.log.failed] / 1e6
    return float(np.median(answered_ms)) if len(answered_ms) else slowest_ms


def _rate_known(estimate: CapacityEstimate) -> float | None:
    """Return the estimated capacity; its upper bound if the search gave up; 0 if no rate meets the SLO."""
    if estimate.outcome == "too_slow":
        return 0.0
    if estimate.outcome == "gave_up":
        lowest = min(estimate.probes, key=lambda seen: seen.rate_per_s)
        return min(lowest.rate_per_s, lowest.answered_per_s or math.inf, estimate.upper_per_s or math.inf)
    return estimate.rate_per_s


def _best_measurement(
    measured: list[tuple[ProbeResult, MeasurementRecord | None]],
) -> MeasurementRecord | None:
    """Return the figures of the highest rate that met the SLO; of the last probe if none did."""
    met = [one for one in measured if one[0].met and not one[0].problems]
    if met:
        return max(met, key=lambda one: one[0].rate_per_s)[1]
    return measured[-1][1] if measured else None


REQUESTS_BEYOND = 30.0
"""A run is long enough that 30 requests are slower than the quantile that is compared."""

SHORTEST_S, LONGEST_S = 4.0, 20.0


def run_capacity_or_rate_trial(
    context: TrialContext, config: ServingConfig, number: int, *, most_s: float = math.inf
) -> Trial | None:
    """Return the trial without any prediction: a capacity search, or a run at the given rate."""
    rate_per_s = context.objective.rate_per_s
    if rate_per_s is not None:
        return run_fixed_rate_trial(context, config, number, rate_per_s=rate_per_s)
    return run_capacity_trial(context, config, number, most_s=most_s)


def run_fixed_rate_trial(
    context: TrialContext,
    config: ServingConfig,
    number: int,
    *,
    rate_per_s: float,
    server: Simulated | None = None,
) -> Trial | None:
    """Return the finished trial; None if it was stopped before it had a result.

    `server` is the simulated configuration, if its service times are known: a replay of the run then estimates the
    capacity.
    """
    bench = context.bench
    before = replace(bench.spent)
    try:
        bench.load(config)
        probe, seen, seed = _run(context, number, rate_per_s)
    except BenchFailed as failure:
        log.warning("trial %d failed: %s", number, failure.reason)
        return trial_of(number, config, "failed", failure.reason, spent=bench.spent.since(before))
    if context.stop():
        return None
    found, met = None, seen.met
    others_late = seen.verdict.limit.model is not None and not met  # which no replay explains
    if server is not None and not seen.problems and not others_late:
        found = replay_run(server, probe.log, context.slo.limits, seed=context.seed, workload=context.workload)
    edge = _edge(found, rate_per_s, met=met)
    low_per_s, high_per_s = (None, None) if found is None else bounds(edge, found.error)
    return trial_of(
        number,
        config,
        "failed" if seen.problems else "complete" if met else "infeasible",
        seen.problems[0] if seen.problems else _reason(seen, rate_per_s, met=met),
        spent=bench.spent.since(before),
        load_runs=(load_run_of(seen, probe, context.slo.tested, seed=seed),),
        rate_at_limit_per_s=None if seen.problems else edge,
        rate_low_per_s=low_per_s,
        rate_high_per_s=high_per_s,
        measurement=bench.last_measurement(),
    )


def _run(context: TrialContext, number: int, rate_per_s: float) -> tuple[Probe, ProbeResult, int]:
    """Return one run with its seed; a second run if the client was late in the first."""
    needed_s = REQUESTS_BEYOND / (1 - context.slo.first.quantile) / rate_per_s
    seconds = min(max(SHORTEST_S, needed_s), LONGEST_S)
    for repeat in range(2):
        probe, seen, seed = run_load(context, rate_per_s, seconds, number=number, repeat=repeat)
        if not seen.problems or context.stop():
            break
    emit_probed(context.on_event, number, seen, met=seen.met)
    return probe, seen, seed


def _edge(found: ReplayResult | None, rate_per_s: float, *, met: bool) -> float:
    """Return the estimated capacity: by the replay, bounded by the rate of the run, which met the SLO or not."""
    if found is None or not found.rate_per_s > 0:
        return rate_per_s if met else 0.0
    return max(found.rate_per_s, rate_per_s) if met else min(found.rate_per_s, rate_per_s)


def _reason(seen: ProbeResult, rate_per_s: float, *, met: bool) -> str:
    if seen.overloaded:
        return f"overloaded at {rate_per_s:,.4g}/s"
    tight = seen.verdict
    name = tight.limit.of
    limit = f"the limit of {tight.limit.limit_ms:g} ms"
    if not math.isfinite(tight.latency_ms):
        return f"at {rate_per_s:,.4g}/s too many requests failed for a {name}"
    return f"{name} {tight.latency_ms:.3g} ms at {rate_per_s:,.4g}/s, {'within' if met else 'over'} {limit}"
