"""The context of a trial (bench, SLO, time budget, seed, workload and events), the budget, and one load run."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadgen.measurement.cpu_contention import none_if_not_watched
from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.records.formats import duration_option, format_rate, format_seconds
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.checks import change_of
from loadgen.statistics.confirm import shortest_s
from loadgen.statistics.probe import Probe, ProbeResult, evaluate_probe
from loadgen.statistics.slo_test import certify_each, combined_answer, confidence_of_each
from search.labels import memory_text
from search.records.slo import Slo
from search.records.trial import LoadRunRecord, WhyRecord, run_word
from search.trials import events
from search.trials.bench import Bench
from search.trials.objective import Objective
from search.trials.trial import Trial
from search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext(ABC):
    """Shared by all trials of a search. `stop` is called between trials and while load is running."""

    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    workload: Workload = field(default_factory=Workload)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The objective by which trials are compared."""

    @abstractmethod
    def best_per_s(self) -> float | None:
        """Return the capacity of the best trial so far, which a new one has to beat; None if there is none."""

    def seed_of(self, number: int, run: int) -> int:
        """Return the seed of a load run of a trial, both counted from 0."""
        return self.seed + 104_729 * (1 + number) + 7919 * run

    def observe(self, measured: Callable[[], Trial | None], why: WhyRecord) -> Trial | None:
        """Return the trial from `measured` with its reason, the CPU contention meanwhile and its peak memory.

        If that is over the limit, the trial is infeasible.
        """
        before = self.bench.spent.contention
        trial = measured()
        if trial is None:
            return None
        seen = none_if_not_watched(self.bench.spent.contention - before)
        trial = trial.changed(why=why, contention=seen, memory_bytes=self.bench.memory_bytes(trial.served))
        most = self.slo.max_memory_bytes
        if trial.state == "failed" or most is None or not trial.over_memory(most):
            return trial
        reason = f"the server took {memory_text(trial.memory_bytes or 0)}, over the limit of {memory_text(most)}"
        return trial.changed(state="infeasible", reason=reason, rate_at_limit_per_s=0.0)


def run_load(
    context: TrialContext, rate_per_s: float, seconds: float, *, number: int, repeat: int
) -> tuple[Probe, ProbeResult, int]:
    """Run load; return the probe, its result and its seed. Each `repeat` of a trial has another seed."""
    slo = context.slo

    def hopeless(requests: RequestLog) -> bool:
        return context.stop() or combined_answer(certify_each(requests, slo.tested)) == "violated"

    seed = context.seed_of(number, repeat)
    probe = context.bench.measure(rate_per_s, seconds, seed, hopeless)
    seen = evaluate_probe(probe, rate_per_s, slo.tested)
    return probe, seen, seed


def emit_probed(on_event: events.OnEvent, number: int, seen: ProbeResult, *, met: bool) -> None:
    """Emit the event of a trial's run; `met` is its tendency."""
    tight = seen.verdict
    word = run_word(tight.answer, met=met, overloaded=seen.overloaded, late=tight.violations, n=tight.n)
    on_event(
        events.Probed(
            number=number,
            rate_per_s=seen.rate_per_s,
            latency_ms=none_if_not_finite(seen.first.latency_ms),
            verdict=word if tight.limit.model is None or met else f"{tight.limit.model} {word}",
            quantile=seen.first.limit.quantile,
        )
    )


def load_run_of(seen: ProbeResult, probe: Probe, limits: Sequence[LatencyLimit], *, seed: int) -> LoadRunRecord:
    """Return the record of one load run of a trial."""
    return LoadRunRecord(
        rate_per_s=seen.rate_per_s,
        latency_ms=none_if_not_finite(seen.first.latency_ms),
        met=seen.met,
        trusted=not seen.problems,
        answer=seen.verdict.answer,
        seconds=seen.load_s,
        requests=seen.verdict.n,
        violations=seen.verdict.violations,
        overloaded=seen.overloaded,
        seed=seed,
        problems=seen.problems,
        model=seen.verdict.limit.model,
        change=None if seen.overloaded else change_of(probe.log, limits),
        began_unix_s=probe.began_unix_s,
    )


CERTIFY_SHARE = 0.45
CERTIFY_MAX_S = 300.0
CERTIFY_MIN_S = 45.0
CERTIFY_SHARE_OF_SHORT_RUNS = 0.6
"""Certification keeps 45 % of the time that it shares with the search: at most 300 s, and at least 45 s or, in a
short run, 60 % of that time."""

MAX_CERTIFY_SHARE = 0.7
"""At low rates certification takes longer. It then keeps what it is likely to need, but at most 70 %."""

TRIAL_SHARE = 0.25
TRIAL_MAX_S = 45.0
FIRST_TRIAL_SHARE = 0.5
"""A trial takes at most 25 % of the time of search and certification, and at most 45 s. A trial that is made in
any case takes at most half of the time that is left."""


@dataclass(slots=True, kw_only=True)
class Budget:
    """Wall time from now on, of which a part is kept for certification.

    `clock` returns seconds; `started` is a time of this clock, None for now. A resumed run starts a budget of its
    own. `certify_needs_s` is the time that certification is likely to take at the rates found so far.
    `prepared_s` is the time that had passed when the search began: search and certification divide the rest.
    `searched_s` is the time that the search took until certification began.
    """

    total_s: float
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    certify_needs_s: float = 0.0
    prepared_s: float = field(default=0.0, init=False)
    searched_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.started is None:
            self.started = self.clock()

    def begin_search(self) -> None:
        """Record that the preparation ends now."""
        self.prepared_s = min(self.elapsed_s(), self.total_s)

    def begin_certification(self) -> None:
        """Record that the search ends now."""
        self.searched_s = self.elapsed_s() - self.prepared_s

    def elapsed_s(self) -> float:
        """Return the seconds since the run started."""
        assert self.started is not None
        return self.clock() - self.started

    def left_s(self) -> float:
        """Return the seconds until the run has to end; never negative."""
        return max(0.0, self.total_s - self.elapsed_s())

    def search_left_s(self) -> float:
        """Return the seconds that the search may still take; never negative."""
        return max(0.0, self.left_s() - self.certify_s())

    def certify_s(self) -> float:
        """Return the seconds kept for certification; short runs and those at low rates keep a larger share."""
        divided_s = self.total_s - self.prepared_s
        least = min(CERTIFY_MIN_S, CERTIFY_SHARE_OF_SHORT_RUNS * divided_s)
        usual_s = min(max(CERTIFY_SHARE * divided_s, least), CERTIFY_MAX_S)
        return max(usual_s, min(self.certify_needs_s, MAX_CERTIFY_SHARE * divided_s))

    def trial_s(self) -> float:
        """Return the seconds of load that one more trial may take."""
        return min(self._most_s(), self.search_left_s())

    def first_trial_s(self) -> float:
        """Return the same for a trial that is made in any case, which must not use all the time that is left."""
        return self.trial_s() or min(self._most_s(), FIRST_TRIAL_SHARE * self.left_s())

    def _most_s(self) -> float:
        return min(TRIAL_MAX_S, TRIAL_SHARE * (self.total_s - self.prepared_s))


CONFIRMATIONS = 2
"""A rate is certified by two confirmations, the second on a restarted server."""

BAD_LUCK = 1.3
"""A confirmation takes 1.3 times as long as the shortest run that decides, for its warm-up and its half-second
checks."""

USUAL = 2.0
"""A confirmation near the capacity usually takes twice as long as one in which no request violates a limit."""

MARGIN = 1.25
LOWER_CONFIDENCES = (0.9, 0.8)
"""The confidences that are certified, as such, if the time is below 1.25 times the least for that of the SLO."""

LOWER_QUANTILES = (0.99, 0.95, 0.9)
"""The limits that a note names as alternatives."""


def confidence_of_a_run(confidence: float) -> float:
    """Return the confidence of each of two confirmations that together have `confidence`.

    A rate that is too high would have to pass both by luck, with fresh arrivals each time.
    """
    return 1 - math.sqrt(1 - confidence)


def least_s(rate_per_s: float, slo: Slo, confidence: float) -> float:
    """Return the seconds of a confirmation with this confidence if no request violates a limit."""
    return max(_least_s(limit, rate_per_s, slo, confidence) for limit in slo.tested)


def colocated_s(slo: Slo, confidence: float) -> float:
    """Return the same for the colocated models alone, whose rates are given; 0 without any."""
    return max((_least_s(limit, 0.0, slo, confidence) for limit in slo.colocated), default=0.0)


def _least_s(limit: LatencyLimit, rate_per_s: float, slo: Slo, confidence: float) -> float:
    each = confidence_of_each(confidence, len(slo.tested))
    return BAD_LUCK * shortest_s(limit, limit.rate_per_s(rate_per_s), each) + 3e-3 * limit.limit_ms


def least_certificate_s(rate_per_s: float, slo: Slo, confidence: float) -> float:
    """Return the seconds of both confirmations, together with this confidence, if no request violates a limit."""
    return CONFIRMATIONS * least_s(rate_per_s, slo, confidence_of_a_run(confidence))


def usual_certificate_s(rate_per_s: float, slo: Slo) -> float:
    """Return the seconds that both confirmations usually take with the confidence of the SLO."""
    return USUAL * least_certificate_s(rate_per_s, slo, slo.confidence)


def budget_for(needs_s: float, *, prepared_s: float, searched_s: float = 0.0) -> float:
    """Return the seconds of a time budget that leaves `needs_s` to certification.

    The preparation and the search before it take as long as they did; certification gets at most 70 % of the rest.
    """
    return prepared_s + max(searched_s + needs_s, needs_s / MAX_CERTIFY_SHARE)


def affordable_confidence(rate_per_s: float, slo: Slo, seconds: float) -> float:
    """Return the SLO's confidence; if `seconds` are too short for it, the highest lower one, or the lowest."""
    confidences = (slo.confidence, *(one for one in LOWER_CONFIDENCES if one < slo.confidence))
    fits = (one for one in confidences if MARGIN * least_certificate_s(rate_per_s, slo, one) <= seconds)
    return next(fits, confidences[-1])


def keep_time_to_certify(budget: Budget, rate_per_s: float, slo: Slo) -> str | None:
    """Divide the budget so that a certificate at this rate fits, if it can.

    If a certificate takes longer than usual, return a note: how long it takes and, if the budget is too short,
    what it allows. Return another one if a faster configuration halves the time.
    """
    before_s, budget.certify_needs_s = budget.certify_needs_s, 0.0
    usual_s = budget.certify_s()
    budget.certify_needs_s = needs_s = usual_certificate_s(rate_per_s, slo)
    if (needs_s > before_s / 2) if before_s > usual_s else (before_s or needs_s <= usual_s):
        return None
    strictest = max(slo.limits, key=lambda limit: limit.quantile)
    slowest = max(slo.tested, key=lambda limit: _least_s(limit, rate_per_s, slo, slo.confidence))
    kept_s = budget.certify_s()
    needs = format_seconds(round(needs_s))
    text = f"{slowest.of} at about {format_rate(slowest.rate_per_s(rate_per_s))}/s takes some {needs} to certify; "
    text += f"{format_seconds(round(kept_s))} of the time budget are kept for it"
    if kept_s >= needs_s:
        return f"{text}."
    advised = duration_option(budget_for(needs_s, prepared_s=budget.prepared_s))
    if slowest.colocated is not None:  # which no lower rate of the model itself makes quicker
        return f"{text}. That is too short; --time-budget {advised} is enough."
    affordable = affordable_confidence(rate_per_s, slo, kept_s)
    fits = least_certificate_s(rate_per_s, slo, affordable) <= kept_s
    fitting = [f"{100 * affordable:g} % confidence at a lower rate"] if fits else []
    for quantile in (one for one in LOWER_QUANTILES if one < strictest.quantile):
        easier = replace(strictest, quantile=quantile)
        if usual_certificate_s(rate_per_s, slo.model_copy(update={"limits": (easier,)})) <= kept_s:
            fitting.append(easier.name)
            break
    allows = f"allows {' or '.join(fitting)}" if fitting else "is too short"
    return f"{text}. That {allows}; --time-budget {advised} is enough for all."
