"""The search that knows the batcher: profile, simulate the whole space, verify what may be best."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from search import events
from search.agenda import worth_verifying
from search.forecast import Forecast, kinds_to_profile
from search.pace import CHANGED, CHECKS, STEADY, is_suspicious, slowdown_between
from search.profile_file import put_aside, read_curves, write_curves
from search.profiling import profile_kind
from search.space import knobs_of
from search.verification import BASELINE_EDGE_S, predicted_trial
from search.why import PredictionRecord, WhyRecord, service_times_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_repo.spec import ServingConfig
    from search.attempts import Attempts
    from search.forecast import Predicted
    from search.service_time import ServiceCurve
    from search.space import Knobs
    from search.trial import Trial
    from search.why import Cause

log = logging.getLogger("tritune.guided")

PROFILE_SHARE = 0.4
"""Of the time for the search, what profiling may take; kinds that are left then are not predicted. Every engine is
profiled once in any case, unless it is far too slow already without a server."""

AT_MOST_VERIFIED = 10
DISAGREEMENT = 0.25
JUDGED, WRONG_AT_LEAST = 4, 3
"""Predictions are given up when so many of the first so many were off by that much, although corrected by those
before."""

EXPLAINED = 0.05
"""How near a rate is to the one that follows from a replay, where the replay's slowdown explains it."""

UNSTEADY = 2.0
"""Up to what factor a machine's own ups and downs go. Where executions that took so much longer or shorter explain
a rate, the simulator was right, and searching without it would meet the same machine."""

FASTEST_INFEASIBLE = 3


@dataclass(slots=True)
class Guided:
    """One guided search; `run` once."""

    attempts: Attempts
    forecast: Forecast
    _verified: int = 0
    _errors: list[float] = field(default_factory=list)
    _checks: int = 0

    def run(self) -> bool:
        """Whether it came to an end of its own; where it did not, predictions are missing or do not hold."""
        if not self.attempts.demand.predictable:
            text = "The samples differ in more shapes than can be profiled: the search goes without the simulator."
            self.attempts.on_event(events.Note(text=text))
            return False
        before = self.attempts.ledger.current  # of the run that is resumed, like the curves
        self.forecast.curves.update(read_curves(self.attempts.ledger.path.parent))
        self._profile_all(first=knobs_of(self.attempts.ledger.space.baseline()))
        for trial in before:
            self._learn(trial)
        self.attempts.on_event(events.PhaseStarted(name="search", detail=self._simulated()))
        predictions = self.forecast.best_first()
        if not self.forecast.curves:
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
        """Service times of all kinds, the baseline's first, and the baseline verified as soon as that can be."""
        space, budget = self.attempts.ledger.space, self.attempts.budget
        kinds = kinds_to_profile(space, limit_ms=self.attempts.slo.limit_ms)
        points = sorted(kinds, key=lambda knobs: not self._same_kind(knobs, first))
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        for index, knobs in enumerate(points):
            used_up = budget.elapsed_s() > until_s and index > len(space.engines)
            if self.attempts.stop() or used_up or (index > 0 and not self.attempts.may_go_on()):
                break
            self._profile_unless_known(knobs)
            if index == 0 and self.attempts.may_go_on():
                self._verify_baseline(first)
        self.attempts.crew.share(self.forecast.curves)

    def _profile_more(self) -> bool:
        """Kinds for which there was no time, when there is some after all; whether anything new is known."""
        attempts, budget = self.attempts, self.attempts.budget
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        known = sum(map(len, self.forecast.curves.values()))
        for knobs in kinds_to_profile(attempts.ledger.space, limit_ms=attempts.slo.limit_ms):
            if self._verified >= AT_MOST_VERIFIED or not attempts.may_go_on() or budget.elapsed_s() > until_s:
                break
            self._profile_unless_known(knobs)
        attempts.crew.share(self.forecast.curves)
        return sum(map(len, self.forecast.curves.values())) > known

    def _profile_unless_known(self, knobs: Knobs) -> None:
        """One kind, unless it is profiled already or cannot be the best."""
        if self.forecast.profiled(knobs) or self.forecast.outraced(knobs):
            return
        profile_kind(self.attempts, self.forecast, knobs)
        write_curves(self.attempts.ledger.path.parent, self.forecast.curves)
        self._simulate_all()

    def _same_kind(self, knobs: Knobs, other: Knobs) -> bool:
        same_count = knobs["instance_count"] == other["instance_count"]
        return same_count and self.forecast.kind_of(knobs) == self.forecast.kind_of(other)

    # Simulating

    def _simulate_all(self) -> list[Knobs]:
        points = [knobs for knobs in self.attempts.ledger.space.points() if self.attempts.promising(knobs)]
        self.forecast.simulate(points)
        return points

    def _simulated(self) -> str:
        size, kept = len(self._simulate_all()), len(self.forecast.best_first())
        return f"{size} configurations, {kept} of them predicted to keep the limit"

    # Verifying

    def _verify_baseline(self, baseline: Knobs) -> None:
        """The baseline is tried whatever is predicted of it: everything else is compared with it."""
        ledger = self.attempts.ledger
        self.forecast.simulate([baseline])
        prediction = self.forecast.predicted(baseline)
        if prediction is not None and prediction.rate_per_s > 0:
            self._verify(prediction, cause="baseline")
            return
        asked = ledger.ask_for([baseline], wanted=self.attempts.promising)
        if asked is not None:
            evaluated = partial(self.attempts.evaluated, most_s=BASELINE_EDGE_S)
            self.attempts.make(asked, evaluated, WhyRecord(cause="baseline"))

    def _verify_all(self) -> bool:
        while self.attempts.may_go_on() and self._verified < AT_MOST_VERIFIED:
            for trial in self.attempts.gathered():
                self._learn(trial)
                self._verified += 1
            prediction = next(self._worth_verifying(), None)
            if prediction is not None:
                self._offer_others(prediction)
                self._verify(prediction, cause="predicted")
            elif not self.attempts.crew.wait():
                break
            wrong = sum(abs(error) > DISAGREEMENT for error in self._errors[:JUDGED])
            if wrong >= WRONG_AT_LEAST and len(self._errors) <= JUDGED:
                text = "The simulator and the measurements disagree; the sampler goes on without it."
                self.attempts.on_event(events.Note(text=text, warning=True))
                return False
        ledger = self.attempts.ledger
        found = ledger.best() is not None or ledger.objective.rate_per_s is not None
        return found or not self.attempts.may_go_on()

    def _offer_others(self, mine: Predicted) -> None:
        """Let the crew verify those that follow, as many as would be verified at all."""
        others = (one for one in self._worth_verifying() if one.knobs != mine.knobs)
        left = AT_MOST_VERIFIED - self._verified - 1 - len(self.attempts.ledger.away)
        self.attempts.offer(
            (one.knobs, WhyRecord(cause="predicted", prediction=self._prediction_record(one)))
            for one in islice(others, max(0, left))
        )

    def _worth_verifying(self) -> Iterator[Predicted]:
        untried = worth_verifying(self.forecast, self.attempts.ledger)
        return (one for one in untried if self.attempts.promising(one.knobs))

    def _verify(self, prediction: Predicted, *, cause: Cause) -> None:
        asked = self.attempts.ledger.ask_for([prediction.knobs], wanted=lambda _: True)
        if asked is None:
            return
        why = WhyRecord(cause=cause, prediction=self._prediction_record(prediction))

        def measured(config: ServingConfig, number: int) -> Trial | None:
            server = self.forecast.server(config)
            # What the baseline really keeps is found when it is certified.
            once = cause == "baseline"
            return predicted_trial(self.attempts, server, config, number, prediction, once=once)

        trial = self.attempts.make(asked, measured, why)
        self._verified += 1
        if trial is None:
            return
        seen_before = self.forecast.seen_before(prediction.knobs)
        if self._checks < CHECKS and is_suspicious(trial, prediction, seen_before=seen_before):
            self._checks += 1
            factor = self._changed_pace(prediction.knobs)
            if factor is not None:
                self._start_anew(factor, profiled=prediction.knobs)
                return
        self._learn(trial)

    def _changed_pace(self, knobs: Knobs) -> float | None:
        """Profile the kind of a suspicious trial again: how many times as long executions take now.

        None, and the first curve stays, unless the machine has changed.
        """
        curves, instances = self.forecast.curves[self.forecast.kind_of(knobs)], int(knobs["instance_count"])
        before = curves[instances]
        now = self._profiled_again(knobs)
        factor = slowdown_between(before, now)
        if abs(math.log(factor)) < CHANGED:
            curves[instances] = before
            return None
        unsteady = abs(math.log(slowdown_between(now, self._profiled_again(knobs)))) > STEADY
        if unsteady:
            curves[instances] = before
            text = "The machine's speed goes up and down: a neighbour, or its clock. What was measured may be off."
        else:
            text = f"Executions take {factor:.2f} times as long as when profiled: the machine's clock or its "
            text += "neighbours have changed. All predictions change by that, and earlier trials do not count."
        self.attempts.on_event(events.Note(text=text, warning=True))
        return None if unsteady else factor

    def _profiled_again(self, knobs: Knobs) -> ServiceCurve:
        """The curve as it is now; where it cannot be measured, as it was."""
        profile_kind(self.attempts, self.forecast, {**knobs, "max_queue_delay_us": 0})
        return self.forecast.curves[self.forecast.kind_of(knobs)][int(knobs["instance_count"])]

    def _start_anew(self, factor: float, *, profiled: Knobs) -> None:
        """What was measured of the machine holds no more, but stays in the run's files.

        Profiles are moved by the factor, which one kind has shown twice: all kinds again would take as long as
        in the beginning, and the machine may change meanwhile. What trials find now puts them right.
        """
        ledger = self.attempts.ledger
        put_aside(ledger.path.parent, pace=ledger.pace)
        ledger.begin_pace()
        self.forecast.slow_down(factor, but=profiled)
        write_curves(ledger.path.parent, self.forecast.curves)
        self._errors.clear()
        self._checks = CHECKS
        self._verified = 0
        self._profile_all(first=knobs_of(ledger.space.baseline()))
        self._simulate_all()

    def _prediction_record(self, prediction: Predicted) -> PredictionRecord:
        """The prediction as it stands now, beside those that it is preferred to."""
        ledger = self.attempts.ledger
        tried = [knobs_of(trial.config) for trial in ledger.current]
        untried = [one for one in self.forecast.best_first() if one.knobs not in tried]
        best = ledger.best()
        return PredictionRecord(
            rate_per_s=prediction.rate_per_s,
            sd=prediction.sd,
            simulated_per_s=prediction.simulated_per_s,
            rank=1 + sum(one.at_best > prediction.at_best for one in untried),
            untried=len(untried),
            to_beat_per_s=None if best is None else best.rate_at_limit_per_s,
            service_times=service_times_record(self.forecast.server(ledger.space.config(prediction.knobs))),
        )

    def _learn(self, trial: Trial) -> None:
        if trial.state in ("failed", "pruned") or not trial.rate_low_per_s or not trial.rate_high_per_s:
            return
        middle = math.sqrt(trial.rate_low_per_s * trial.rate_high_per_s)
        knobs = knobs_of(trial.config)
        self.forecast.simulate([knobs])
        prediction = self.forecast.predicted(knobs)
        slowdown = explanation(trial, middle)
        if self.forecast.learn(knobs, middle, slowdown) is not None and prediction is not None:
            self._errors.append(0.0 if _unsteady_machine(slowdown) else math.log(middle / prediction.rate_per_s))

    # Nothing keeps the limit

    def _show_infeasible(self) -> None:
        """Measure what the fastest configurations can do alone, so that the limit within reach can be told."""
        space = self.attempts.ledger.space

        def alone_s(knobs: Knobs) -> float:
            server = self.forecast.server(space.config(knobs))
            return float(server.mean_service_s[1, 1]) + server.overhead_s

        alone = [
            knobs
            for knobs in space.points()
            if knobs["max_batch_size"] == space.max_batch_sizes[0]
            and self.forecast.profiled(knobs)
            and self.attempts.promising(knobs)
        ]
        for knobs in sorted(alone, key=alone_s)[:FASTEST_INFEASIBLE]:
            asked = self.attempts.ledger.ask_for([knobs], wanted=self.attempts.promising)
            if asked is not None and self.attempts.may_go_on():
                self.attempts.make(asked, self.attempts.edge, WhyRecord(cause="fastest"))


def explanation(trial: Trial, rate_per_s: float) -> float | None:
    """How many times as long executions took, where the rate follows from that; None where it does not."""
    replay = trial.replay
    if replay is None or not replay.rate_per_s > 0 or not replay.slowdown > 0:
        return None
    return replay.slowdown if abs(math.log(rate_per_s / replay.rate_per_s)) < EXPLAINED else None


def _unsteady_machine(slowdown: float | None) -> bool:
    """Whether a prediction was off for no other reason than a machine whose speed goes up and down."""
    return slowdown is not None and abs(math.log(slowdown)) < math.log(UNSTEADY)


def forecast_for(attempts: Attempts) -> Forecast:
    """A forecast that knows nothing yet, on this machine's cores."""
    return Forecast(
        space=attempts.ledger.space,
        slo=attempts.slo,
        seed=attempts.seed,
        demand=attempts.demand,
        threads=max(1, min(attempts.ledger.space.limits.cores, 8)),
    )
