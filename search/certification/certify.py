"""From estimates to a certified rate: the next run is the one with the highest expected certified rate."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from search.certification import planner
from search.certification.certifier import Certifier
from search.certification.planner import State, Step
from search.certification.policy import POLICY, Policy
from search.simulator.replay import MIN_REPLAY_S
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

Decide = Callable[[State, planner.Simulate, Policy], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedResult:
    """The winner with its certificate; the baseline and the start, with theirs if there was time."""

    winner: Trial
    baseline: Trial | None
    start: Trial | None = None


def certify_best(
    runner: TrialRunner,
    search: GuidedSearch | None = None,
    *,
    policy: Policy = POLICY,
    decide: Decide = planner.next_step,
) -> CertifiedResult | None:
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
        policy=policy,
    )
    candidates = [trial for trial in store.best_first() if trial.rate_at_limit_per_s]
    defaults = [trial for trial in store.trials if trial.served == store.space.baseline(trial.served.engine)]
    start = next((trial for trial in store.trials if trial.served == store.space.start), None)
    found = Certification(certifier=certifier, context=runner, search=search, decide=decide).result(
        candidates, defaults[-1] if defaults else None, start
    )
    try:
        certifier.belief.speed.keep(store.path.parent)
    except OSError as error:  # it is for the report alone
        log.warning("the machine's speed was not kept: %s", error)
    return found


@dataclass(slots=True, kw_only=True)
class Certification:
    """Has the steps carried out, and keeps which trial is the answer."""

    certifier: Certifier
    context: TrialRunner
    search: GuidedSearch | None = None
    decide: Decide = planner.next_step
    _certified: dict[int, Trial] = field(default_factory=dict)

    def result(
        self, candidates: list[Trial], default: Trial | None, start: Trial | None = None
    ) -> CertifiedResult | None:
        """Certify the best of the candidates, the default and the start; see `certify_best`."""
        certifier = self.certifier
        if self.context.objective.by_rate:
            candidates = sorted(candidates, key=certifier.belief.usual_per_s, reverse=True)
        self._choose_confidence(candidates)
        winner = self._best_of(candidates)
        while winner is not None and (winner.number in certifier.mixing or self._watched(winner)):
            winner = self._best_of(candidates, self._certified.get(winner.number))
        if winner is None:
            return None
        winner = certifier.at_covered_rate(winner)
        default, start = (self._compared(one, winner) for one in (default, start))
        return CertifiedResult(winner=winner, baseline=default, start=start)

    def _compared(self, other: Trial | None, winner: Trial) -> Trial | None:
        """Return a trial that the winner is compared with, certified if that was tried instead of the winner."""
        if other is None or other.number == winner.number:
            return None if other is None else winner
        if other.number in self.certifier.mixing:
            other = next(trial for trial in self.certifier.store.trials if trial.number == other.number)
        return self.certifier.at_covered_rate(self._certified.get(other.number, other))

    def _choose_confidence(self, candidates: list[Trial]) -> None:
        """Certify with a lower confidence if the time budget is too short for that of the SLO."""
        certifier, objective, wanted = self.certifier, self.context.objective, self.context.slo.confidence
        if not candidates or self.context.stop():  # whoever asks to finish does not ask for less confidence
            return
        share, covered_per_s = certifier.policy.shares[0], certifier.belief.highest_covered
        rate_per_s = objective.rate_per_s or share * covered_per_s(candidates[0])
        certifier.confidence = affordable_confidence(rate_per_s, self.context.slo, certifier.left_s())
        if certifier.confidence < wanted:
            certifier.caveat = (
                f"the confidence is {100 * certifier.confidence:g} % instead of {100 * wanted:g} %, for which the "
                "time budget was too short"
            )
            text = f"The time is too short for {100 * wanted:g} % confidence: "
            text += f"rates are tested with {100 * certifier.confidence:g} %, and the result is provisional."
            self.context.on_event(events.Note(text=text, warning=True, code="lower_confidence"))

    def _best_of(self, candidates: list[Trial], best: Trial | None = None) -> Trial | None:
        """Return the candidate with the highest rate that is certified, on two servers if there is time.

        `best` is that until now. What is still worth a trial becomes a candidate.
        """
        certifier, untried = self.certifier, True
        while True:
            best = self._standing(best, candidates)
            state = self._state(candidates, best, untried=untried)
            step = self.decide(state, certifier.simulate, certifier.policy)
            log.info("next: %s", step)
            if isinstance(step, planner.Try):
                untried = self._try(candidates, step)
            elif isinstance(step, planner.Load):
                found = certifier.run(step)
                self._certified = {n: one for n, one in self._certified.items() if not self._is_withdrawn(one)}
                if found is not None:
                    self._certified[found.number] = self._better(self._certified.get(found.number), found)
                    best = self._better(best, found)
                untried = True
            else:
                assert isinstance(step, planner.Done)
                return best if best is None or step.caveat is None else _with_caveat(best, step.caveat)

    def _state(self, candidates: list[Trial], best: Trial | None, *, untried: bool) -> State:
        """Return what is known; only candidates that are compared, as it takes long to know what they keep."""
        certifier, objective, slo = self.certifier, self.context.objective, self.context.slo
        certifier.once = self.context.stop()
        held_per_s = 0.0 if best is None else self._held_per_s(best)
        mine = [best] if best is not None and held_per_s and not objective.by_rate else candidates
        able = [one for one in mine if one.number not in certifier.lost and certifier.fits(one)]
        if objective.rate_per_s is None:
            able = able[: certifier.policy.compared if objective.by_rate else 1]
        trial_s = math.inf
        if untried and self.search is not None and candidates and objective.by_rate:
            loading_s = max(trial.loading_s for trial in candidates)
            trial_s = 2 * loading_s + MIN_REPLAY_S + self._certificate_s(candidates)
        return State(
            stage="find",
            candidates=tuple(map(certifier.candidate, able)),
            best=None if best is None else certifier.certified(best, held_per_s),
            left_s=certifier.left_s(),
            server=certifier.server,
            stopping=certifier.once,
            untrusted=certifier.untrusted(),
            by_rate=objective.by_rate,
            fixed_per_s=objective.rate_per_s,
            least_s=colocated_s(slo, confidence_of_a_run(certifier.confidence)) / BAD_LUCK,
            trial_s=trial_s,
        )

    def _certificate_s(self, candidates: list[Trial]) -> float:
        return usual_certificate_s(self.certifier.belief.usual_per_s(candidates[0]), self.context.slo)

    def _watched(self, winner: Trial) -> bool:
        """Look at the machine under the winner if it has to be seen for longer; False if nothing more was seen."""
        certifier = self.certifier
        belief, policy = certifier.belief, certifier.policy
        state = State(
            stage="watch",
            left_s=certifier.left_s(),
            stopping=self.context.stop(),
            unseen_s=0.0 if belief.ignore_slow_phases else policy.watched_s - belief.speed.seen_s,
            to_watch_s=policy.watch_s + (certifier.bench.config != winner.served) * winner.loading_s,
        )
        return isinstance(self.decide(state, certifier.simulate, policy), planner.Watch) and certifier.watch(
            winner
        )

    def _try(self, candidates: list[Trial], step: planner.Try) -> bool:
        """Run the trial that is most worth it, which becomes a candidate; False if no other may be worth one.

        Before a first certificate that is one at most.
        """
        search = self.search
        assert search is not None
        options = {"by_luck": True} if step.by_luck else {"then_s": self._certificate_s(candidates)}
        prediction = next(search.candidates(**options), None)
        if prediction is None:
            return False
        try:
            found = search.verify(prediction, once=step.by_luck)
        except (SearchImpossible, StorageFailed) as failure:  # what is certified counts nevertheless
            log.warning("the search does not go on: %s", failure)
            self.search = None
            return False
        if found is not None and any(one is found for one in self.context.store.best_first()):
            candidates.append(found)
            candidates.sort(key=search.belief.usual_per_s, reverse=True)
        return not step.by_luck

    def _held_per_s(self, best: Trial) -> float:
        """Return the rate that is certified on two servers, at the speeds that were seen until now; 0: none is."""
        again = best.certificate is not None and best.certificate.confirmed_again
        return self.certifier.covered_per_s(best) if again else 0.0

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
        return trial.number in certifier.mixing or not planner.met_on(
            certifier.evidence(trial).runs, certificate.rate_per_s
        )


def _with_caveat(trial: Trial, caveat: planner.Caveat) -> Trial:
    assert trial.certificate is not None
    both = "; ".join(filter(None, (trial.certificate.caveat, caveat)))
    return trial.changed(certificate=trial.certificate.changed(caveat=both))
