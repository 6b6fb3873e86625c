"""Conclude how a run ended: its status, the reason, and advice that follows from what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_rate
from loadgen.statistics.sequential import fewest_violations
from loadgen.statistics.slo_test import confidence_of_each
from search.answer.evidence import (
    GO_ON,
    Conclusion,
    RunEvidence,
    advise_longer,
    advise_quieter,
    inconclusive,
    knobs,
    rounded_up,
    short_ms,
    untrustworthy,
    violated,
)
from search.labels import memory_text
from search.records.confirmations import ConfirmationRecord
from search.records.slo import Slo
from search.records.trial import LoadRunRecord, MeasurementRecord, TrialRecord

WELL_OVER = 2.0
"""A run is well over a limit with twice the violations that it allows: fewer may be bad luck of a short run."""

IN_GROUPS = 3.0
"""If a burst of late requests has more than 3 on average, it is the server or the machine that stalls."""

LONE_SHARE = 0.25
"""At a rate that keeps a server busy for a quarter of the time, if it meets the limit, requests hardly meet."""


def conclude(run: RunEvidence) -> Conclusion:
    """Return how a run ended."""
    concluded = _concluded(run)
    causes = [] if run.pauses is None else [run.pauses.text]
    if run.lost is not None:
        rate_per_s, count = run.lost
        causes.append(
            f"At {format_rate(rate_per_s)}/s Triton's HTTP front end lost {count:,} answers: "
            "give --protocol grpc, or raise net.core.wmem_default."
        )
    if run.interrupted or not causes:
        return concluded
    return replace(concluded, advice=" ".join(filter(None, (*causes, concluded.advice))))


def _concluded(run: RunEvidence) -> Conclusion:
    if run.interrupted:
        return _interrupted(run)
    if run.winner is not None:
        return _certified(run, run.winner)
    if not run.trials:
        return inconclusive(
            "The time budget ended before the first trial.", f"Give a longer --time-budget, or {GO_ON}."
        )
    rules: tuple[Callable[[RunEvidence], Conclusion | None], ...] = (
        _not_confirmed,
        memory_binds,
        rate_is_too_high,
        too_slow,
        _not_measured,
    )
    return next(conclusion for rule in rules if (conclusion := rule(run)) is not None)


def _interrupted(run: RunEvidence) -> Conclusion:
    certificate = None if run.winner is None else run.winner.certificate
    if certificate is not None:
        times = "twice" if certificate.confirmed_again else "once"
        reason = f"Interrupted; {format_rate(certificate.rate_per_s)} requests/s had been certified {times}."
    elif run.trials:
        count = len(run.trials)
        reason = f"Interrupted after {count} trial{'s' if count > 1 else ''}, before a rate was certified."
    else:
        reason = "Interrupted before the first trial ended."
    return Conclusion(status="interrupted", reason=reason, advice=f"{GO_ON[0].upper()}{GO_ON[1:]}.")


def _certified(run: RunEvidence, winner: TrialRecord) -> Conclusion:
    certificate = winner.certificate
    assert certificate is not None
    rate = f"{format_rate(certificate.rate_per_s)} requests/s"
    if certificate.confirmed_again:
        reason = f"{rate} met {run.slo.text} twice, the second time on a restarted server."
        advice = f"Mind that {certificate.caveat}." if certificate.caveat else ""
        return Conclusion(status="certified", reason=reason, advice=advice)
    again = [one for one in run.confirmations if one.again and one.trial == winner.number]
    trusted = [one for one in again if not one.problems]
    contention = mark_of(certificate.contention) or mark_of(run.contention)
    if again and not trusted:
        why, advice = f"the client could not measure it again: {again[-1].problems[0]}", advise_quieter(contention)
    elif contention is not None and trusted:
        why, advice = f"not again on a restarted server while {contention}", advise_quieter(contention)
    elif trusted:
        last = trusted[-1]
        late = f"{last.violations:,} of {last.requests:,} requests were late at {format_rate(last.rate_per_s)}/s"
        short = last.answer == "inconclusive" and not _is_well_over(last, run.slo)
        why = f"not again on a restarted server: {late}{', undecided when the time ended' if short else ''}"
        advice = f"To confirm it again, {GO_ON}."
    else:
        why = "; ".join(filter(None, (contention, certificate.caveat))) or "not again on a restarted server"
        advice = advise_longer(run, certificate.rate_per_s) if contention is None else advise_quieter(contention)
    return Conclusion(
        status="provisional",
        reason=f"{rate} met {run.slo.text} once: {why}.",
        advice=f"{advice} --accept-provisional ends such a run with 0.",
    )


def _not_confirmed(run: RunEvidence) -> Conclusion | None:
    """Conclude if capacities were estimated, and none of the rates was certified."""
    estimates = [trial.rate_at_limit_per_s for trial in run.in_state("complete") if trial.rate_at_limit_per_s]
    if not estimates:
        return None
    what = f"No rate could be certified to meet {run.slo.text}"
    trusted = [one for one in run.confirmations if not one.problems]
    contention = mark_of(run.contention)
    if run.confirmations and not trusted and not _sent_nothing(run.confirmations[-1].problems):
        return untrustworthy(f"{what}: {run.confirmations[-1].problems[0]}.", advise_quieter(contention))
    over = [one for one in trusted if _is_well_over(one, run.slo)]
    if over and contention is not None:
        return untrustworthy(f"{what}: {contention}.", advise_quieter(contention))
    if trusted and trusted[-1].change and trusted[-1].answer == "inconclusive":
        return inconclusive(
            f"{what}: at {format_rate(trusted[-1].rate_per_s)}/s {trusted[-1].change}.",
            f"Look for what slowed the server or the machine in that half; then {GO_ON}.",
        )
    gentlest = min(over, key=lambda one: one.rate_per_s, default=None)
    if gentlest is not None and not any(_seems_met(one, run.slo) for one in trusted):
        return _late_at_any_rate(run, gentlest)
    seen, likely_per_s = "", max(estimates)
    if gentlest is not None:
        likely_per_s = min(likely_per_s, gentlest.rate_per_s)
        rate = format_rate(gentlest.rate_per_s)
        late = f"at {rate}/s {gentlest.violations:,} of {gentlest.requests:,} requests were late, undecided"
        seen = f"{rate} requests/s violated it, and " if gentlest.answer == "violated" else f"{late}, and "
    reason = f"{what}: {seen}the time budget was too short for as many requests as it takes."
    longer = advise_longer(run, likely_per_s)
    if contention is not None:
        reason, longer = f"{reason} Meanwhile {contention}.", f"{advise_quieter(contention)} {longer}"
    return inconclusive(reason, longer)


def _sent_nothing(problems: Sequence[str]) -> bool:
    """True if a run was too short for a single request, which is no fault of the client."""
    return bool(problems) and all(problem.startswith("no request was due") for problem in problems)


def _is_well_over(one: ConfirmationRecord, slo: Slo) -> bool:
    return one.violations > max(WELL_OVER * (1 - slo.first.quantile) * one.requests, 3)


def _seems_met(one: ConfirmationRecord, slo: Slo) -> bool:
    """True if the run seems to meet the SLO, even if it was too short for a certificate."""
    allowed = (1 - slo.first.quantile) * one.requests
    return one.met or (allowed >= 1 and one.violations <= allowed)


def _late_at_any_rate(run: RunEvidence, seen: ConfirmationRecord) -> Conclusion:
    """Conclude that too many requests were late at every rate: the server stalls, or single requests take long."""
    first = run.slo.first
    latency = "" if seen.latency_ms is None else f" ({first.name} {short_ms(seen.latency_ms)} ms)"
    reason = (
        f"No rate could be certified to meet {run.slo.text}: even at {format_rate(seen.rate_per_s)}/s, "
        f"{seen.violations:,} of {seen.requests:,} requests took longer or failed{latency}."
    )
    if not run.several_sizes and seen.burst is not None and seen.burst > IN_GROUPS:
        return inconclusive(
            f"{reason} They came in groups of about {seen.burst:.0f}: something stalls.",
            f"Look for what stalls the server or the machine, such as a job that runs now and then; then {GO_ON}.",
        )
    advice = "Look into server.log: too many requests fail."
    if seen.latency_ms is not None:
        option = replace(first, limit_ms=rounded_up(1.1 * seen.latency_ms)).option.replace("=", " ")
        cause = (
            "Inputs of one size may be slower than the limit by themselves"
            if run.several_sizes
            else "Single executions are slower than the limit now and then"
        )
        advice = f"{cause}: give a limit from about {option}."
    each = confidence_of_each(run.slo.confidence, len(run.slo.limits))
    proven = seen.violations >= fewest_violations(seen.requests, first.allowed, max(1.0, seen.burst or 1.0), each)
    lone = proven and seen.rate_per_s <= LONE_SHARE * 1000 / first.limit_ms
    return violated(reason, advice) if lone else inconclusive(reason, advice)


def _not_measured(run: RunEvidence) -> Conclusion:
    """Conclude that no trial had a result: the client was late, the time was short, or nothing could be served."""
    what = f"No configuration was found that meets {run.slo.text}"
    runs = [one for trial in run.trials for one in trial.load_runs]
    contention = mark_of(run.contention)
    last = run.trials[-1].reason.splitlines()[0]
    late = not any(one.trusted or _sent_nothing(one.problems) for one in runs)
    if runs and (contention is not None or late):
        return untrustworthy(f"{what}: {contention or last}.", advise_quieter(contention))
    if runs:
        return inconclusive(f"{what}: {last}.", f"Give a longer --time-budget, or {GO_ON}.")
    count = len(run.trials)
    return Conclusion(
        status="environment_failed",
        reason=f"No configuration could be served: {count} trial{'s' if count > 1 else ''} failed, the last "
        f"because: {last.removesuffix('.')}.",
        advice="See server.log in the run's directory; `optimize doctor` says what this machine lacks.",
    )


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
