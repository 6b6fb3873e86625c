"""Measure the winner at the certified rate of Triton's default, so that their latencies can be compared."""

from __future__ import annotations

import logging

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import evaluate_probe
from loadgen.statistics.steady_state import left_out_ns
from search.answer.analysis import similar_rates
from search.certification.certify import CertifiedResult
from search.trials.bench import BenchFailed
from search.trials.capacity_trial import MAX_RUN_S, MIN_RUN_S, REQUESTS_BEYOND
from search.trials.context import TrialContext, emit_probed, load_run_of
from search.trials.trial import Trial

log = logging.getLogger("tritune.certification")

MIN_BEYOND = 10.0
"""With fewer than 10 requests beyond the quantile, the run is left out: the latency would be chance."""

LOADING_MARGIN = 2.0
"""Loading the configuration again may take twice as long as at first."""

SEED_OF_RUN = 32_452_843
"""Added to the seed of the run: other arrivals than those of trials and confirmations."""


def with_run_at_default_rate(certified: CertifiedResult, context: TrialContext) -> Trial:
    """Return the winner with one more load run, at the certified rate of the default.

    Without it, if there is no such rate, if the winner was measured near it before, or if the time left is too
    short, or if `context.stop` is true. The run decides nothing.
    """
    winner, slo, stop = certified.winner, context.slo, context.stop
    rate_per_s = _rate_to_compare_at(certified)
    if rate_per_s is None:
        return winner
    seconds = _seconds(rate_per_s, slo.first)
    least_s = LOADING_MARGIN * winner.loading_s + (seconds or 0.0) + slo.first.limit_s
    if seconds is None or context.budget.left_s() < least_s or stop():
        return winner
    seed = context.seed + SEED_OF_RUN
    try:
        context.bench.load(winner.served)
        probe = context.bench.measure(rate_per_s, seconds, seed, lambda _: stop())
    except BenchFailed as failure:
        log.warning("trial %d failed at the rate of the default: %s", winner.number, failure.reason)
        return winner
    if stop():
        return winner
    seen = evaluate_probe(probe, rate_per_s, slo.tested)
    emit_probed(context.on_event, winner.number, seen, met=seen.reading.met)
    runs = (*winner.load_runs, load_run_of(seen, probe, slo.tested, seed=seed))
    return winner.changed(load_runs=runs, probes=len(runs))


def _rate_to_compare_at(certified: CertifiedResult) -> float | None:
    """Return the certified rate of the default; None without one, or if the winner was measured near it."""
    winner, baseline = certified.winner, certified.baseline
    if baseline is None or baseline.certificate is None or winner.certificate is None:
        return None
    rate_per_s = baseline.certificate.rate_per_s
    measured = [winner.certificate.rate_per_s, *(run.rate_per_s for run in winner.load_runs if run.trusted)]
    return None if any(similar_rates(one, rate_per_s) for one in measured) else rate_per_s


def _seconds(rate_per_s: float, limit: LatencyLimit) -> float | None:
    """Return the seconds of a run with 30 requests beyond the quantile; None if 20 s do not even give 10."""
    warmup_s = left_out_ns(limit.limit_ms) / 1e9
    beyond_per_s = (1 - limit.quantile) * rate_per_s
    if MIN_BEYOND / beyond_per_s > MAX_RUN_S:
        return None
    return warmup_s + min(max(MIN_RUN_S, REQUESTS_BEYOND / beyond_per_s), MAX_RUN_S)
