"""From estimates to a certified rate: the next run is the one with the highest expected certified rate."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from enum import StrEnum

from search.certification.certifier import Certifier
from search.certification.plans import SHARES, Plan, Planner
from search.simulator.replay import MIN_REPLAY_S
from search.simulator.surrogate import Predicted
from search.study.guided_search import GuidedSearch, surrogate_for
from search.study.storage import StorageFailed
from search.study.trial_runner import SearchImpossible, TrialRunner
from search.trials import events
from search.trials.context import (
    BAD_LUCK,
    affordable_confidence,
    colocated_s,
    confidence_of_a_run,
    usual_certificate_s,
)
from search.trials.trial import Trial

log = logging.getLogger("tritune.certification")

MIN_FOR_DEFAULT_S = 15.0
"""The default, which is only compared with, may take as long as the winner, and 15 s in any case."""

COMPARED = 2
"""The candidates whose plans are compared."""


class Caveat(StrEnum):
    """Why a rate is confirmed once only."""

    STOPPED = "the run was stopped before it could be confirmed again"
    NO_TIME = "there was no time to confirm it again"
    SERVER_FAILED = "the server failed while it was confirmed again"
    NOT_AGAIN = "the SLO was not met again"
    NOT_TRUSTED = "the second confirmation was unreliable: the client was too slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedResult:
    """The winner with its certificate; the baseline and the start, with theirs if there was time."""

    winner: Trial
    baseline: Trial | None
    start: Trial | None = None


def certify_best(runner: TrialRunner, search: GuidedSearch | None = None) -> CertifiedResult | None:
    """Return the best trial whose rate is confirmed on two servers, the second one restarted; None if none is.

    Once `runner.stop` is true, only one server confirms it, in 30 s at most and with the SLO's whole confidence. A
    `search` is gone on with if another trial is worth its seconds.
    """
    store, budget = runner.store, runner.budget
    belief = (search or GuidedSearch.of(runner, surrogate_for(runner))).belief
    certifier = Certifier(
        context=runner,
        bench=belief.bench,
        belief=belief,
        store=store,
        deadline_s=budget.total_s,
        confidence=runner.slo.confidence,
    )
    candidates = [trial for trial in store.best_first() if trial.rate_at_limit_per_s]
    defaults = [trial for trial in store.trials if trial.served == store.space.baseline(trial.served.engine)]
    start = next((trial for trial in store.trials if trial.served == store.space.start), None)
    found = Certification(certifier=certifier, context=runner, search=search).result(
        candidates, defaults[-1] if defaults else None, start
    )
    try:
        certifier.belief.speed.keep(store.path.parent)
    except OSError as error:  # it is for the report alone
        log.warning("the machine's speed was not kept: %s", error)
    return found


@dataclass(slots=True, kw_only=True)
class Certification:
    """Decides what is sent next, and which trial is the answer."""

    certifier: Certifier
    context: TrialRunner
    search: GuidedSearch | None = None
    _certified: dict[int, Trial] = field(default_factory=dict)

    def result(
        self, candidates: list[Trial], default: Trial | None, start: Trial | None = None
    ) -> CertifiedResult | None:
        """Certify the best of the candidates, the default and the start; see `certify_best`."""
        certifier = self.certifier
        if self.context.objective.by_rate:
            candidates = sorted(candidates, key=certifier.belief.usual_per_s, reverse=True)
        self._choose_confidence(candidates)
        # What the user knows is compared with first, if there is no time for both.
        measured = next((one for one in (start, default) if one is not None and one.state == "complete"), None)
        begun_s = self.context.budget.elapsed_s()
        winner = self._best_of(candidates, paired=measured)
        if winner is None:
            return None
        most_s = max(MIN_FOR_DEFAULT_S, self.context.budget.elapsed_s() - begun_s)
        start, default = (self._if_time(one, winner, most_s) for one in (start, default))
        while winner.number in certifier.mixing or certifier.watch(winner):
            winner = self._best_of(candidates, best=self._certified.get(winner.number))
            if winner is None:
                return None
        winner = certifier.at_covered_rate(winner)
        default, start = (self._as_covered(one, winner) for one in (default, start))
        for other, name in ((default, "The default configuration"), (start, "Your own configuration")):
            if other is not None and self._is_better(other, winner):
                by_rate = self.context.objective.by_rate
                does = "is certified for more than" if by_rate else "does better than"
                text = f"{name} {does} trial {winner.number}, so it is the answer."
                certifier.note(text, "default_is_better", winner, warning=False)
                winner = other
        return CertifiedResult(winner=winner, baseline=default, start=start)

    def _if_time(self, other: Trial | None, winner: Trial, most_s: float) -> Trial | None:
        """Return a trial that the winner is compared with: certified, if that takes `most_s` at most."""
        certifier = self.certifier
        if other is None or other.state != "complete" or other.number == winner.number or self.context.stop():
            return other
        ends_s = certifier.deadline_s
        certifier.deadline_s = min(ends_s, self.context.budget.elapsed_s() + most_s)
        found = self._best_of([other], goes_on=False) or other
        certifier.deadline_s = ends_s
        return found

    def _as_covered(self, other: Trial | None, winner: Trial) -> Trial | None:
        """Return such a trial at its covered rate, or as it is recorded if its batches mix rows."""
        if other is None or other.number == winner.number:
            return None if other is None else winner
        if other.number in self.certifier.mixing:
            other = next(trial for trial in self.certifier.store.trials if trial.number == other.number)
        return self.certifier.at_covered_rate(other)

    def _is_better(self, other: Trial, winner: Trial) -> bool:
        """True if a trial that is compared with is worth more than the winner, and may be the answer."""
        mine, its = map(self._worth, (winner, other))
        wanted = other.served not in self.certifier.store.space.only_compared
        return wanted and its[0] >= mine[0] and its[1] > mine[1]

    def _choose_confidence(self, candidates: list[Trial]) -> None:
        """Certify with a lower confidence if the time budget is too short for that of the SLO."""
        certifier, objective, wanted = self.certifier, self.context.objective, self.context.slo.confidence
        if not candidates or self.context.stop():  # whoever asks to finish does not ask for less confidence
            return
        rate_per_s = objective.rate_per_s or SHARES[0] * certifier.belief.highest_covered(candidates[0])
        certifier.confidence = affordable_confidence(rate_per_s, self.context.slo, certifier.left_s())
        if certifier.confidence < wanted:
            certifier.caveat = (
                f"the confidence is {100 * certifier.confidence:g} % instead of {100 * wanted:g} %, for which the "
                "time budget was too short"
            )
            text = f"The time is too short for {100 * wanted:g} % confidence: "
            text += f"rates are tested with {100 * certifier.confidence:g} %, and the result is provisional."
            self.context.on_event(events.Note(text=text, warning=True, code="lower_confidence"))

    def _plan(self, candidates: list[Trial], held_per_s: float = 0.0) -> Plan | None:
        """Return what to run next: of the first candidates, the plan that is worth most; None if none can pass."""
        certifier, by_rate = self.certifier, self.context.objective.by_rate
        certifier.once = self.context.stop()
        planner = Planner(
            belief=certifier.belief,
            server=certifier.server,
            once=certifier.once,
            fixed_per_s=self.context.objective.rate_per_s,
            least_s=colocated_s(self.context.slo, confidence_of_a_run(certifier.confidence)) / BAD_LUCK,
        )
        able = [one for one in candidates if one.number not in certifier.lost and certifier.fits(one)]
        best: Plan | None = None
        for trial in able[:COMPARED] if by_rate else able:
            if best is not None and (not by_rate or certifier.belief.highest_covered(trial) < best.worth):
                break
            plan = planner.best(
                trial,
                certifier.evidence(trial),
                left_s=certifier.left_s(),
                loading_s=certifier.loading_s(trial),
                held_per_s=held_per_s,
            )
            if plan is not None and (best is None or plan.worth > best.worth):
                best = plan
        return best

    def _best_of(
        self,
        candidates: list[Trial],
        *,
        best: Trial | None = None,
        paired: Trial | None = None,
        goes_on: bool = True,
    ) -> Trial | None:
        """Return the candidate with the highest rate that is certified, on two servers if there is time.

        `best` is that until now. `paired` is sent its load between the two runs of a candidate, if there is time.
        What is still worth a trial becomes a candidate if the search goes on.
        """
        certifier = self.certifier
        while True:
            best = self._standing(best, candidates)
            held_per_s = self._held_per_s(best)
            if best is not None and held_per_s and not self.context.objective.by_rate:
                candidates = [best]  # a higher rate is no reason for another one
            self._try_more(candidates, held_per_s, goes_on=goes_on)
            plan = self._plan(candidates, held_per_s)
            if held_per_s and (plan is None or plan.worth <= held_per_s):
                return best
            if plan is None or (self.context.stop() and best is not None) or certifier.untrusted():
                return None if best is None else self._with_caveat(best)
            between = None if paired is None else self._between(plan, paired)
            if between is not None:
                plan, paired = between, None
            log.info("next: trial %d, %.6g/s: chance %.2f", plan.trial.number, plan.rate_per_s, plan.outlook.share)
            found = certifier.run(plan)
            self._certified = {n: one for n, one in self._certified.items() if not self._is_withdrawn(one)}
            if found is not None:
                self._certified[found.number] = self._better(self._certified.get(found.number), found)
            if found is not None and between is None:
                best = self._better(best, found)

    def _try_more(self, candidates: list[Trial], held_per_s: float, *, goes_on: bool) -> None:
        """Add trials that may gain more than their seconds are worth; before a first certificate one at most."""
        runner, search = self.context, self.search
        while goes_on and search and (prediction := self._worth_a_trial(search, candidates, held_per_s)):
            try:
                found = search.verify(prediction, once=not held_per_s)
            except (SearchImpossible, StorageFailed) as failure:  # what is certified counts nevertheless
                log.warning("the search does not go on: %s", failure)
                self.search = None
                return
            if found is not None and any(one is found for one in runner.store.best_first()):
                candidates.append(found)
                candidates.sort(key=search.belief.usual_per_s, reverse=True)
            goes_on = held_per_s > 0

    def _worth_a_trial(self, search: GuidedSearch, candidates: list[Trial], held_per_s: float) -> Predicted | None:
        """Return what is most worth a trial if there is time for it and a certificate.

        Before the first certificate, what the search had no time for is not tried.
        """
        slo = self.context.slo
        if not candidates or not self.context.objective.by_rate or self.context.stop():
            return None
        certificate_s = usual_certificate_s(search.belief.usual_per_s(candidates[0]), slo)
        loading_s = max(trial.loading_s for trial in candidates)
        if self.certifier.left_s() < 2 * loading_s + MIN_REPLAY_S + certificate_s:
            return None
        worth = search.candidates(certificate_s) if held_per_s else search.candidates(by_luck=True)
        return next(worth, None)

    def _between(self, plan: Plan, paired: Trial) -> Plan | None:
        """Return the plan of the default if a candidate is to be confirmed again, and there is time for both."""
        if (
            len(self.certifier.evidence(plan.trial).on(plan.rate_per_s)) != 1
            or paired.number == plan.trial.number
            or paired.number in self._certified
        ):
            return None
        other = self._plan([paired])
        if other is None:
            return None
        needed_s = plan.needed_s + plan.trial.loading_s + other.needed_s
        return other if needed_s < self.certifier.left_s() else None

    def _held_per_s(self, best: Trial | None) -> float:
        """Return the rate that is certified on two servers, at the speeds that were seen until now; 0: none is."""
        if best is None or best.certificate is None or not best.certificate.confirmed_again:
            return 0.0
        return self.certifier.covered_per_s(best)

    def _better(self, best: Trial | None, found: Trial) -> Trial:
        """Return the one that is worth more; one that is confirmed on two servers before one that is not."""
        return found if best is None or self._worth(found) >= self._worth(best) else best

    def _worth(self, trial: Trial) -> tuple[bool, float]:
        """Return whether a rate of it is certified on two servers, and what that rate is worth."""
        again = trial.certificate is not None and trial.certificate.confirmed_again
        return again, self.context.objective.certified_worth(trial) or -math.inf

    def _standing(self, best: Trial | None, candidates: list[Trial]) -> Trial | None:
        """Return the best certified candidate, `best` unless it is withdrawn; None if no certificate stands."""
        if best is not None and not self._is_withdrawn(best):
            return best
        able = (self._certified[one.number] for one in candidates if one.number in self._certified)
        return max(able, key=self._worth, default=None)

    def _is_withdrawn(self, trial: Trial) -> bool:
        """True if a certified trial mixes rows, or if a later run violated the SLO at its rate or a lower one."""
        certificate, certifier = trial.certificate, self.certifier
        assert certificate is not None
        return trial.number in certifier.mixing or not certifier.evidence(trial).on(certificate.rate_per_s)

    def _with_caveat(self, trial: Trial) -> Trial:
        """Return the trial with the reason why it is confirmed on one server only."""
        certificate, certifier = trial.certificate, self.certifier
        assert certificate is not None
        if certificate.confirmed_again:
            return trial
        evidence = certifier.evidence(trial)
        refuted = evidence.runs[-1].server not in evidence.on(certificate.rate_per_s)
        caveat = Caveat.NOT_AGAIN if refuted else Caveat.NO_TIME
        if self.context.stop():
            caveat = Caveat.STOPPED
        elif trial.number in certifier.lost:
            caveat = Caveat.SERVER_FAILED
        elif certifier.untrusted():
            caveat = Caveat.NOT_TRUSTED
        both = "; ".join(filter(None, (certificate.caveat, caveat)))
        return trial.changed(certificate=certificate.changed(caveat=both))
