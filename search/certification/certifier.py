"""Send the load that confirms a rate, keep what it shows, and write the certificate if the rate is met."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

from loadgen.measurement.cpu_contention import none_if_not_watched
from loadgen.measurement.request_log import RequestLog
from loadgen.records.formats import format_rate
from loadgen.statistics.checks import change_of
from loadgen.statistics.confirm import (
    LOOKS_HOPELESS,
    LOOKS_MET,
    MAX_UNTRUSTED,
    MIN_RUN_S,
    UNTRUSTED_FOR_S,
    Attempt,
    attempt_of,
    is_hopeless,
)
from loadgen.statistics.slo_test import Verdict, combined_answer
from search.certification.evidence import ConfirmationRun, Evidence
from search.certification.planner import Candidate, Certified, Load, Run, met_on, refuted_per_s
from search.certification.policy import POLICY, Policy
from search.labels import memory_text
from search.records.certificate import CertificateRecord, SlownessRecord, SlowPhasesRecord
from search.records.confirmations import believed, keep_attempt
from search.records.trial import AnswersRecord
from search.study.belief import Belief, Outlook
from search.study.store import TrialStore
from search.trials import events
from search.trials.bench import BenchFailed, ObservedBench
from search.trials.context import TrialContext
from search.trials.trial import Trial

log = logging.getLogger("tritune.certification")

NOT_COVERED = "it would not have met the SLO while the machine was slowest"

ANOTHER = 15_485_863
"""Between the seeds of two runs."""


@dataclass(slots=True, kw_only=True)
class Certifier:
    """Sends the runs of certification until `deadline_s` on a clock of elapsed seconds."""

    context: TrialContext
    bench: ObservedBench
    belief: Belief
    store: TrialStore
    deadline_s: float
    confidence: float
    policy: Policy = POLICY
    server: int = 0
    """The number of restarts so far."""

    once: bool = False
    """True if the next run is the only confirmation, as the user has asked to finish."""

    caveat: str | None = None
    lost: set[int] = field(default_factory=set)
    """The trials that cannot be certified: their server failed, it took too much memory, or batches mix rows."""

    mixing: set[int] = field(default_factory=set)
    """The lost trials whose batches mix rows; what was certified for them counts no more."""

    _trials: dict[int, Trial] = field(default_factory=dict)
    _evidence: dict[int, Evidence] = field(default_factory=dict)
    _answers: dict[int, AnswersRecord] = field(default_factory=dict)
    _untrusted_s: list[float] = field(default_factory=list)  # of the latest runs in a row with problems
    _runs: int = 0
    _stopped_until_s: float = math.inf

    def left_s(self) -> float:
        """Return the seconds that may still be spent, few after a request to finish; never negative."""
        now_s = self.context.budget.elapsed_s()
        if self.context.stop():
            self._stopped_until_s = min(self._stopped_until_s, now_s + self.policy.when_stopped_s)
        return max(0.0, min(self.deadline_s, self._stopped_until_s) - now_s)

    def evidence(self, trial: Trial) -> Evidence:
        """Return the evidence on a trial, at the present confidence."""
        found = self._evidence.setdefault(trial.number, Evidence(limits=self.context.slo.tested))
        found.confidence, found.once = self.confidence, self.once
        return found

    def candidate(self, trial: Trial) -> Candidate:
        """Return what is known of a trial that may be loaded next."""
        self._trials[trial.number], evidence = trial, self.evidence(trial)
        fixed = self.context.objective.rate_per_s is not None
        return Candidate(
            number=trial.number,
            covered_per_s=math.inf if fixed else self.belief.highest_covered(trial),
            loading_s=trial.loading_s,
            loaded=self.bench.config == trial.served,
            runs=tuple(Run(**{name: getattr(run, name) for name in Run.__slots__}) for run in evidence.runs),
        )

    def certified(self, trial: Trial, held_per_s: float) -> Certified:
        """Return what is known of the best certified trial."""
        assert trial.certificate is not None
        runs = self.evidence(trial).runs
        last = next(run for run in reversed(runs) if not run.client_late)
        return Certified(
            number=trial.number,
            held_per_s=held_per_s,
            met_last=last.server in met_on(runs, trial.certificate.rate_per_s),
            lost=trial.number in self.lost,
        )

    def simulate(self, number: int, rate_per_s: float, left_s: float, least_share: float) -> Outlook:
        """Return how a test of a candidate at a rate is likely to end, with its earlier runs on this server."""
        trial = self._trials[number]
        evidence = self.evidence(trial)
        met_here = self.server in met_on(evidence.runs, rate_per_s)
        return self.belief.outlook(
            trial,
            rate_per_s,
            left_s=left_s,
            confidence=evidence.of_each,
            before=() if met_here else evidence.logs(rate_per_s, self.server),
            least_share=least_share,
        )

    def untrusted(self) -> bool:
        """True if the latest runs all measured the client, for long enough."""
        return len(self._untrusted_s) >= MAX_UNTRUSTED and sum(self._untrusted_s) >= UNTRUSTED_FOR_S

    def run(self, step: Load) -> Trial | None:
        """Send the load of a step; return the certified trial.

        None if the rate is not met yet, or the trial cannot be served.
        """
        trial = self._trials[step.number]
        try:
            if self.bench.config != trial.served:
                self.bench.load(trial.served)
            if step.restart and not self.context.stop() and self.left_s() >= MIN_RUN_S:
                self.bench.restart()
                self.server += 1
            if self.left_s() < MIN_RUN_S:
                return None
            certified = self._measured(trial, step)
            if certified is not None:
                certified = self._with_answers(certified)
        except BenchFailed as failure:
            self.lost.add(trial.number)
            log.warning("certification of trial %d failed: %s", trial.number, failure.reason)
            text = f"Trial {trial.number} failed while it was certified: {failure.reason.splitlines()[0]}"
            self.note(text, "certification_failed", trial)
            return None
        return certified if certified is not None and self.fits(certified) else None

    def _with_answers(self, trial: Trial) -> Trial | None:
        """Return the trial with the comparison of its answers, made once; None if its batches mix rows."""
        if trial.number not in self._answers:
            try:
                self._answers[trial.number] = self.bench.compare_answers(self.left_s())
            except BenchFailed as failure:
                self._answers[trial.number] = AnswersRecord(unseen=failure.reason.splitlines()[0].rstrip("."))
        seen = self._answers[trial.number]
        log.info("trial %d: %s", trial.number, seen.text)
        if not seen.mixed:
            return trial.changed(answers=seen)
        passed = {number for number, one in self._answers.items() if not (one.mixed or one.unseen)}
        self.mixing |= self.store.take_back(trial.number, seen, passed=passed)
        self.lost |= self.mixing
        self.note(f"Trial {trial.number} is not chosen: {seen.text}.", "answers_differ", trial)
        return None

    def _measured(self, trial: Trial, step: Load) -> Trial | None:
        rate_per_s, evidence, policy = step.rate_per_s, self.evidence(trial), self.policy
        again = bool(met_on(evidence.runs, rate_per_s))
        met_at: list[tuple[Verdict, ...]] = []  # at the latest looks in a row
        hopeless, most_s = 0, math.inf

        def decided(seen: RequestLog) -> bool:
            nonlocal hopeless
            verdicts = evidence.verdicts(rate_per_s, self.server, seen)
            answer = combined_answer(verdicts)
            met_at[:] = [*met_at, verdicts] if answer == "met" else []
            left_s = duration_s - seen.until_s

            def is_lost(one: Verdict) -> bool:
                return is_hopeless(one, one.limit.rate_per_s(rate_per_s), left_s)

            hopeless = hopeless + 1 if any(map(is_lost, verdicts)) else 0
            met = len(met_at) >= LOOKS_MET and seen.until_s >= policy.least_met_s
            return answer == "violated" or met or hopeless >= LOOKS_HOPELESS

        duration_s = step.most_s(self.left_s())
        before = self.bench.spent.contention
        before_it = believed(
            self.belief.usual_per_s(trial),
            self.belief.error(trial),
            covered_per_s=None if self.context.objective.rate_per_s else self.belief.highest_covered(trial),
            chance=step.outlook.share,
            needed_s=step.needed_s,
            machine=self._slowness(),
        )
        self._runs += 1
        patient = self.context.workload.to_the_end(decided, rate_per_s, duration_s)

        def over(seen: RequestLog) -> bool:
            """True if the run is decided, or has gone on for 30 s since the user asked to finish."""
            nonlocal most_s
            if most_s == math.inf and self.context.stop():
                most_s = seen.until_s + self.left_s()
            return (patient is not None and patient(seen)) or seen.until_s >= most_s

        probe = self.bench.measure(rate_per_s, duration_s, self.context.seed + ANOTHER * self._runs, over)
        at_the_end = evidence.verdicts(rate_per_s, self.server, probe.log)
        shown = attempt_of(probe, rate_per_s, at_the_end, met_at)
        # Latencies count from when requests were due: a late client only makes them longer, so all runs count.
        attempt = replace(shown, problems=()) if probe.only_slower else shown
        kept = attempt if attempt.met else shown
        change = None if attempt.overloaded else change_of(probe.log, self.context.slo.tested)
        keep_attempt(
            self.store.path.parent,
            kept,
            trial=trial.number,
            again=again,
            change=change,
            belief=before_it,
            began_unix_s=probe.began_unix_s,
        )
        if change is not None:
            self.note(f"{format_rate(rate_per_s)}/s: {change}.", "run_changed", trial)
        for problem in kept.problems:
            self.note(f"In a confirmation run {problem}", "run_not_trusted", trial)
        run = ConfirmationRun(
            rate_per_s=rate_per_s,
            server=self.server,
            met=attempt.met,
            violated=attempt.violated,
            hopeless=hopeless >= LOOKS_HOPELESS and not attempt.met and not attempt.problems,
            client_late=bool(attempt.problems),
            log=probe.log,
            attempt=attempt,
            contention=none_if_not_watched(self.bench.spent.contention - before),
        )
        evidence.runs.append(run)
        if run.client_late:
            self._untrusted_s.append(max(attempt.load_s, MIN_RUN_S))
            return None
        self._untrusted_s.clear()
        certified = self._with_certificate(trial, attempt) if attempt.met else None
        certificate = None if certified is None else certified.certificate
        self.context.on_event(
            events.ConfirmationEnded(
                trial=trial, rate_per_s=rate_per_s, certificate=certificate, violated=attempt.violated
            )
        )
        return certified

    def _with_certificate(self, trial: Trial, attempt: Attempt) -> Trial:
        caveats = (self.context.workload.caveat(attempt.load_s * attempt.rate_per_s), self.caveat)
        caveat = "; ".join(filter(None, caveats)) or None
        certificate = self.evidence(trial).certificate(attempt.rate_per_s, caveat=caveat)
        self.store.raise_capacity(trial.number, attempt.rate_per_s)
        return trial.meeting(attempt.rate_per_s).changed(
            certificate=self._with_machine(certificate),
            measurement=self.bench.last_measurement(),
            memory_bytes=self.bench.memory_bytes(trial.served),
        )

    def _with_machine(self, certificate: CertificateRecord) -> CertificateRecord:
        """Return the certificate with how rare slow phases have to be to be unlikely to be seen, if few were."""
        seen_s = sum(run.seconds for run in self.bench.runs)
        known = self.belief.ignore_slow_phases or self.belief.speed.slow_phases() >= self.policy.enough_phases
        every_s = None if known else seen_s / -math.log1p(-self.context.slo.confidence)
        return certificate.changed(unseen_every_s=every_s)

    def _slowness(self) -> SlownessRecord:
        share, slowdown = self.belief.speed.slow_share()
        return SlownessRecord(share=share, slowdown=math.exp(slowdown), seen_s=self.belief.speed.seen_s)

    def _slow_phases(self, trial: Trial) -> SlowPhasesRecord | None:
        """Return what slow phases of the machine cost a trial; None if that is little, or they are not known."""
        belief, seen = self.belief, self._slowness()
        violated = [one.rate_per_s for one in trial.load_runs if one.trusted and one.answer == "violated"]
        # Not more than what was violated: a front end at its limit may look like a slow machine.
        usual_per_s = min([belief.usual_per_s(trial), *refuted_per_s(self.evidence(trial).runs), *violated])
        if not seen.share or not (
            belief.ignore_slow_phases or belief.highest_covered(trial) < self.policy.small * usual_per_s
        ):
            return None
        return SlowPhasesRecord(**seen.model_dump(), usual_per_s=usual_per_s, ignored=belief.ignore_slow_phases)

    def covered_per_s(self, trial: Trial) -> float:
        """Return the certified rate, or as much of it as the trial keeps under the speeds of the whole run.

        What met a rate meets a lower one. If the objective has a rate, there is no lower one.
        """
        assert trial.certificate is not None
        rate_per_s = trial.certificate.rate_per_s
        if self.context.objective.rate_per_s is not None or self.belief.covers(trial, rate_per_s):
            return rate_per_s
        return min(rate_per_s, self.belief.highest_covered(trial))

    def at_covered_rate(self, trial: Trial) -> Trial:
        """Return the trial with a certificate for as much as it keeps under the speeds of the whole run."""
        certificate = trial.certificate
        if certificate is None:
            return trial
        rate_per_s = self.covered_per_s(trial)
        caveats = (certificate.caveat, None if self.belief.covers(trial, rate_per_s) else NOT_COVERED)
        return trial.changed(
            certificate=self._with_machine(certificate).changed(
                rate_per_s=rate_per_s,
                caveat="; ".join(filter(None, caveats)) or None,
                slow_phases=self._slow_phases(trial),
            )
        )

    def watch(self, trial: Trial) -> bool:
        """Look at the machine under a certified trial for a moment; False if nothing was seen."""
        try:
            if self.bench.config != trial.served:
                self.bench.load(trial.served)
            self._runs += 1
            self.bench.measure(
                self.covered_per_s(trial), self.policy.watch_s, self.context.seed + ANOTHER * self._runs
            )
        except BenchFailed as failure:
            log.warning("the machine was not watched: %s", failure.reason)
            return False
        return self.belief.speed.seen_s > 0  # nothing can be seen without the simulator

    def fits(self, trial: Trial) -> bool:
        """True unless the server took more memory than allowed; emit a note if it did."""
        most = self.context.slo.max_memory_bytes
        if most is None or not trial.over_memory(most):
            return True
        taken, limit = memory_text(trial.memory_bytes or 0), memory_text(most)
        text = f"Trial {trial.number} is not chosen: the server took {taken} with it, over the limit of {limit}."
        self.lost.add(trial.number)
        self.note(text, "over_memory", trial)
        return False

    def note(self, text: str, code: events.NoteCode, trial: Trial, *, warning: bool = True) -> None:
        """Emit a note about a trial."""
        self.context.on_event(events.Note(text=text, warning=warning, code=code, trial=trial.number))
