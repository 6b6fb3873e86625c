"""One rate of one configuration put to the proof on a bench, and its certificate where it is kept."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadgen.confirm import FIRST_SHARE, confirm
from search import events
from search.confirmable import KNEE_SHARE, least_s
from search.confirmations import keep_attempt
from search.neighbours import made_up_for, record_of, seen_in_both
from search.records import CertificateRecord, LimitCertificateRecord
from search.steadiness import LONGER_S, Steadiness
from search.words import memory_text

if TYPE_CHECKING:
    from pathlib import Path

    from loadgen.capacity import Probe, Watch
    from loadgen.certify import Verdict
    from loadgen.confirm import Attempt
    from search.bench import Bench, BenchFailed
    from search.budget import Budget
    from search.demand import Demand
    from search.neighbours import NeighboursRecord
    from search.objective import Objective
    from search.records import Slo
    from search.replays import Replays
    from search.trial import Trial

log = logging.getLogger("tritune.certification")

DIGITS = 6
"""Of a confidence in a certificate."""

LEAST_S = 6.0
"""Of load: a confirmation that may take less decides nothing."""

NO_LOWER = 0.999
"""Of the rate that was given, the floor where no other rate is an answer."""


def confidence_of_a_run(confidence: float) -> float:
    """Of each of two confirmations that have `confidence` together: a rate that is too high has to pass both by
    luck, with fresh arrivals each time.
    """
    return 1 - math.sqrt(1 - confidence)


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
    demand: Demand
    deadline_s: float | None
    confidence: float
    on_event: events.OnEvent
    replays: Replays
    steadiness: Steadiness = field(default_factory=Steadiness)
    served_per_s: dict[int, float] = field(default_factory=dict)
    """By the trial's number: what its server did where it could not keep up, which may be less than estimated."""

    last_reason: str = ""
    """Why the latest confirmation ended as it did."""

    _confirmations: int = 0
    _doubted: bool = False  # what was kept once was not kept again

    def left_s(self) -> float:
        """Seconds that may still be spent; never negative."""
        deadline_s = self.budget.total_s if self.deadline_s is None else self.deadline_s
        return max(0.0, deadline_s - self.budget.elapsed_s())

    def make_up(self) -> None:
        """Extend the budget by what neighbours took of it, where that was not done before."""
        if self.deadline_s is None:
            made_up_for(self.bench, self.budget, self.on_event)

    def share_of_time(self, share: float) -> float:
        """So much of the seconds that are left; where that is too little for anything, after making up."""
        if share * self.left_s() < LEAST_S:
            self.make_up()
        return share * self.left_s()

    def estimate_of(self, trial: Trial) -> float:
        """The highest rate per second that the trial, which must have one, is expected to keep."""
        return self.steadiness.estimate(trial)

    def rate_to_try(self, trial: Trial, share: float) -> float:
        """So much of the estimate, where no rate was given; less on a machine that is not steady."""
        return self.objective.rate_per_s or share * self.steadiness.margin * self.estimate_of(trial)

    def longer_s(self) -> float:
        """How long a confirmation has to last, whatever it has shown by then."""
        return LONGER_S if self._doubted or self.steadiness.excess else 0.0

    def least_s(self, rate_per_s: float) -> float:
        """Seconds that a confirmation of the rate takes in which no request is over a limit."""
        return least_s(rate_per_s, self.slo, self.confidence)

    def confirmed(
        self, trial: Trial, rate_per_s: float, *, budget_s: float, floor_per_s: float = 0.0
    ) -> Trial | None:
        """The trial with a certificate at `rate_per_s` or below; None where nothing down to the floor was kept."""
        self._confirmations += 1
        before = self.bench.spent.neighbours
        if self.objective.rate_per_s is not None:
            floor_per_s = NO_LOWER * self.objective.rate_per_s

        def on_attempt(attempt: Attempt) -> None:
            log.info("trial %d: %s", trial.number, attempt)
            keep_attempt(self.directory, attempt, trial=trial.number, again=trial.certificate is not None)
            for problem in attempt.problems:
                self.on_event(events.Note(text=f"A confirmation run was not trusted: {problem}", warning=True))
            if not attempt.problems and not attempt.kept:
                self._doubted |= trial.certificate is not None
                self.on_event(
                    events.Certified(
                        trial=trial, rate_per_s=attempt.rate_per_s, certificate=None, broken=attempt.broken
                    )
                )

        confirmation = confirm(
            self._measure,
            rate_per_s / FIRST_SHARE,
            limit_ms=self.slo.limit_ms,
            quantile=self.slo.quantile,
            confidence=self.confidence,
            also=self.slo.further,
            budget_s=budget_s,
            seed=self.seed + 15_485_863 * self._confirmations,
            floor_per_s=floor_per_s,
            least_s=self.longer_s,
            most_after=lambda log: (
                KNEE_SHARE * self.steadiness.margin * self.replays.rate_at_limit(trial.config, log)
            ),
            on_attempt=on_attempt,
        )
        self.served_per_s[trial.number] = confirmation.served_per_s
        self.last_reason = confirmation.reason
        if confirmation.kept is None:
            if confirmation.attempts:
                last = confirmation.attempts[-1]
                self.on_event(events.Note(text=f"{last.rate_per_s:,.0f}/s: {last.reason}."))
            return None
        seen = record_of(self.bench.spent.neighbours - before)
        certified = self._with_certificate(trial, confirmation.kept, seen)
        self.on_event(
            events.Certified(
                trial=trial, rate_per_s=confirmation.kept.rate_per_s, certificate=certified.certificate
            )
        )
        return certified

    def _measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        patient = self.demand.to_the_end(watch, rate_per_s, duration_s)
        return self.bench.measure(rate_per_s, duration_s, seed, patient)

    def _with_certificate(self, trial: Trial, attempt: Attempt, neighbours: NeighboursRecord | None) -> Trial:
        certificate = self._certificate(attempt, neighbours)
        if trial.certificate is not None:
            certificate = both(trial.certificate, certificate)
        return replace(
            trial,
            certificate=certificate,
            measurement=self.bench.last_measurement(),
            memory_bytes=self.bench.memory_bytes(trial.config),
        )

    def _certificate(self, attempt: Attempt, neighbours: NeighboursRecord | None) -> CertificateRecord:
        verdict = attempt.verdict
        return CertificateRecord(
            rate_per_s=attempt.rate_per_s,
            quantile=verdict.quantile,
            p99_ms=verdict.latency_ms,
            p99_low_ms=verdict.latency_lower_ms,
            p99_high_ms=verdict.latency_upper_ms,
            confidence=round(self.confidence, DIGITS),
            requests=verdict.n,
            violations=verdict.violations,
            seconds=attempt.load_s,
            runs=1,
            caveat=joined(self.demand.caveat(attempt.load_s * attempt.rate_per_s), self.steadiness.text),
            also=tuple(_limit_certificate(other) for other in attempt.others),
            neighbours=neighbours,
        )

    def fits(self, trial: Trial) -> bool:
        """Whether the server is not known to have taken more memory with it than it may; says so where it has."""
        most = self.slo.max_memory_bytes
        if most is None or not trial.over_memory(most):
            return True
        taken, limit = memory_text(trial.memory_bytes or 0), memory_text(most)
        text = f"Trial {trial.number} is not chosen: the server took {taken} with it, over the limit of {limit}."
        self.on_event(events.Note(text=text, warning=True))
        return False

    def lost(self, trial: Trial, failure: BenchFailed) -> None:
        """Say that the bench failed in the middle of it."""
        log.warning("certification of trial %d failed: %s", trial.number, failure.reason)
        text = f"Trial {trial.number} failed while it was certified: {failure.reason.splitlines()[0]}"
        self.on_event(events.Note(text=text, warning=True))


def joined(*caveats: str | None) -> str | None:
    """Those that there are, in one line."""
    return "; ".join(filter(None, caveats)) or None


def both(first: CertificateRecord, second: CertificateRecord) -> CertificateRecord:
    """What two confirmations say together of the second one's rate, which is not above the first one's.

    Latencies are the worse of the two. A bound that is wrong must have been wrong twice.
    """
    return CertificateRecord(
        rate_per_s=second.rate_per_s,
        quantile=second.quantile,
        p99_ms=max(first.p99_ms, second.p99_ms),
        p99_low_ms=min(first.p99_low_ms, second.p99_low_ms),
        p99_high_ms=max(first.p99_high_ms, second.p99_high_ms),
        confidence=round(1 - (1 - first.confidence) * (1 - second.confidence), DIGITS),
        requests=first.requests + second.requests,
        violations=first.violations + second.violations,
        seconds=first.seconds + second.seconds,
        runs=first.runs + second.runs,
        caveat=second.caveat,
        also=tuple(_both_limits(*each) for each in zip(first.also, second.also, strict=True)),
        neighbours=seen_in_both(first.neighbours, second.neighbours),
    )


def _both_limits(first: LimitCertificateRecord, second: LimitCertificateRecord) -> LimitCertificateRecord:
    return second.model_copy(
        update={
            "latency_ms": max(first.latency_ms, second.latency_ms),
            "latency_low_ms": min(first.latency_low_ms, second.latency_low_ms),
            "latency_high_ms": max(first.latency_high_ms, second.latency_high_ms),
            "violations": first.violations + second.violations,
        }
    )


def _limit_certificate(verdict: Verdict) -> LimitCertificateRecord:
    return LimitCertificateRecord(
        quantile=verdict.quantile,
        limit_ms=verdict.limit_ms,
        latency_ms=verdict.latency_ms,
        latency_low_ms=verdict.latency_lower_ms,
        latency_high_ms=verdict.latency_upper_ms,
        violations=verdict.violations,
    )
