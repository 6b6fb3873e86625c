"""Conclude how a run ended: its status, the reason, and advice that follows from what was seen."""

from __future__ import annotations

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
    rounded_up,
    short_ms,
    untrustworthy,
    violated,
)
from search.answer.infeasible import memory_binds, rate_is_too_high, too_slow
from search.records.confirmations import ConfirmationRecord
from search.records.slo import Slo
from search.records.trial import TrialRecord

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
