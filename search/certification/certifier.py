"""Confirm one rate of one configuration with load runs, and write its certificate if it meets the SLO."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.measurement.cpu_contention import CpuContention, merge_contention, none_if_not_watched
from loadgen.measurement.request_log import RequestLog
from loadgen.records.formats import format_rate
from loadgen.statistics.capacity import Watch
from loadgen.statistics.capacity_fit import Probe
from loadgen.statistics.confirm import FIRST_SHARE, Attempt, confirm
from loadgen.statistics.halves import change_of
from loadgen.statistics.slo_test import Verdict
from model_repo.spec import ServingConfig
from search.certification.first_rate import KNEE_SHARE
from search.labels import memory_text
from search.records.confirmations import keep_attempt
from search.records.slo import Slo
from search.records.trial import CertificateRecord, CertifiedLatencyRecord
from search.simulator.replay import replay_run
from search.simulator.service_times_file import read_curves
from search.simulator.surrogate import Surrogate
from search.space import knobs_of
from search.study.drift import LONGER_S, SpeedVariation
from search.study.store import TrialStore
from search.trials import events
from search.trials.bench import Bench, BenchFailed
from search.trials.budget import Budget, extend_for_contention
from search.trials.certificate_time import confidence_of_a_run, least_s
from search.trials.objective import Objective
from search.trials.trial import Trial
from search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Replays the arrivals of runs in the simulator, for configurations whose kind was profiled."""

    surrogate: Surrogate

    @classmethod
    def of_run(cls, store: TrialStore, *, slo: Slo, seed: int, workload: Workload) -> Replays:
        """Return replays with the service times in the run's directory."""
        surrogate = Surrogate(space=store.space, slo=slo, seed=seed, workload=workload)
        surrogate.curves.update(read_curves(store.path.parent))
        return cls(surrogate=surrogate)

    def rate_at_limit(self, config: ServingConfig, log: RequestLog) -> float:
        """Return the capacity at the speed that the configuration had in this run; inf if there is no result."""
        surrogate = self.surrogate
        if not surrogate.workload.predictable or not surrogate.profiled(knobs_of(config)):
            return math.inf
        server = surrogate.server(config)
        found = replay_run(server, log, surrogate.limits, seed=surrogate.seed, workload=surrogate.workload)
        return math.inf if found is None else found.rate_per_s


log = logging.getLogger("tritune.certification")

DIGITS = 6
"""Confidences in certificates are rounded to 6 digits."""

LEAST_CERTIFY_S = 6.0
"""A confirmation with less than 6 s of load cannot decide anything."""

NO_LOWER = 0.999
"""If the objective gives a rate, a confirmation does not go below 99.9 % of it."""


@dataclass(slots=True, kw_only=True)
class Certifier:
    """Confirms rates on a bench until `deadline_s` on the budget's clock of elapsed seconds (None: its end), each
    with `confidence`.
    """

    bench: Bench
    slo: Slo
    objective: Objective
    budget: Budget
    seed: int
    directory: Path
    workload: Workload
    deadline_s: float | None
    confidence: float
    on_event: events.OnEvent
    replays: Replays
    variation: SpeedVariation = field(default_factory=SpeedVariation)
    served_per_s: dict[int, float] = field(default_factory=dict)
    """The rate that an overloaded server reached, by trial number; it may be below the estimate."""

    last_reason: str = ""
    """The reason why the latest confirmation ended."""

    lower_text: str | None = None
    """The caveat if the confidence is lower than the SLO's."""

    _confirmations: int = 0
    _doubted: bool = False  # a rate that met the SLO once did not again
    _change: str | None = None  # how the latest run changed in its middle

    def left_s(self) -> float:
        """Return the seconds that may still be spent; never negative."""
        deadline_s = self.budget.total_s if self.deadline_s is None else self.deadline_s
        return max(0.0, deadline_s - self.budget.elapsed_s())

    def extend(self) -> None:
        """Extend the budget by the time lost to CPU contention, unless it was extended before."""
        if self.deadline_s is None:
            extend_for_contention(self.bench, self.budget, self.on_event)

    def share_of_time(self, share: float) -> float:
        """Return a share of the seconds left; if that is too little for a run, try to extend the budget first."""
        if share * self.left_s() < LEAST_CERTIFY_S:
            self.extend()
        return share * self.left_s()

    def estimate_of(self, trial: Trial) -> float:
        """Return the expected capacity of a trial, which must have one."""
        return self.variation.estimate(trial)

    def rate_to_try(self, trial: Trial, share: float) -> float:
        """Return the objective's rate, or a share of the estimate: less on a machine with unstable speed."""
        return self.objective.rate_per_s or share * self.variation.margin * self.estimate_of(trial)

    def lower_confidence(self, confidence: float) -> None:
        """Certify with this confidence, which is lower than the SLO's: the time left is too short for that."""
        wanted = self.slo.confidence
        self.confidence = confidence_of_a_run(confidence)
        self.lower_text = (
            f"the confidence is {100 * confidence:g} % instead of {100 * wanted:g} %, for which the time budget "
            "was too short"
        )
        text = f"The time is too short for {100 * wanted:g} % confidence: {100 * confidence:g} % is certified."
        self.on_event(events.Note(text=text, warning=True, code="lower_confidence"))

    def longer_s(self) -> float:
        """Return the least seconds of a confirmation, even if it could decide earlier."""
        return LONGER_S if self._doubted or self.variation.excess else 0.0

    def least_s(self, rate_per_s: float) -> float:
        """Return the seconds that a confirmation of the rate takes if no request violates a limit."""
        return least_s(rate_per_s, self.slo, self.confidence)

    def confirm_rate(
        self, trial: Trial, rate_per_s: float, *, budget_s: float, floor_per_s: float = 0.0
    ) -> Trial | None:
        """Return the trial with a certificate at `rate_per_s` or below; None if none was met down to the floor."""
        self._confirmations += 1
        before = self.bench.spent.contention
        if self.objective.rate_per_s is not None:
            floor_per_s = NO_LOWER * self.objective.rate_per_s

        def on_attempt(attempt: Attempt) -> None:
            log.info("trial %d: %s", trial.number, attempt)
            change = None if attempt.overloaded else self._change
            again = trial.certificate is not None
            keep_attempt(self.directory, attempt, trial=trial.number, again=again, change=change)
            if change is not None:
                self._note(f"{format_rate(attempt.rate_per_s)}/s: {change}.", "run_changed", trial)
            for problem in attempt.problems:
                self._note(f"A confirmation run was not trusted: {problem}", "run_not_trusted", trial)
            if not attempt.problems and not attempt.met:
                self._doubted |= trial.certificate is not None
                self.on_event(
                    events.ConfirmationEnded(
                        trial=trial, rate_per_s=attempt.rate_per_s, certificate=None, violated=attempt.violated
                    )
                )

        confirmation = confirm(
            self._measure,
            rate_per_s / FIRST_SHARE,
            limits=self.slo.limits,
            confidence=self.confidence,
            budget_s=budget_s,
            seed=self.seed + 15_485_863 * self._confirmations,
            floor_per_s=floor_per_s,
            least_s=self.longer_s,
            most_after=lambda log: (
                KNEE_SHARE * self.variation.margin * self.replays.rate_at_limit(trial.served, log)
            ),
            on_attempt=on_attempt,
        )
        self.served_per_s[trial.number] = confirmation.served_per_s
        self.last_reason = confirmation.reason
        if confirmation.met is None:
            if confirmation.attempts:
                last = confirmation.attempts[-1]
                text = f"{format_rate(last.rate_per_s)}/s: {last.reason}."
                self._note(text, "not_met", trial, warning=False)
            return None
        seen = none_if_not_watched(self.bench.spent.contention - before)
        certified = self._with_certificate(trial, confirmation.met, seen)
        self.on_event(
            events.ConfirmationEnded(
                trial=trial, rate_per_s=confirmation.met.rate_per_s, certificate=certified.certificate
            )
        )
        return certified

    def _measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        patient = self.workload.to_the_end(watch, rate_per_s, duration_s)
        probe = self.bench.measure(rate_per_s, duration_s, seed, patient)
        self._change = change_of(probe.log, self.slo.limits)
        return probe

    def _with_certificate(self, trial: Trial, attempt: Attempt, contention: CpuContention | None) -> Trial:
        certificate = self._certificate(attempt, contention)
        if trial.certificate is not None:
            certificate = merge_certificates(trial.certificate, certificate)
        return trial.changed(
            certificate=certificate,
            measurement=self.bench.last_measurement(),
            memory_bytes=self.bench.memory_bytes(trial.served),
        )

    def _certificate(self, attempt: Attempt, contention: CpuContention | None) -> CertificateRecord:
        verdict = attempt.verdict
        traffic = self.workload.caveat(attempt.load_s * attempt.rate_per_s)
        return CertificateRecord(
            rate_per_s=attempt.rate_per_s,
            latencies=tuple(_latency_record(one) for one in attempt.verdicts),
            confidence=round(self.confidence, DIGITS),
            requests=verdict.n,
            seconds=attempt.load_s,
            runs=1,
            caveat=join_caveats(traffic, self.variation.text, self.lower_text),
            contention=contention,
        )

    def fits(self, trial: Trial) -> bool:
        """True unless the server took more memory than allowed; emit a note if it did."""
        most = self.slo.max_memory_bytes
        if most is None or not trial.over_memory(most):
            return True
        taken, limit = memory_text(trial.memory_bytes or 0), memory_text(most)
        text = f"Trial {trial.number} is not chosen: the server took {taken} with it, over the limit of {limit}."
        self._note(text, "over_memory", trial)
        return False

    def lost(self, trial: Trial, failure: BenchFailed) -> None:
        """Log and report that the bench failed during certification."""
        log.warning("certification of trial %d failed: %s", trial.number, failure.reason)
        text = f"Trial {trial.number} failed while it was certified: {failure.reason.splitlines()[0]}"
        self._note(text, "certification_failed", trial)

    def _note(self, text: str, code: events.NoteCode, trial: Trial, *, warning: bool = True) -> None:
        self.on_event(events.Note(text=text, warning=warning, code=code, trial=trial.number))


def join_caveats(*caveats: str | None) -> str | None:
    """Join the caveats that are not empty; None if there are none."""
    return "; ".join(filter(None, caveats)) or None


def merge_certificates(first: CertificateRecord, second: CertificateRecord) -> CertificateRecord:
    """Return the certificate of two confirmations, for the rate of the second, which is not above the first.

    Latencies are the worse of the two. A wrong bound must have been wrong twice.
    """
    return CertificateRecord(
        rate_per_s=second.rate_per_s,
        latencies=tuple(_worse(*each) for each in zip(first.latencies, second.latencies, strict=True)),
        confidence=round(1 - (1 - first.confidence) * (1 - second.confidence), DIGITS),
        requests=first.requests + second.requests,
        seconds=first.seconds + second.seconds,
        runs=first.runs + second.runs,
        caveat=join_caveats(*dict.fromkeys((first.caveat, second.caveat))),
        contention=merge_contention(first.contention, second.contention),
    )


def _worse(first: CertifiedLatencyRecord, second: CertifiedLatencyRecord) -> CertifiedLatencyRecord:
    return second.changed(
        latency_ms=max(first.latency_ms, second.latency_ms),
        latency_low_ms=min(first.latency_low_ms, second.latency_low_ms),
        latency_high_ms=max(first.latency_high_ms, second.latency_high_ms),
        violations=first.violations + second.violations,
    )


def _latency_record(verdict: Verdict) -> CertifiedLatencyRecord:
    return CertifiedLatencyRecord(
        quantile=verdict.limit.quantile,
        latency_ms=verdict.latency_ms,
        latency_low_ms=verdict.latency_lower_ms,
        latency_high_ms=verdict.latency_upper_ms,
        violations=verdict.violations,
    )
