"""From estimates to a promise: the best configuration must keep the limit under fresh arrivals, twice."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadgen.certify import Verdict, certify
from search import events
from search.bench import BenchFailed
from search.records import CertificateRecord
from search.space import default_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog
    from search.bench import Bench
    from search.budget import Budget
    from search.ledger import Ledger
    from search.records import Slo
    from search.trial import Trial

log = logging.getLogger("tritune.certification")

FIRST_SHARE = 0.985
"""Of the estimated rate at the limit, where the first confirmation is tried."""

STEPS_DOWN = (0.97, 0.95, 0.92, 0.88, 0.8)
"""What a rate that was not kept is multiplied by, one after the other; the last one again and again."""

LARGE_STEP_DOWN = 0.7
"""The same when little time is left: a low promise is better than none."""

HURRY_BELOW_S = 20.0
SHARE_FOR_ONE_RUN = 0.6
LONGEST_RUN_S = 90.0
SHORTEST_RUN_S = 6.0
WHEN_STOPPED_S = 30.0
"""What certification may still take after the user has asked to finish."""

SHARE_FOR_SECOND_RUN = 0.3
SHARE_FOR_BASELINE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """The winner with its certificate; the baseline with one too where there was time for it."""

    winner: Trial
    baseline: Trial | None


@dataclass(slots=True, kw_only=True)
class Certifier:
    """Confirms rates on a bench. `deadline_s` is on the budget's clock of elapsed seconds."""

    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    on_event: events.OnEvent
    deadline_s: float
    stop: Callable[[], bool]
    _runs: int = field(default=0)

    def left_s(self, kept_back: float = 0.0) -> float:
        """Seconds that may still be spent, less a share of all that is left to the budget's end."""
        left = self.deadline_s - self.budget.elapsed_s()
        return max(0.0, left * (1.0 - kept_back))

    def confirm(self, trial: Trial, rate_per_s: float, *, longest_s: float) -> Verdict | None:
        """One run at a rate until it is decided; None when it could not be measured."""
        self._runs += 1
        duration_s = max(SHORTEST_RUN_S, min(LONGEST_RUN_S, longest_s))

        def decided(so_far: RequestLog) -> bool:
            return self._verdict(so_far).answer != "undecided"

        probe = self.bench.measure(rate_per_s, duration_s, self.seed + 15485863 * self._runs, decided)
        if probe.problems:
            log.warning("not trusted: %s", probe.problems)
            self.on_event(
                events.Note(text=f"A confirmation run was not trusted: {probe.problems[0]}", warning=True)
            )
            return None
        verdict = self._verdict(probe.log)
        log.info("trial %d at %.1f/s: %s", trial.number, rate_per_s, verdict)
        if verdict.answer == "kept" and not probe.overloaded:
            return verdict
        return replace(verdict, answer="broken" if probe.overloaded else verdict.answer)

    def lower_until_kept(
        self, trial: Trial, rate_per_s: float, *, kept_back: float, floor_per_s: float
    ) -> Trial | None:
        """The trial with a certificate at the highest rate tried that was kept; None below `floor_per_s`."""
        steps = iter(STEPS_DOWN)
        while self.left_s(kept_back) > SHORTEST_RUN_S and rate_per_s > floor_per_s:
            verdict = self.confirm(trial, rate_per_s, longest_s=SHARE_FOR_ONE_RUN * self.left_s(kept_back))
            if verdict is not None and verdict.answer == "kept":
                certified = self._with_certificate(trial, rate_per_s, verdict)
                self.on_event(
                    events.Certified(trial=trial, rate_per_s=rate_per_s, certificate=certified.certificate)
                )
                return certified
            if verdict is not None:
                self.on_event(events.Certified(trial=trial, rate_per_s=rate_per_s, certificate=None))
                hurry = self.left_s(kept_back) < HURRY_BELOW_S
                rate_per_s *= LARGE_STEP_DOWN if hurry else next(steps, STEPS_DOWN[-1])
        return None

    def _verdict(self, seen: RequestLog) -> Verdict:
        return certify(
            seen, limit_ms=self.slo.limit_ms, quantile=self.slo.quantile, confidence=self.slo.confidence
        )

    def _with_certificate(self, trial: Trial, rate_per_s: float, verdict: Verdict) -> Trial:
        before = trial.certificate.runs if trial.certificate is not None else 0
        certificate = CertificateRecord(
            rate_per_s=rate_per_s,
            p99_ms=verdict.latency_ms,
            p99_low_ms=verdict.latency_lower_ms,
            p99_high_ms=verdict.latency_upper_ms,
            confidence=verdict.confidence,
            requests=verdict.n,
            violations=verdict.violations,
            seconds=verdict.n / rate_per_s,
            runs=before + 1,
        )
        return replace(trial, certificate=certificate, measurement=self.bench.last_measurement())


def certify_best(
    ledger: Ledger,
    bench: Bench,
    *,
    slo: Slo,
    budget: Budget,
    seed: int,
    on_event: events.OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
) -> Certified | None:
    """The best trial whose rate is confirmed twice, the second time on a fresh server; None if no trial's is.

    What fails is tried again at a lower rate, until the runner-up promises more. After `stop` only one
    confirmation is made, in half a minute at most.
    """
    hurried = stop()
    deadline_s = budget.elapsed_s() + WHEN_STOPPED_S if hurried else budget.total_s
    certifier = Certifier(
        bench=bench, slo=slo, budget=budget, seed=seed, on_event=on_event, deadline_s=deadline_s, stop=stop
    )
    candidates = [trial for trial in ledger.trials if trial.state == "complete" and trial.rate_at_limit_per_s]
    candidates.sort(key=lambda trial: -(trial.rate_at_limit_per_s or 0.0))
    winner = _first_confirmed(certifier, candidates, kept_back=0.0 if hurried else SHARE_FOR_SECOND_RUN)
    if winner is None or winner.certificate is None:
        return None
    if not hurried:
        winner = _confirmed_again(certifier, winner)
    baseline = next((trial for trial in ledger.trials if _is_baseline(trial)), None)
    if baseline is not None and baseline.number == winner.number:
        return Certified(winner=winner, baseline=winner)
    if baseline is not None and baseline.state == "complete" and not stop():
        baseline = _confirmed_once(certifier, baseline) or baseline
    return Certified(winner=winner, baseline=baseline)


def _first_confirmed(certifier: Certifier, candidates: list[Trial], *, kept_back: float) -> Trial | None:
    for index, trial in enumerate(candidates):
        following = candidates[index + 1].rate_at_limit_per_s if index + 1 < len(candidates) else None
        confirmed = _confirmed_once(
            certifier, trial, kept_back=kept_back, floor_per_s=FIRST_SHARE * (following or 0.0) * 0.97
        )
        if confirmed is not None:
            return confirmed
        if certifier.left_s(kept_back) <= SHORTEST_RUN_S:
            return None
    return None


def _confirmed_once(
    certifier: Certifier, trial: Trial, *, kept_back: float = 0.0, floor_per_s: float = 0.0
) -> Trial | None:
    assert trial.rate_at_limit_per_s is not None
    try:
        certifier.bench.load(trial.config)
        return certifier.lower_until_kept(
            trial, FIRST_SHARE * trial.rate_at_limit_per_s, kept_back=kept_back, floor_per_s=floor_per_s
        )
    except BenchFailed as failure:
        log.warning("certification of trial %d failed: %s", trial.number, failure.reason)
        certifier.on_event(
            events.Note(text=f"Trial {trial.number} failed: {failure.reason.splitlines()[0]}", warning=True)
        )
        return None


def _confirmed_again(certifier: Certifier, winner: Trial) -> Trial:
    """The winner after a second confirmation on a restarted server; as it was where there is no time for it."""
    assert winner.certificate is not None
    if certifier.left_s(SHARE_FOR_BASELINE) <= SHORTEST_RUN_S:
        return winner
    try:
        certifier.bench.restart()
        again = certifier.lower_until_kept(
            winner, winner.certificate.rate_per_s, kept_back=SHARE_FOR_BASELINE, floor_per_s=0.0
        )
    except BenchFailed as failure:
        log.warning("second confirmation failed: %s", failure.reason)
        return winner
    return again or winner


def _is_baseline(trial: Trial) -> bool:
    return trial.config == default_config(trial.config.engine)
