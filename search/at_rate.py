"""A trial at a given rate: does the configuration keep the limits there, and how soon does it answer?"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from loadgen.knee import Knee
from search.bench import BenchFailed
from search.evaluate import load_run_of
from search.predict import promise_of
from search.short_run import short_run, tell
from search.trial import Trial, failed_trial
from search.verify import verified

if TYPE_CHECKING:
    from loadgen.capacity import Probe
    from loadgen.probing import Seen
    from model_repo.spec import ServingConfig
    from search.attempts import Attempts
    from search.simulator import SimulatedServer
    from search.verify import Verified

log = logging.getLogger("tritune.at_rate")

REQUESTS_BEYOND = 30.0
"""How many requests of a run are to be slower than the quantile that is compared."""

LEAST_S, MOST_S = 4.0, 20.0


def tried_at_rate(
    attempts: Attempts,
    config: ServingConfig,
    number: int,
    *,
    rate_per_s: float,
    server: SimulatedServer | None = None,
) -> Trial | None:
    """The finished trial; None when it was stopped before anything was learnt.

    `server` is the configuration as the simulator sees it, where that is known: the run's replay then says about
    where the limits break.
    """
    bench = attempts.bench
    before = replace(bench.spent)
    try:
        bench.load(config)
        probe, seen, seed = _run(attempts, number, rate_per_s)
    except BenchFailed as failure:
        log.warning("trial %d failed: %s", number, failure.reason)
        return failed_trial(number, config, failure.reason, bench.spent.since(before))
    if attempts.stop():
        return None
    found = None
    if server is not None and not seen.problems:
        found = verified(server, probe.log, promise_of(attempts.slo), seed=attempts.seed, demand=attempts.demand)
    kept = _kept(seen)
    edge = _edge(found, rate_per_s, kept=kept)
    bounds = None if found is None else Knee.around(edge, found.error)
    spent = bench.spent.since(before)
    return Trial(
        number=number,
        config=config,
        state="failed" if seen.problems else "complete" if kept else "infeasible",
        reason=seen.problems[0] if seen.problems else _reason(seen, rate_per_s, kept=kept),
        rate_at_limit_per_s=None if seen.problems else edge,
        rate_low_per_s=None if bounds is None else bounds.lower_per_s,
        rate_high_per_s=None if bounds is None else bounds.upper_per_s,
        measurement=bench.last_measurement(),
        probes=1,
        loading_s=spent.loading_s,
        load_s=spent.load_s,
        load_runs=(load_run_of(seen, seed=seed),),
    )


def _run(attempts: Attempts, number: int, rate_per_s: float) -> tuple[Probe, Seen, int]:
    """One run with its seed, the second one where the client was late in the first."""
    needed_s = REQUESTS_BEYOND / (1 - attempts.slo.quantile) / rate_per_s
    seconds = min(max(LEAST_S, needed_s), MOST_S)
    for repeat in range(2):
        probe, seen, seed = short_run(attempts, rate_per_s, seconds, number=number, repeat=repeat)
        if not seen.problems or attempts.stop():
            break
    tell(attempts.on_event, number, seen, kept=_kept(seen))
    return probe, seen, seed


def _kept(seen: Seen) -> bool:
    """As far as one run says; what it is worth, certification finds out."""
    return not seen.overloaded and seen.verdict.latency_ms <= seen.verdict.limit_ms


def _edge(found: Verified | None, rate_per_s: float, *, kept: bool) -> float:
    """About where the limits break: what the replay says, as far as the run itself does not say otherwise."""
    if found is None or not found.rate_per_s > 0:
        return rate_per_s if kept else 0.0
    return max(found.rate_per_s, rate_per_s) if kept else min(found.rate_per_s, rate_per_s)


def _reason(seen: Seen, rate_per_s: float, *, kept: bool) -> str:
    if seen.overloaded:
        return f"overloaded at {rate_per_s:,.4g}/s"
    tight = seen.verdict
    name = f"p{100 * tight.quantile:g}"
    limit = f"the limit of {tight.limit_ms:g} ms"
    if not math.isfinite(tight.latency_ms):
        return f"at {rate_per_s:,.4g}/s too many requests failed for a {name}"
    return f"{name} {tight.latency_ms:.3g} ms at {rate_per_s:,.4g}/s, {'within' if kept else 'over'} {limit}"
