"""A trial at a given rate: does the configuration meet the SLO there, and with which latency?"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from loadgen.statistics.capacity_fit import CapacityFit, Probe, ProbeResult
from model_repo.spec import ServingConfig
from search.simulator.replay import ReplayResult, replay_run
from search.simulator.server import SimulatedServer
from search.trials.bench import BenchFailed
from search.trials.capacity_trial import run_capacity_trial
from search.trials.context import TrialContext
from search.trials.load_run import emit_probed, load_run_of, run_load
from search.trials.trial import Trial, trial_of

log = logging.getLogger("tritune.at_rate")

REQUESTS_BEYOND = 30.0
"""A run is long enough that 30 requests are slower than the quantile that is compared."""

MIN_RUN_S, MAX_RUN_S = 4.0, 20.0


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
    server: SimulatedServer | None = None,
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
    found = None
    if server is not None and not seen.problems:
        found = replay_run(server, probe.log, context.slo.limits, seed=context.seed, workload=context.workload)
    met = _met(seen)
    edge = _edge(found, rate_per_s, met=met)
    bounds = None if found is None else CapacityFit.around(edge, found.error)
    return trial_of(
        number,
        config,
        "failed" if seen.problems else "complete" if met else "infeasible",
        seen.problems[0] if seen.problems else _reason(seen, rate_per_s, met=met),
        spent=bench.spent.since(before),
        load_runs=(load_run_of(seen, probe.log, context.slo.limits, seed=seed),),
        rate_at_limit_per_s=None if seen.problems else edge,
        rate_low_per_s=None if bounds is None else bounds.lower_per_s,
        rate_high_per_s=None if bounds is None else bounds.upper_per_s,
        measurement=bench.last_measurement(),
    )


def _run(context: TrialContext, number: int, rate_per_s: float) -> tuple[Probe, ProbeResult, int]:
    """Return one run with its seed; a second run if the client was late in the first."""
    needed_s = REQUESTS_BEYOND / (1 - context.slo.first.quantile) / rate_per_s
    seconds = min(max(MIN_RUN_S, needed_s), MAX_RUN_S)
    for repeat in range(2):
        probe, seen, seed = run_load(context, rate_per_s, seconds, number=number, repeat=repeat)
        if not seen.problems or context.stop():
            break
    emit_probed(context.on_event, number, seen, met=_met(seen))
    return probe, seen, seed


def _met(seen: ProbeResult) -> bool:
    """True if this one run met the SLO; its figures are no certificate."""
    return not seen.overloaded and seen.verdict.latency_ms <= seen.verdict.limit.limit_ms


def _edge(found: ReplayResult | None, rate_per_s: float, *, met: bool) -> float:
    """Return the estimated capacity: by the replay, bounded by the rate of the run, which met the SLO or not."""
    if found is None or not found.rate_per_s > 0:
        return rate_per_s if met else 0.0
    return max(found.rate_per_s, rate_per_s) if met else min(found.rate_per_s, rate_per_s)


def _reason(seen: ProbeResult, rate_per_s: float, *, met: bool) -> str:
    if seen.overloaded:
        return f"overloaded at {rate_per_s:,.4g}/s"
    tight = seen.verdict
    name = tight.limit.name
    limit = f"the limit of {tight.limit.limit_ms:g} ms"
    if not math.isfinite(tight.latency_ms):
        return f"at {rate_per_s:,.4g}/s too many requests failed for a {name}"
    return f"{name} {tight.latency_ms:.3g} ms at {rate_per_s:,.4g}/s, {'within' if met else 'over'} {limit}"
