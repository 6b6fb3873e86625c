"""Conclude how a run ended: its status, the reason, and advice that follows from the measurements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadgen.exit_codes import Status
from loadgen.measurement.cpu_contention import CpuContention, mark_of
from loadgen.records.formats import duration_option, format_ms, format_rate, format_seconds
from loadgen.statistics.sequential import fewest_violations
from loadgen.statistics.slo_test import confidence_of_each
from search.answer.advice import GO_ON, LONGER, OTHERS_FIT, late_others, option, quieter, what_binds
from search.answer.pauses import Pauses
from search.labels import memory_text, trial_text
from search.records.confirmations import ConfirmationRecord
from search.records.slo import ObjectiveRecord, Slo
from search.records.trial import TrialRecord
from search.trials.context import budget_for, usual_certificate_s
from search.trials.predicted_trial import CLEARLY_VIOLATED

WELL_OVER = 2.0
"""A run is well over a limit with twice the violations that it allows: fewer may be bad luck of a short run."""

IN_GROUPS = 3.0
"""If a burst of late requests has more than 3 on average, the server or the machine may stall."""

LONE_SHARE = 0.25
"""At a rate that keeps a server busy for a quarter of the time, if it meets the limit, requests hardly meet."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a run ended. `advice` is empty if there is nothing to do."""

    status: Status
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What a run has recorded. `winner` has its certificate; None if no rate was certified.

    `contention` is the CPU contention during all load of the run. Its time budget was `budget_s`; preparation took
    `prepared_s` of it, the search after that `searched_s`. `pauses` explain the slowest requests, if they do.
    `lost` is the lowest rate at which more answers were lost than may be late, and their number. `restarts`: we
    restart the server; False: others run it.
    """

    slo: Slo
    trials: Sequence[TrialRecord]
    confirmations: Sequence[ConfirmationRecord] = ()
    objective: ObjectiveRecord = field(default_factory=ObjectiveRecord)
    winner: TrialRecord | None = None
    interrupted: bool = False
    contention: CpuContention | None = None
    budget_s: float = math.inf
    prepared_s: float = 0.0
    searched_s: float = 0.0
    pauses: Pauses | None = None
    lost: tuple[float, int] | None = None
    restarts: bool = True

    @property
    def mark(self) -> str | None:
        """The CPU contention in words; None if there was too little to matter."""
        return mark_of(self.contention)

    def in_state(self, *states: str) -> list[TrialRecord]:
        """Return the trials that ended in one of these states."""
        return [trial for trial in self.trials if trial.state in states]


def conclude(run: RunEvidence) -> Conclusion:
    """Return how a run ended."""
    if run.interrupted:
        return _interrupted(run)
    rules: tuple[Callable[[RunEvidence], Conclusion | None], ...] = (
        _certified,
        _mixes_rows,
        _not_confirmed,
        memory_binds,
        rate_is_too_high,
        too_slow,
        _not_measured,
    )
    concluded = next(conclusion for rule in rules if (conclusion := rule(run)) is not None)
    advice = [] if run.pauses is None else [run.pauses.text]
    if run.lost is not None:
        rate_per_s, count = run.lost
        advice.append(
            f"At {format_rate(rate_per_s)}/s Triton's HTTP front end lost {count:,} answers: "
            "give --protocol grpc, or raise net.core.wmem_default."
        )
    return replace(concluded, advice=" ".join(filter(None, (*advice, concluded.advice))))


def _interrupted(run: RunEvidence) -> Conclusion:
    certificate = None if run.winner is None else run.winner.certificate
    reason = f"Interrupted after {_trials(run)}, before a rate was certified."
    if certificate is not None:
        done = "certified" if certificate.certifies(run.slo.confidence) else "met once"
        reason = f"Interrupted; {format_rate(certificate.rate_per_s)} requests/s had been {done}."
    return Conclusion("interrupted", reason, f"{GO_ON[0].upper()}{GO_ON[1:]}.")


def _trials(run: RunEvidence) -> str:
    return f"{len(run.trials)} trial{'' if len(run.trials) == 1 else 's'}"


def _certified(run: RunEvidence) -> Conclusion | None:
    certificate = None if run.winner is None else run.winner.certificate
    if run.winner is None or certificate is None:
        return None
    met = f"{format_rate(certificate.rate_per_s)} requests/s met {run.slo.text}"
    if certificate.certifies(run.slo.confidence):
        where = "the second time on a restarted server" if run.restarts else "both times on the same server"
        return Conclusion("certified", f"{met} twice, {where}.", "")
    again = [one for one in run.confirmations if one.again and one.trial == run.winner.number]
    again = [] if certificate.confirmed_again else again
    seen = [next(iter(one.problems), f"{one.late} at {format_rate(one.rate_per_s)}/s") for one in again[-1:]]
    contention = mark_of(certificate.contention) or run.mark
    if contention is not None or (again and again[-1].problems):
        advice = quieter(contention)
    else:
        advice = f"To confirm it again, {GO_ON}." if again else _longer(run, certificate.rate_per_s)
    why = "; ".join(filter(None, (contention, certificate.caveat, *seen)))
    times = "twice" if certificate.confirmed_again else "once"
    return Conclusion("provisional", f"{met} {times}: {why}.", f"{advice} --accept-provisional accepts it with 0.")


def _mixes_rows(run: RunEvidence) -> Conclusion | None:
    """Conclude if batches mix rows, and nothing else was certified; None if no such batches were seen."""
    mixing = [trial for trial in run.trials if trial.mixes_rows]
    if not mixing:
        return None
    rows, least = min(((max(trial.config.batching_sizes), trial) for trial in mixing), key=lambda pair: pair[0])
    reason = (
        f"No rate could be certified to meet {run.slo.text} with batches of less than {rows}; in {least.reason}."
    )
    fix = "Correct the model, so that a row's result does not depend on the others of its batch"
    return Conclusion("bad_input", reason, f"{fix}; or {GO_ON}, which tries smaller batches.")


def _not_confirmed(run: RunEvidence) -> Conclusion | None:
    """Conclude if capacities were estimated, and none of the rates was certified."""
    estimates = [trial.rate_at_limit_per_s for trial in run.in_state("complete") if trial.rate_at_limit_per_s]
    if not estimates:
        return None
    what = f"No rate could be certified to meet {run.slo.text}"
    trusted = [one for one in run.confirmations if not one.problems]
    if run.confirmations and not trusted and not _sent_nothing(run.confirmations[-1].problems):
        return Conclusion("untrustworthy", f"{what}: {run.confirmations[-1].problems[0]}.", quieter(run.mark))
    over = [one for one in trusted if _is_well_over(one, run.slo)]
    if over and run.mark is not None:
        return Conclusion("untrustworthy", f"{what}: {run.mark}.", quieter(run.mark))
    gentlest = min(over, key=lambda one: one.rate_per_s, default=None)
    if gentlest is not None and not any(_seems_met(one, run.slo) for one in trusted):
        return _late_at_any_rate(run, gentlest)
    seen, likely_per_s = "", max(estimates)
    if gentlest is not None:
        likely_per_s = min(likely_per_s, gentlest.rate_per_s)
        seen = f"{gentlest.late} at {format_rate(gentlest.rate_per_s)}/s, and "
    reason = f"{what}: {seen}the time budget was too short for the requests that a certificate takes."
    longer = _longer(run, likely_per_s)
    if run.mark is not None:
        reason, longer = f"{reason} Meanwhile {run.mark}.", f"{quieter(run.mark)} {longer}"
    return Conclusion("inconclusive", reason, longer)


def _sent_nothing(problems: Sequence[str]) -> bool:
    """True if a run was too short for a single request, for which the client is not to blame."""
    return bool(problems) and all(problem.startswith("no request was due") for problem in problems)


def _is_well_over(one: ConfirmationRecord, slo: Slo) -> bool:
    return one.model is not None or one.violations > max(WELL_OVER * (1 - slo.first.quantile) * one.requests, 3)


def _seems_met(one: ConfirmationRecord, slo: Slo) -> bool:
    """True if the run seems to meet the SLO, even if it was too short for a certificate."""
    allowed = (1 - slo.first.quantile) * one.requests
    return one.met or (one.model is None and allowed >= 1 and one.violations <= allowed)


def _late_at_any_rate(run: RunEvidence, seen: ConfirmationRecord) -> Conclusion:
    """Conclude that too many requests were late at every rate: the server stalls, or single requests take long."""
    first, burst = run.slo.first, max(1.0, seen.burst or 1.0)
    facts, advice = [f"no {first.name}, as requests failed"], "Look into server.log: too many requests fail."
    if seen.latency_ms is not None:
        facts = [f"{first.name} {format_ms(seen.latency_ms)} ms", *filter(None, [seen.change])]
        slower = "Look for what slows single requests: long inputs, or a server or machine that stalls"
        advice = f"{slower}. Or give a limit from about {option(first, seen.latency_ms)}."
    if seen.model is not None:
        facts, advice = [f"the limit is {run.slo.text}"], OTHERS_FIT
    if burst > IN_GROUPS:
        facts.append(f"in groups of about {burst:.0f}")
    at = f"even at {format_rate(seen.rate_per_s)}/s, {seen.late} ({'; '.join(facts)})"
    reason = f"No rate could be certified to meet {run.slo.text}: {at}."
    each = confidence_of_each(run.slo.confidence, len(run.slo.limits))
    proven = seen.model is None and seen.violations >= fewest_violations(seen.requests, first.allowed, burst, each)
    lone = seen.rate_per_s <= LONE_SHARE * 1000 / first.limit_ms and burst <= IN_GROUPS
    return Conclusion("violated" if lone and proven else "inconclusive", reason, advice)


def memory_binds(run: RunEvidence) -> Conclusion | None:
    """Conclude if configurations took more memory than allowed; None if memory does not bind."""
    most = run.slo.max_memory_bytes
    over = [(size, trial) for trial in run.trials if (size := trial.memory_bytes or 0) > (most or math.inf)]
    if most is None or not over:
        return None
    least_bytes, least = min(over, key=lambda pair: pair[0])
    reason = (
        f"No configuration was found that meets {run.slo.text} in {memory_text(most)}: the smallest over it, "
        f"{trial_text(least)}, took {memory_text(least_bytes)}."
    )
    advice = f"Give --max-memory {memory_text(1.1 * least_bytes).replace(' ', '')}, or a smaller model."
    all_over = len(over) == len(run.in_state("complete", "infeasible", "pruned"))
    surely = all_over and any(
        all(one.instance_count == 1 for one in (trial.config, *trial.config.members)) for _, trial in over
    )
    return Conclusion("violated" if surely else "inconclusive", reason, advice)


def rate_is_too_high(run: RunEvidence) -> Conclusion | None:
    """Conclude if one replica was to serve a rate; None if no rate was given, or none was reached."""
    rate_per_s = run.objective.rate_per_s
    reached = [(trial.rate_at_limit_per_s, trial) for trial in run.trials if trial.rate_at_limit_per_s]
    if rate_per_s is None or not reached:
        return None
    most, best = max(reached, key=lambda pair: pair[0])
    runs = [one for trial in run.in_state("infeasible") for one in trial.load_runs if one.trusted]
    surely = runs and all(
        one.overloaded or (one.violations or 0) > CLEARLY_VIOLATED * (one.requests or math.inf) for one in runs
    )
    reason = (
        f"No configuration {'meets' if surely and run.mark is None else 'was seen to meet'} {run.slo.text} at "
        f"{format_rate(rate_per_s)} requests/s on one replica: the best, {trial_text(best)}, meets it up to about "
        f"{format_rate(most)}/s."
    )
    if run.mark is not None:
        return Conclusion("untrustworthy", f"{reason} Meanwhile {run.mark}.", quieter(run.mark))
    lower = format_rate(0.9 * most)
    advice = f"Give a lower --rate, such as {lower}, or leave --objective out to have replicas counted."
    return Conclusion("violated" if surely else "inconclusive", reason, advice)


def too_slow(run: RunEvidence) -> Conclusion | None:
    """Conclude from the latency of lone requests, if no rate seemed to meet the SLO; None if none was measured."""
    others = next(filter(None, (late_others(one, run.objective) for one in run.in_state("infeasible"))), None)
    if others is not None and run.mark is None:
        return Conclusion(
            "inconclusive", f"No configuration was seen to meet {run.slo.text}. {others}", OTHERS_FIT
        )
    lone = [(t.lone_latency_ms, t) for t in run.in_state("infeasible") if t.lone_latency_ms is not None]
    if not lone:
        return None
    lone_ms, best = min(lone, key=lambda pair: pair[0])
    seen = (
        f"Even on an idle server, the fastest configuration ({trial_text(best)}) takes {format_ms(lone_ms)} ms "
        "(median)."
    )
    not_seen = f"No configuration was seen to meet {run.slo.text}"
    contention = mark_of(best.contention)
    problems = () if best.measurement is None else best.measurement.problems
    if contention is not None or problems:
        disturbed = f"Meanwhile {contention}." if contention is not None else f"But {problems[0]}."
        return Conclusion("untrustworthy", f"{not_seen}. {seen} {disturbed}", quieter(contention))
    if not _is_proven(best, run.slo):
        return Conclusion("inconclusive", f"{not_seen}, and lone requests were too few to decide. {seen}", LONGER)
    return Conclusion(
        "violated",
        f"No configuration meets {run.slo.text}. {seen}{what_binds(best)}",
        f"Give a limit from about {_within_reach(best, run.slo)}, a faster machine, or a smaller model.",
    )


def _is_proven(trial: TrialRecord, slo: Slo) -> bool:
    """True if the trial's lone requests violate a limit with the SLO's confidence."""
    seen = trial.measurement
    each = confidence_of_each(slo.confidence, len(slo.limits))
    lone = min((one for one in trial.load_runs if one.trusted), key=lambda one: one.rate_per_s, default=None)
    for limit in slo.limits:
        counts = [] if seen is None else [(seen.requests, seen.least_late(limit.limit_ms))]
        if lone is not None and lone.requests and limit == slo.first and lone.model is None:
            counts.append((lone.requests, lone.violations or 0))
        if any(late >= fewest_violations(n, limit.allowed, 1.0, each) for n, late in counts if n):
            return True
    return False


def _within_reach(best: TrialRecord, slo: Slo) -> str:
    """Return the missed limits as options with the latency that was measured and a tenth more."""
    missed = []
    for limit in slo.limits:
        seen_ms = None if best.measurement is None else best.measurement.latency_at_ms(limit.quantile)
        reached_ms = max(best.lone_latency_ms or 0.0, seen_ms or 0.0)
        if len(slo.limits) == 1 or 1.1 * reached_ms > limit.limit_ms:
            missed.append(option(limit, reached_ms))
    return " ".join(missed or [limit.option.replace("=", " ") for limit in slo.limits])


def _not_measured(run: RunEvidence) -> Conclusion:
    """Conclude that no trial had a result: the client was late, the time was short, or nothing could be served."""
    if not run.trials:
        return Conclusion("inconclusive", "The time budget ended before the first trial.", LONGER)
    what = f"No configuration was found that meets {run.slo.text}"
    runs = [one for trial in run.trials for one in trial.load_runs]
    last = run.trials[-1].reason.splitlines()[0].removesuffix(".")
    late = not any(one.trusted or _sent_nothing(one.problems) for one in runs)
    if runs and (run.mark is not None or late):
        return Conclusion("untrustworthy", f"{what}: {run.mark or last}.", quieter(run.mark))
    if runs:
        return Conclusion("inconclusive", f"{what}: {last}.", LONGER)
    called = re.search(r"(?:Model|unknown model:) '([\w.+-]+)' is not (?:ready|found)", last)
    return Conclusion(
        "environment_failed",
        f"No configuration could be served: {_trials(run)} failed, the last because: {last}.",
        "See server.log in the run's directory; `optimize doctor` says what this machine lacks."
        if called is None
        else f"If the model, or a member of it, calls {called[1]}, add --calls {called[1]}.",
    )


def _longer(run: RunEvidence, rate_per_s: float) -> str:
    """Return the time budget that a certificate at about this rate needs, with the rates that were violated.

    A run that had this time already needs as much more as a certificate takes.
    """
    needs_s = usual_certificate_s(rate_per_s, run.slo)
    refuted_s = sum(one.seconds for one in run.confirmations if one.answer == "violated" and not one.problems)
    before_s = run.prepared_s + run.searched_s + refuted_s
    budget_s = budget_for(needs_s, prepared_s=run.prepared_s, searched_s=run.searched_s + refuted_s)
    if budget_s <= run.budget_s < math.inf:
        budget_s = run.budget_s + needs_s
    return (
        f"Give --time-budget {duration_option(10 * math.ceil(budget_s / 10))}: two confirmations at about "
        f"{format_rate(rate_per_s)} requests/s usually take {format_seconds(math.ceil(needs_s))}; before "
        f"them, preparation and search took {format_seconds(math.ceil(before_s))}."
    )
