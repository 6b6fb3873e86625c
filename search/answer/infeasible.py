"""Conclude that no configuration meets the SLO: memory, the rate, or the latency of lone requests binds."""

from __future__ import annotations

import math
from dataclasses import replace

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_rate
from loadgen.statistics.sequential import fewest_violations
from loadgen.statistics.slo_test import confidence_of_each
from search.answer.evidence import (
    GO_ON,
    Conclusion,
    RunEvidence,
    advise_quieter,
    inconclusive,
    knobs,
    rounded_up,
    short_ms,
    untrustworthy,
    violated,
)
from search.labels import memory_text
from search.records.slo import Slo
from search.records.trial import LoadRunRecord, MeasurementRecord, TrialRecord

ENOUGH_BEYOND = 0.1
"""At a given rate the SLO is surely violated if the server was overloaded, or 10 % of the requests were late."""


def memory_binds(run: RunEvidence) -> Conclusion | None:
    """Conclude if configurations took more memory than allowed; None if memory does not bind."""
    most = run.slo.max_memory_bytes
    taken = [(trial.memory_bytes or 0, trial) for trial in run.trials]
    over = [pair for pair in taken if most is not None and pair[0] > most]
    if most is None or not over:
        return None
    least_bytes, least = min(over, key=lambda pair: pair[0])
    reason = (
        f"No configuration was found that meets {run.slo.text} in {memory_text(most)}: the smallest over it, "
        f"{knobs(least)}, took {memory_text(least_bytes)}."
    )
    advice = f"Give --max-memory {memory_text(1.1 * least_bytes).replace(' ', '')}, or a smaller model."
    all_over = len(over) == len(run.in_state("complete", "infeasible", "pruned"))
    if all_over and any(trial.config.instance_count == 1 for _, trial in over):
        return violated(reason, advice)
    return inconclusive(reason, f"{advice} Smaller configurations may fit: a longer --time-budget tries more.")


def rate_is_too_high(run: RunEvidence) -> Conclusion | None:
    """Conclude if one replica was to serve a rate; None if no rate was given, or none was reached."""
    rate_per_s = run.objective.rate_per_s
    reached = [trial for trial in run.trials if trial.rate_at_limit_per_s]
    if rate_per_s is None or not reached:
        return None
    best = max(reached, key=lambda trial: trial.rate_at_limit_per_s or 0.0)
    most = best.rate_at_limit_per_s or 0.0
    runs = [one for trial in run.in_state("infeasible") for one in trial.load_runs if one.trusted]
    surely = runs and all(one.overloaded or _late_share(one) > ENOUGH_BEYOND for one in runs)
    contention = mark_of(run.contention)
    reason = (
        f"No configuration {'meets' if surely and contention is None else 'was seen to meet'} {run.slo.text} at "
        f"{format_rate(rate_per_s)} requests/s on one replica: the best, {knobs(best)}, meets it up to about "
        f"{format_rate(most)}/s."
    )
    if contention is not None:
        return untrustworthy(f"{reason} Meanwhile {contention}.", advise_quieter(contention))
    lower = format_rate(0.9 * most)
    advice = f"Give a lower --rate, such as {lower}, or leave --objective out to have replicas counted."
    return (violated if surely else inconclusive)(reason, advice)


def _late_share(run: LoadRunRecord) -> float:
    return (run.violations or 0) / run.requests if run.requests else 0.0


def too_slow(run: RunEvidence) -> Conclusion | None:
    """Conclude from the latency of lone requests, if no rate seemed to meet the SLO; None if none was measured."""
    alone = [(t.lone_latency_ms, t) for t in run.in_state("infeasible") if t.lone_latency_ms is not None]
    if not alone:
        return None
    lone_ms, best = min(alone, key=lambda pair: pair[0])
    seen = (
        f"The fastest configuration, {knobs(best)}, answers lone requests in {short_ms(lone_ms)} ms "
        f"(median, on an idle server)."
    )
    contention = mark_of(best.contention)
    problems = () if best.measurement is None else best.measurement.problems
    if contention is not None or problems:
        disturbed = f"Meanwhile {contention}." if contention is not None else f"But {problems[0]}."
        return untrustworthy(
            f"No configuration was seen to meet {run.slo.text}. {seen} {disturbed}", advise_quieter(contention)
        )
    if not _is_proven(best, run.slo):
        return inconclusive(
            f"No configuration was seen to meet {run.slo.text}, and lone requests were too few to decide. {seen}",
            f"Give a longer --time-budget, or {GO_ON}.",
        )
    return violated(
        f"No configuration meets {run.slo.text}. {seen} {what_binds(best, run.slo)}",
        f"Give a limit from about {_within_reach(best, run.slo)}, a faster machine, or a smaller model.",
    )


def _is_proven(trial: TrialRecord, slo: Slo) -> bool:
    """True if the trial's lone requests violate a limit with the SLO's confidence."""
    seen = trial.measurement
    each = confidence_of_each(slo.confidence, len(slo.limits))
    lone = min((one for one in trial.load_runs if one.trusted), key=lambda one: one.rate_per_s, default=None)
    for limit in slo.limits:
        counts = [] if seen is None else [(seen.requests, _least_late(seen, limit.limit_ms))]
        if lone is not None and lone.requests and limit == slo.first:
            counts.append((lone.requests, lone.violations or 0))
        if any(late >= fewest_violations(n, limit.allowed, 1.0, each) for n, late in counts if n):
            return True
    return False


def _least_late(seen: MeasurementRecord, limit_ms: float) -> int:
    """Return how many requests were late at least, by the percentiles that were recorded."""
    quantiles = (0.5, 0.9, 0.95, 0.99, 0.999)
    late = [q for q in quantiles if (latency_ms := seen.latency_at_ms(q)) is not None and latency_ms > limit_ms]
    return math.floor((1 - min(late)) * seen.requests) if late else seen.failures


def _within_reach(best: TrialRecord, slo: Slo) -> str:
    """Return the missed limits as options with the latency that was measured and a tenth more."""
    missed = []
    for limit in slo.limits:
        seen_ms = None if best.measurement is None else best.measurement.latency_at_ms(limit.quantile)
        reachable_ms = 1.1 * max(best.lone_latency_ms or 0.0, seen_ms or 0.0)
        if len(slo.limits) == 1 or reachable_ms > limit.limit_ms:
            missed.append(replace(limit, limit_ms=rounded_up(reachable_ms)).option)
    return " ".join(option.replace("=", " ") for option in missed or [limit.option for limit in slo.limits])


def what_binds(trial: TrialRecord, slo: Slo) -> str:
    """Name the stage that takes most of the latency of a request on an idle server."""
    measured = trial.measurement
    server = None if measured is None else measured.server
    if measured is None or server is None:
        return "What binds is not known: the server gave no timings."
    model_ms = server.compute_input_ms + server.compute_infer_ms + server.compute_output_ms
    if model_ms > slo.first.limit_ms:
        alone = f"Standalone, the engine takes {short_ms(model_ms)} ms"
        return f"{alone}, which no configuration of the server can shorten."
    outside_ms = measured.network_and_client_ms or 0.0
    if server.queue_ms > max(model_ms, outside_ms):
        waiting = f"Queueing binds: {short_ms(server.queue_ms)} ms of waiting"
        return f"{waiting} before {short_ms(model_ms)} ms of execution."
    if outside_ms > model_ms:
        return (
            f"The client and the way to the server bind: {short_ms(outside_ms)} ms, against "
            f"{short_ms(model_ms)} ms of execution."
        )
    return f"The engine takes {short_ms(model_ms)} ms in the mean, and its slowest runs are over the limit."
