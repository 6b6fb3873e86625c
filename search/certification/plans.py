"""What load runs showed of rates, and what to run next: the highest expected certified rate at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from loadgen.measurement.cpu_contention import CpuContention, merge_contention
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import MIN_RUN_S, Attempt
from loadgen.statistics.slo_test import Verdict, certify_together
from search.records.certificate import CertificateRecord, CertifiedLatencyRecord
from search.study.acquisition import PATIENCE_S
from search.study.belief import Belief, Outlook
from search.trials.context import confidence_of_a_run
from search.trials.predicted_trial import LATE_STEP
from search.trials.trial import Trial

DIGITS = 6
"""Confidences in certificates are rounded to 6 digits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfirmationRun:
    """One run at `rate_per_s`; `server` counts the restarts before it."""

    rate_per_s: float
    log: RequestLog
    seconds: float
    server: int
    contention: CpuContention | None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The runs of one trial. `confidence` is that of a rate that is met on two servers; `once`: on one."""

    limits: tuple[LatencyLimit, ...]
    confidence: float = 0.95
    once: bool = False
    runs: list[ConfirmationRun] = field(default_factory=list)
    met: dict[tuple[float, int], Attempt] = field(default_factory=dict)
    """By rate and server: what the runs there showed together, if they met the rate."""

    refuted_per_s: float = math.inf
    """The lowest rate that was violated."""

    refuted_before_per_s: float = math.inf
    """The lowest rate that was violated before that."""

    given_up_per_s: float = math.inf
    """The lowest rate at which a run would not have been met in its time, whatever was simulated."""

    late: list[float] = field(default_factory=list)
    """The rates of runs that measured the client, ascending, above all at which it was in time."""

    @property
    def late_per_s(self) -> float:
        """The rate up to which the client was late twice; once may be a disturbance."""
        return self.late[1] if self.late[1:] else math.inf

    @property
    def of_each(self) -> float:
        """The confidence on each of two servers, or on the only one."""
        return self.confidence if self.once else confidence_of_a_run(self.confidence)

    def logs(self, rate_per_s: float, server: int) -> list[RequestLog]:
        """Return the logs at a rate on one server."""
        return [run.log for run in self.runs if (run.rate_per_s, run.server) == (rate_per_s, server)]

    def verdicts(self, rate_per_s: float, server: int, *more: RequestLog) -> tuple[Verdict, ...]:
        """Return what the runs at a rate on one server show together, with another one that may be going on."""
        logs = [*self.logs(rate_per_s, server), *more]
        return certify_together(logs, self.limits, confidence=self.of_each)

    def add(self, run: ConfirmationRun, attempt: Attempt) -> None:
        """Keep a run, and what it showed together with the earlier ones at its rate on its server."""
        self.runs.append(run)
        self.late = [rate for rate in self.late if rate > run.rate_per_s]
        key = run.rate_per_s, run.server
        if attempt.met:
            self.met[key] = attempt
        else:
            self.met.pop(key, None)
        if attempt.violated and run.rate_per_s < self.refuted_per_s:
            self.refuted_per_s, self.refuted_before_per_s = run.rate_per_s, self.refuted_per_s

    def on(self, rate_per_s: float) -> dict[int, Attempt]:
        """Return the attempts that met a rate, by server: at it or, unless that is refuted, at a higher one."""
        able = {key: attempt for key, attempt in self.met.items() if rate_per_s <= key[0] < self.refuted_per_s}
        return {server: able[rate, server] for rate, server in sorted(able, reverse=True)}

    def certificate(self, rate_per_s: float, *, caveat: str | None) -> CertificateRecord:
        """Return the certificate of a rate that is met on a server, or on two."""
        attempts = self.on(rate_per_s)
        counted = {(attempt.rate_per_s, server) for server, attempt in attempts.items()}
        runs = [run for run in self.runs if (run.rate_per_s, run.server) in counted]
        return CertificateRecord(
            rate_per_s=rate_per_s,
            latencies=tuple(map(_worst, zip(*(one.verdicts for one in attempts.values()), strict=True))),
            confidence=round(self.confidence if len(attempts) > 1 else self.of_each, DIGITS),
            requests=sum(attempt.verdict.n for attempt in attempts.values()),
            seconds=sum(run.seconds for run in runs),
            runs=len(runs),
            servers=len(attempts),
            caveat=caveat,
            contention=reduce(merge_contention, (run.contention for run in runs)),
        )


def _worst(verdicts: Iterable[Verdict]) -> CertifiedLatencyRecord:
    each = list(verdicts)
    return CertifiedLatencyRecord(
        quantile=each[0].limit.quantile,
        model=each[0].limit.model,
        latency_ms=max(verdict.latency_ms for verdict in each),
        latency_low_ms=min(verdict.latency_lower_ms for verdict in each),
        latency_high_ms=max(verdict.latency_upper_ms for verdict in each),
        violations=sum(verdict.violations for verdict in each),
    )


SHARES = (0.88, 0.91, 0.935, 0.955, 0.97, 0.985)
"""Rates are tried from 88 % of what the belief covers upwards, as long as they promise more."""

LOWER, LOWEST = 0.85, 0.2
"""If the lowest of these does not pass, lower ones are tried, down to a fifth."""

LIKELY = 0.5
"""If no rate passes on two servers in half of the simulated tests, one server has all of the time."""

LAST_RESORT = 0.7
"""If no rate is likely to pass, 70 % of the lowest that was sent is tried."""

REFUTED = 0.985
"""After a rate was violated, 98.5 % of it are the most that is tried; after one was given up, too, if a lower one
is certified. Before, `LOWER` of it: the bursts that it met are longer than the simulated ones."""

LEAST_MET_S = 5.0
"""A run that meets a rate lasts 5 s, if there is time. At 44,000/s the test decides within 3 s, which show little
of how a machine drifts: two such runs met 44,463/s of an engine that did not keep 43,461/s for 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run that may follow: its trial, its rate, and how the test at this rate is likely to end.

    `servers`: how many have to confirm it. `loading_s`: until it can begin. `held_per_s`: the certified rate.
    """

    trial: Trial
    rate_per_s: float
    outlook: Outlook
    servers: int = 1
    loading_s: float = 0.0
    held_per_s: float = 0.0

    @property
    def worth(self) -> float:
        """The expected certified rate, less for the seconds it takes."""
        expected_per_s = self.held_per_s + self.outlook.share * max(0.0, self.rate_per_s - self.held_per_s)
        return expected_per_s * math.exp(-self.needed_s / PATIENCE_S)

    @property
    def needed_s(self) -> float:
        """The seconds until the rate is certified, if it passes."""
        return self.loading_s + self.servers * self.outlook.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans runs on a server by a belief.

    `once`: no second server will confirm a rate. `fixed_per_s` is the only rate, if the objective has one.
    `least_s`: what a run takes at least, whatever its rate, because of colocated models.
    """

    belief: Belief
    server: int = 0
    once: bool = False
    fixed_per_s: float | None = None
    least_s: float = 0.0

    def best(
        self, trial: Trial, evidence: Evidence, *, left_s: float, loading_s: float = 0.0, held_per_s: float = 0.0
    ) -> Plan | None:
        """Return the plan for a trial that is worth most; None if no rate can pass in time and is worth it.

        The belief has to cover the rate, and no run may have refuted it. Loading takes `loading_s` of `left_s`.
        """
        plans: list[Plan] = []

        def tried(rate_per_s: float) -> bool:
            """Plan for a rate; True if it is the best so far."""
            most = max((plan.worth for plan in plans), default=held_per_s)
            plan = self._plan(trial, evidence, rate_per_s, most, (left_s, loading_s), held_per_s)
            if plan is not None:
                plans.append(plan)
            return plan is not None and plan.outlook.share > 0 and plan.worth > most

        if self.fixed_per_s is not None:
            if self.fixed_per_s < evidence.refuted_per_s:
                tried(self.fixed_per_s)
        else:
            covered_per_s = self.belief.highest_covered(trial)
            most_per_s = min(
                covered_per_s,
                _below_refuted(evidence, covered_per_s),
                (REFUTED if held_per_s else LOWER) * evidence.given_up_per_s,
                (LOWER if held_per_s else LATE_STEP) * evidence.late_per_s,
            )
            begun = {run.rate_per_s for run in evidence.runs if held_per_s < run.rate_per_s <= most_per_s}
            for rate_per_s in sorted(begun):
                tried(rate_per_s)
            all(map(tried, (share * most_per_s for share in SHARES if share * most_per_s > held_per_s)))
            rate_per_s = LOWER * SHARES[0] * most_per_s
            # Until the best plan passes in all simulated tests.
            while rate_per_s > max(held_per_s, LOWEST * most_per_s) and not (
                plans and max(plans, key=lambda plan: plan.worth).outlook.share == 1
            ):
                tried(rate_per_s)
                rate_per_s *= LOWER
        able = sorted((plan for plan in plans if plan.outlook.share > 0), key=lambda plan: -plan.worth)
        best = able[0] if able else None
        if held_per_s or left_s - loading_s < MIN_RUN_S:
            return best
        if not self.once and (best is None or best.outlook.share < LIKELY):
            # A rate that is met on one server is better than none.
            alone = replace(self, once=True).best(trial, evidence, left_s=left_s, loading_s=loading_s)
            return alone if best is None or (alone is not None and alone.worth > best.worth) else best
        if best is None and plans and self.fixed_per_s is None:
            sent = [run.rate_per_s for run in evidence.runs]
            return replace(plans[0], rate_per_s=LAST_RESORT * min([plans[0].rate_per_s, *sent]))
        return best

    def _plan(
        self,
        trial: Trial,
        evidence: Evidence,
        rate_per_s: float,
        least_worth: float,
        time_s: tuple[float, float],
        held_per_s: float,
    ) -> Plan | None:
        """Return the plan for a rate; None if `time_s`, all and for loading, is too short to be worth more."""
        (left_s, loading_s), on = time_s, evidence.on(rate_per_s)
        servers = 1 if on or self.once else 2
        worthy_s = PATIENCE_S * math.log(rate_per_s / least_worth) if least_worth > 0 else math.inf
        seconds = (min(left_s, worthy_s) - loading_s) / servers
        before = evidence.logs(rate_per_s, self.server)
        if seconds < max(MIN_RUN_S, 0.0 if before else self.least_s):
            return None
        outlook = self.belief.outlook(
            trial,
            rate_per_s,
            left_s=seconds,
            confidence=evidence.of_each,
            before=() if self.server in on else before,
            least_share=(least_worth - held_per_s) / max(1e-9, rate_per_s - held_per_s),
        )
        return Plan(
            trial=trial,
            rate_per_s=rate_per_s,
            outlook=replace(outlook, seconds=max(outlook.seconds, self.least_s, min(LEAST_MET_S, seconds))),
            servers=servers,
            loading_s=loading_s,
            held_per_s=held_per_s,
        )


def _below_refuted(evidence: Evidence, covered_per_s: float) -> float:
    """Return the highest rate that is worth a try after violated ones.

    If the belief, which covers `covered_per_s`, does not explain the last two, it is wrong: the next is twice as
    far below the last as that was below the one before, but not in the lower half above a met rate.
    """
    last, before = evidence.refuted_per_s, evidence.refuted_before_per_s
    step = min(REFUTED, (last / before) ** 2) if covered_per_s >= last and before < math.inf else REFUTED
    met = [rate for rate, _ in evidence.met if rate < last]
    return max(step * last, math.sqrt(max(met) * last) if met else 0.0)
