"""The guided search: profile, simulate the whole space, and verify the best predictions."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal, Self

from model_repo.spec import ServingConfig
from search.records.trial import Cause, WhyRecord
from search.simulator.ensemble_surrogate import new_surrogate
from search.simulator.service_times_file import read_curves, write_curves
from search.simulator.surrogate import Predicted, Surrogate, alone_per_s, kinds_to_profile
from search.space import Knobs, knobs_of, without_delays
from search.study.acquisition import rank_candidates, why_predicted
from search.study.belief import Belief
from search.study.profiling import measure_service_times
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.bench import observed
from search.trials.capacity_trial import run_capacity_or_rate_trial, run_capacity_trial
from search.trials.predicted_trial import BASELINE_CAPACITY_S, explanation, run_predicted_trial
from search.trials.trial import Trial

log = logging.getLogger("tritune.guided")

PROFILE_SHARE = 0.4
"""Profiling takes at most 40 % of the time for the search; the remaining kinds are not predicted. Every
engine is profiled once in any case, unless it is far too slow already without a server."""

MAX_VERIFIED = 10
DISAGREEMENT = 0.25
JUDGED, WRONG_MIN = 4, 3
"""The search goes on without predictions if 3 of the first 4 were off by more than 25 %, although each was
corrected by the trials before it."""

UNSTEADY = 2.0
"""Slowdowns up to a factor of 2 are attributed to the machine. If such a slowdown explains a rate, the simulator
was right, and a search without it would have the same problem."""

FASTEST_INFEASIBLE = 3

FAR_ABOVE, OWED_S = 2.0, 15.0
"""If there was no time for any prediction, one that is twice what was measured is verified with the last 15 s and
more of certification: a short certificate of it is worth more than a long one of the default."""


@dataclass(slots=True)
class GuidedSearch:
    """One guided search; `run` once."""

    runner: TrialRunner
    surrogate: Surrogate
    belief: Belief
    _verified: int = 0
    _errors: list[float] = field(default_factory=list)
    _profiled: list[tuple[Knobs, float]] = field(default_factory=list)  # and the seconds that it took
    _waiting: bool = False
    """True if there was no time to profile all kinds at first."""

    _corrected: tuple[int, int] = 0, 0
    """The runs and profiles by which the predictions are corrected."""

    @classmethod
    def of(cls, runner: TrialRunner, surrogate: Surrogate) -> Self:
        """Return the search of a runner; it knows the profiles that are kept in the run's directory."""
        surrogate.curves.update(read_curves(runner.store.path.parent))
        belief = Belief(
            surrogate=surrogate, bench=observed(runner.bench), ignore_slow_phases=runner.ignore_slow_phases
        )
        return cls(runner, surrogate, belief)

    def run(self) -> bool:
        """Run the search; False if it has to continue without predictions, because they are missing or wrong."""
        if not self.runner.workload.predictable:
            text = "The samples differ in more shapes than can be profiled: the search goes without the simulator."
            self.runner.on_event(events.Note(text=text))
            return False
        before = list(self.runner.store.trials)  # of the run that is resumed, like the curves
        self._profile_all(first=knobs_of(self.runner.store.space.baseline()))
        if self._profile_again():
            self._errors.clear()
            before = self.runner.store.trials
        for trial in before:
            self._take(trial)
        size, predictions = len(self._simulate_all()), self.surrogate.best_first()
        detail = f"{size} configurations, {len(predictions)} of them predicted to meet the SLO"
        self.runner.on_event(events.PhaseStarted(name="search", detail=detail))
        if not self.surrogate.curves:
            return False
        if not predictions and any(trial.rate_at_limit_per_s for trial in self.runner.store.trials):
            text = "A configuration met the limit although the simulator predicted that none would. "
            text += "Continuing without the simulator."
            self.runner.on_event(events.Note(text=text, warning=True))
            return False
        if not predictions:
            self._show_infeasible()
            return True
        while self._verify_all():
            if not self._profile_more():
                return True
        return False

    # Profiling

    def _profile_all(self, *, first: Knobs) -> None:
        """Measure the service times of all kinds, the baseline's first, and then verify the baseline at once.

        If another engine is far faster standalone, the baseline comes last, if there is time for it: changing the
        engine takes seconds, and the default is only compared with.
        """
        space, budget = self.runner.store.space, self.runner.budget
        kinds = kinds_to_profile(space, limit_ms=self.runner.slo.first.limit_ms)
        alone = alone_per_s(space, limit_ms=self.runner.slo.first.limit_ms)
        of_fastest, of_first = (alone.get(str(knobs["engine"]), 0.0) for knobs in (kinds[0], first))
        at_last = of_fastest > FAR_ABOVE * of_first > 0
        kind_of, count = self.surrogate.kind_of, first["instance_count"]
        mine = [one for one in kinds if one["instance_count"] == count and kind_of(one) == kind_of(first)]
        points = kinds if at_last else [*mine, *(one for one in kinds if one not in mine)]
        in_any_case = 1 if at_last else len(space.engines)
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        for index, knobs in enumerate(points):
            used_up = budget.elapsed_s() > until_s and index > in_any_case
            if self.runner.stop() or used_up or (index > 0 and not self.runner.may_go_on()):
                self._waiting = True
                break
            self._profile_unless_known(knobs)
            if index == 0 and not at_last and self.runner.may_go_on():
                self._verify_baseline(first)
        there_is_time = not self.surrogate.curves or budget.search_left_s() > BASELINE_CAPACITY_S
        if at_last and there_is_time and self.runner.may_go_on():
            self._verify_baseline(first)
        self.runner.share(self.surrogate.curves)

    def _profile_again(self) -> bool:
        """Profile each kind a second time, some time after the first; True if the predictions were made anew.

        A slow phase of the machine hardly meets both, and the shorter times count. Kinds that were not profiled
        once come first.
        """
        runner, budget = self.runner, self.runner.budget
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        known = self.surrogate.profiles.total()
        again = [(knobs, took_s) for knobs, took_s in self._profiled if self.surrogate.profiled(knobs)]
        for knobs, took_s in again if again[1:] and not self._waiting else []:
            if not runner.may_go_on() or budget.elapsed_s() + took_s > until_s:
                break
            measure_service_times(runner, self.surrogate, knobs)
        if self.surrogate.profiles.total() == known:
            return False
        write_curves(runner.store.path.parent, self.surrogate.curves)
        self._simulate_all()
        runner.share(self.surrogate.curves)
        return True

    def _profile_more(self) -> bool:
        """Profile kinds for which there was no time before; True if a new one was profiled."""
        runner, budget = self.runner, self.runner.budget
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        known = sum(map(len, self.surrogate.curves.values()))
        for knobs in kinds_to_profile(runner.store.space, limit_ms=runner.slo.first.limit_ms):
            if self._verified >= MAX_VERIFIED or not runner.may_go_on() or budget.elapsed_s() > until_s:
                break
            self._profile_unless_known(knobs)
        runner.share(self.surrogate.curves)
        return sum(map(len, self.surrogate.curves.values())) > known

    def _profile_unless_known(self, knobs: Knobs) -> None:
        """Profile one kind, unless it is profiled already or cannot be the best."""
        if self.surrogate.profiled(knobs) or self.surrogate.is_dominated(knobs):
            return
        began_s = self.runner.budget.elapsed_s()
        measure_service_times(self.runner, self.surrogate, knobs)
        self._profiled.append((knobs, self.runner.budget.elapsed_s() - began_s))
        write_curves(self.runner.store.path.parent, self.surrogate.curves)
        self._simulate_all()

    # Simulating

    def _simulate_all(self) -> list[Knobs]:
        points = list(filter(self.runner.promising, self.runner.store.space.points()))
        self.surrogate.simulate(points)
        return points

    # Verifying

    def _verify_baseline(self, baseline: Knobs) -> None:
        """Measure the baseline and then the start in any case: everything else is compared with them."""
        self._verify_compared(baseline, "baseline")
        space = self.runner.store.space
        if space.start is not None and self.runner.may_go_on():
            start, largest = knobs_of(space.start), space.values["max_batch_size"][-1]
            self._profile_unless_known({**without_delays(start), "max_batch_size": largest})
            self._verify_compared(start, "start")

    def _verify_compared(self, knobs: Knobs, cause: Literal["baseline", "start"]) -> None:
        self.surrogate.simulate([knobs])
        prediction = self.surrogate.predicted(knobs)
        if prediction is not None and prediction.rate_per_s > 0:
            self.verify(prediction, cause)
            return
        asked = self.runner.store.ask_for([knobs], wanted=self.runner.promising)
        if asked is not None:
            measured = partial(run_capacity_or_rate_trial, self.runner, most_s=BASELINE_CAPACITY_S)
            self.runner.run_trial(asked, measured, WhyRecord(cause=cause))

    def _verify_all(self) -> bool:
        while (self.runner.may_go_on() or self._owed()) and self._verified < MAX_VERIFIED:
            for trial in self.runner.collect_finished():
                self._verified += 1
                self._take(trial)
            prediction = next(self.candidates(), None)
            if prediction is not None:
                self._offer_others(prediction)
                self.verify(prediction)
            elif not self.runner.wait_for_workers():
                break
            wrong = sum(abs(error) > DISAGREEMENT for error in self._errors[:JUDGED])
            if wrong >= WRONG_MIN and len(self._errors) <= JUDGED:
                text = "The simulator and the measurements disagree; the sampler goes on without it."
                self.runner.on_event(events.Note(text=text, warning=True))
                return False
        store = self.runner.store
        found = store.best() is not None or store.objective.rate_per_s is not None
        return found or not self.runner.may_go_on()

    def _owed(self) -> bool:
        """True if the search has had no time for any prediction, and the best is far above what was measured.

        Certification would have nothing but Triton's default then.
        """
        store, prediction = self.runner.store, next(self.candidates(), None)
        tried = any(trial.why is not None and trial.why.cause == "predicted" for trial in store.trials)
        if tried or prediction is None or self.runner.stop() or self.runner.budget.left_s() < OWED_S:
            return False
        measured = (trial.rate_at_limit_per_s or 0.0 for trial in store.trials)
        return prediction.rate_per_s > FAR_ABOVE * max(measured, default=0.0)

    def _offer_others(self, mine: Predicted) -> None:
        """Let the workers verify the predictions that follow, within the number that is verified in all."""
        others = (one for one in self.candidates() if one.knobs != mine.knobs)
        left = MAX_VERIFIED - self._verified - 1 - len(self.runner.store.away)
        self.runner.hand_out(
            (one.knobs, why_predicted(one, self.surrogate, self.runner.store))
            for one in islice(others, max(0, left))
        )

    def candidates(self, then_s: float = 0.0, *, by_luck: bool = False) -> Iterator[Predicted]:
        """Yield what is worth a trial and can be served, the best first; see `rank_candidates`."""
        self._correct()
        untried = rank_candidates(self.surrogate, self.belief, self.runner.store, then_s, by_luck=by_luck)
        return (one for one in untried if self.runner.promising(one.knobs))

    def verify(self, prediction: Predicted, cause: Cause = "predicted", *, once: bool = False) -> Trial | None:
        """Run the trial of a prediction; None if it is tried already, or was stopped. `once`: with little load."""
        asked = self.runner.store.ask_for([prediction.knobs], wanted=lambda _: True)
        if asked is None:
            return None
        once = once or cause in ("baseline", "start")  # whose capacity certification finds

        def measured(config: ServingConfig, number: int) -> Trial | None:
            server = self.surrogate.server(config)
            return run_predicted_trial(self.runner, server, config, number, prediction.rate_per_s, once=once)

        why = why_predicted(prediction, self.surrogate, self.runner.store, cause)
        trial = self.runner.run_trial(asked, measured, why)
        if trial is not None:
            self._verified += 1
            self._take(trial)
        return trial

    def _take(self, trial: Trial) -> None:
        """Correct the predictions by a trial, and keep how far it is from its own."""
        self.surrogate.simulate([knobs_of(trial.served)])
        prediction, measured = self.surrogate.predicted(knobs_of(trial.served)), self._measured(trial)
        if measured is None or prediction is None:
            return
        rate_per_s, slowdown = measured
        if self.surrogate.update(knobs_of(trial.served), rate_per_s, slowdown) is None:
            return
        unsteady = slowdown is not None and abs(math.log(slowdown)) < math.log(UNSTEADY)
        self._errors.append(0.0 if unsteady else math.log(rate_per_s / prediction.rate_per_s))

    def _correct(self) -> None:
        """Correct the predictions by all trials anew, by what is known of the machine now."""
        seen = self.belief.speed.look()
        if self._corrected == seen:
            return
        self._corrected = seen
        self.surrogate.forget_rates()
        for trial in self.runner.store.trials:
            measured = self._measured(trial)
            if measured is not None:
                self.surrogate.update(knobs_of(trial.served), *measured)

    def _measured(self, trial: Trial) -> tuple[float, float | None] | None:
        """Return the capacity of a trial and the slowdown that explains it, at the machine's usual speed."""
        if trial.state in ("failed", "pruned") or not trial.rate_low_per_s or not trial.rate_high_per_s:
            return None
        rate_per_s = math.sqrt(trial.rate_low_per_s * trial.rate_high_per_s)
        slowdown = explanation(trial, rate_per_s)
        if slowdown is not None:
            slowdown = self.belief.speed.usual_slowdown(trial.served) or slowdown
            rate_per_s = self.belief.usual_per_s(trial) or rate_per_s
        return rate_per_s, slowdown

    # Nothing meets the SLO

    def _show_infeasible(self) -> None:
        """Measure the fastest configurations, so that the user learns which limit is within reach."""
        space = self.runner.store.space

        def lone_s(knobs: Knobs) -> float:
            return self.surrogate.server(space.config(knobs)).lone_s

        alone = filter(self.runner.promising, filter(self.surrogate.profiled, self._without_batches()))
        for knobs in sorted(alone, key=lone_s)[:FASTEST_INFEASIBLE]:
            asked = self.runner.store.ask_for([knobs], wanted=self.runner.promising)
            if asked is not None and self.runner.may_go_on():
                self.runner.run_trial(asked, partial(run_capacity_trial, self.runner), WhyRecord(cause="fastest"))

    def _without_batches(self) -> list[Knobs]:
        space = self.runner.store.space
        return [knobs for knobs in space.points() if knobs["max_batch_size"] == space.values["max_batch_size"][0]]


def surrogate_for(runner: TrialRunner) -> Surrogate:
    """Return a surrogate without service times, which simulates on this machine's cores."""
    return new_surrogate(
        runner.store.space,
        slo=runner.slo,
        seed=runner.seed,
        workload=runner.workload,
        threads=max(1, min(runner.store.space.limits.cores, 8)),
    )
