"""Certify a rate with fresh arrivals, stepping down to lower rates until the SLO is met."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import Measure
from loadgen.statistics.capacity_fit import Probe
from loadgen.statistics.dependence import least_burst
from loadgen.statistics.sequential import log_evidence_below, requests_needed
from loadgen.statistics.slo_test import (
    Verdict,
    certify_each,
    combined_answer,
    confidence_of_each,
    deciding_verdict,
)

_ENOUGH_ANSWERS = 20


def served_per_s(log: RequestLog, limit_ms: float) -> float:
    """Return responses per second from the first to the last late one; inf with fewer than 20 late responses.

    A server that always has a backlog shows its throughput limit. One that is late now and then shows the rate of
    the load, as it answers everything.
    """
    late_ns = log.done_ns[(log.latency_ns > limit_ms * 1e6) & ~log.failed]
    if len(late_ns) < _ENOUGH_ANSWERS:
        return math.inf
    first, last = int(late_ns.min()), int(late_ns.max())
    answered_ns = log.done_ns[~log.failed]
    between = np.count_nonzero((answered_ns > first) & (answered_ns <= last))
    return float(between) / ((last - first) / 1e9) if last > first else math.inf


FIRST_SHARE = 0.985
"""The first attempt uses 98.5 % of the estimated capacity."""

_WHEN_INCONCLUSIVE, _WHEN_VIOLATED, _SMALLEST_STEP = 0.96, 0.92, 0.85
"""Factors for the next rate: after an inconclusive attempt, after one that violated the SLO, and the lowest. Steps
grow with each such attempt in a row, as the estimate was wrong or the server has become slower."""

_LOWEST_AT_ONCE = 0.7

OF_WHAT_IT_SERVED = 0.9
"""After an attempt with a backlog, the next rate is at most 90 % of the throughput that the server showed: it may
have become slower since the estimate, and small steps would take too long."""

_HALF_FOR_BAD_LUCK = 0.5
"""A rate may need half of the seconds left without any violation; with some it takes about twice that."""

MAX_UNTRUSTED, UNTRUSTED_FOR_S = 3, 25.0
"""The certification is abandoned after 3 runs in a row, and 25 s of load in them, that measured the client: CPU
contention often outlasts one run, which ends within a few seconds if requests leave late."""

MIN_RUN_S = 2.0
_JUDGED_BEFORE_HOPELESS_S = 2.0
_MIN_BURSTS_BEFORE_HOPELESS = 0.5
"""An attempt is not abandoned before its violation budget covers this share of a typical burst."""

_LONGEST_BURSTS_WAITED_FOR = 16.0
"""Bursts count with at most 16 times the least burst for the share above: CPU contention makes bursts look longer,
and the attempt would be judged too late."""

_PATIENCE = 5.0
"""An attempt that needs over 5 times the shortest run that can decide is too close to the capacity: a lower rate
is tried."""

_HOPELESS_FOR, _HOPELESS_MIN_S = 0.1, 1.0
"""An attempt has to look hopeless for 10 % of the run so far, and 1 s: one look may see bursts of any length."""

LOOKS_MET = 2
"""A run ends as met after two looks in a row: at a single look, bursts may seem shorter than they are."""

_LONGEST_OUTLOOK = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One confirmation run. One with `problems` decides nothing.

    `verdict` is on the first limit, `others` on the others, which have to be met too. `served_per_s` is the rate
    of responses while requests were late; inf if hardly any were.
    """

    rate_per_s: float
    load_s: float
    verdict: Verdict
    overloaded: bool
    problems: tuple[str, ...]
    others: tuple[Verdict, ...] = ()
    served_per_s: float = math.inf

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all limits, the first one first."""
        return (self.verdict, *self.others)

    @property
    def met(self) -> bool:
        """True if the rate is certified."""
        return combined_answer(self.verdicts) == "met" and not self.overloaded and not self.problems

    @property
    def violated(self) -> bool:
        """True if the rate is surely too high."""
        return (combined_answer(self.verdicts) == "violated" or self.overloaded) and not self.problems

    @property
    def reason(self) -> str:
        """Why the SLO was met, violated or neither for sure."""
        return deciding_verdict(self.verdicts).reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """`met` is the attempt that certified its rate; None: no attempt within the budget did."""

    met: Attempt | None
    attempts: tuple[Attempt, ...]
    reason: str

    @property
    def load_s(self) -> float:
        """Seconds of load of all attempts."""
        return sum(attempt.load_s for attempt in self.attempts)


def confirm(
    measure: Measure,
    rate_per_s: float,
    *,
    limits: tuple[LatencyLimit, ...],
    budget_s: float,
    seed: int,
    confidence: float = 0.95,
    floor_per_s: float = 0.0,
    stop: Callable[[], bool] = lambda: False,
    on_attempt: Callable[[Attempt], object] = id,
) -> Confirmation:
    """Certify the highest rate possible from 0.985 x `rate_per_s` on downwards, within `budget_s` of load.

    Each rate gets fresh arrivals until the test decides, or until the rest of the budget would not be enough; then
    a lower rate follows, down to `floor_per_s`. A run with problems is repeated, for 25 s. `confidence` is that of
    all limits together.
    """
    confirming = _Confirming(
        measure=measure,
        limits=limits,
        confidence=confidence,
        budget_s=budget_s,
        seed=seed,
        stop=stop,
        on_attempt=on_attempt,
    )
    rate = FIRST_SHARE * rate_per_s
    while True:
        if stop() or confirming.left_s() < MIN_RUN_S + confirming.warmup_s:
            return confirming.confirmation("the seconds for it ran out before any rate surely met the SLO")
        if rate < floor_per_s:
            return confirming.confirmation(f"no rate down to {floor_per_s:,.4g}/s met the SLO")
        attempt = confirming.attempt(rate)
        if attempt.met:
            return confirming.confirmation(attempt.reason, met=attempt)
        if confirming.untrusted():
            return confirming.confirmation(attempt.problems[0])
        if not attempt.problems:
            rate *= _step_down(confirming.attempts, confirming.left_s())


@dataclass(slots=True, kw_only=True)
class _Confirming:
    measure: Measure
    limits: tuple[LatencyLimit, ...]
    confidence: float
    budget_s: float
    seed: int
    stop: Callable[[], bool]
    on_attempt: Callable[[Attempt], object]
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def warmup_s(self) -> float:
        return max(1.0, 3e-3 * max(limit.steady_after_ms for limit in self.limits))

    def left_s(self) -> float:
        return self.budget_s - _counted_s(self.attempts)

    def untrusted(self) -> bool:
        last = list(takewhile(lambda attempt: attempt.problems, reversed(self.attempts)))
        return len(last) >= MAX_UNTRUSTED and _counted_s(last) >= UNTRUSTED_FOR_S

    def confirmation(self, reason: str, *, met: Attempt | None = None) -> Confirmation:
        return Confirmation(met=met, attempts=tuple(self.attempts), reason=reason)

    def attempt(self, rate_per_s: float) -> Attempt:
        duration_s, patience_s = self.left_s(), self.patience_s(rate_per_s)
        hopeful_until_s = 0.0
        met_at: list[tuple[Verdict, ...]] = []  # at the latest looks in a row

        def decided(log: RequestLog) -> bool:
            nonlocal hopeful_until_s
            verdicts = self.verdicts(log)
            now_s = log.until_s
            most_s = min(duration_s - now_s, patience_s)
            if not any(is_hopeless(verdict, rate_per_s, most_s) for verdict in verdicts):
                hopeful_until_s = now_s
            hopeless = now_s - hopeful_until_s > max(_HOPELESS_MIN_S, _HOPELESS_FOR * now_s)
            answer = combined_answer(verdicts)
            if answer == "met":
                met_at.append(verdicts)
            else:
                met_at.clear()
            met = len(met_at) >= LOOKS_MET
            return self.stop() or answer == "violated" or met or hopeless

        probe = self.measure(rate_per_s, duration_s, self.seed + 104_729 * len(self.attempts), decided)
        attempt = attempt_of(probe, rate_per_s, self.verdicts(probe.log), met_at)
        self.attempts.append(attempt)
        self.on_attempt(attempt)
        return attempt

    def patience_s(self, rate_per_s: float) -> float:
        """Return how many more seconds an attempt may need, at any look, before it is abandoned."""
        each = confidence_of_each(self.confidence, len(self.limits))
        return _PATIENCE * (self.warmup_s + max(shortest_s(limit, rate_per_s, each) for limit in self.limits))

    def verdicts(self, log: RequestLog) -> tuple[Verdict, ...]:
        return certify_each(log, self.limits, confidence=self.confidence)


def _counted_s(attempts: Sequence[Attempt]) -> float:
    """Return the seconds of load that count against the budget; never 0, so that attempts come to an end."""
    return sum(max(attempt.load_s, MIN_RUN_S) for attempt in attempts)


def attempt_of(
    probe: Probe, rate_per_s: float, at_the_end: tuple[Verdict, ...], met_at: Sequence[tuple[Verdict, ...]]
) -> Attempt:
    """Return what a run at this rate showed: by the verdicts at its end, or at the looks that ended it as met."""
    verdict, *others = as_decided(at_the_end, met_at)
    return Attempt(
        rate_per_s=rate_per_s,
        load_s=float(probe.log.done_ns.max()) / 1e9 if len(probe.log) else 0.0,
        verdict=verdict,
        overloaded=probe.overloaded or any(one.overloaded for one in (verdict, *others)),
        problems=probe.problems,
        others=tuple(others),
        served_per_s=served_per_s(probe.log, verdict.limit.limit_ms),
    )


def as_decided(at_the_end: tuple[Verdict, ...], met_at: Sequence[tuple[Verdict, ...]]) -> tuple[Verdict, ...]:
    """Return the verdicts that ended a run as met, if those on its whole log are merely inconclusive.

    The answer that ended a run stands, whatever came in afterwards (see `slo_test`); otherwise bursts that look
    slightly longer at the end would waste the whole run.
    """
    decided = len(met_at) >= LOOKS_MET and combined_answer(at_the_end) == "inconclusive"
    return met_at[-1] if decided else at_the_end


def _step_down(attempts: list[Attempt], left_s: float) -> float:
    """Return the factor for the next rate; smaller if half of the budget left is too little without violations."""
    attempt = attempts[-1]
    in_a_row = sum(1 for _ in takewhile(lambda earlier: earlier.violated == attempt.violated, reversed(attempts)))
    if attempt.violated:
        step = max(_LOWEST_AT_ONCE, math.pow(_WHEN_VIOLATED, in_a_row))
        return min(step, OF_WHAT_IT_SERVED * attempt.served_per_s / attempt.rate_per_s)
    needed_s = max(
        seconds_needed(replace(verdict, violations=0, n=0), attempt.rate_per_s) for verdict in attempt.verdicts
    )
    if not math.isfinite(needed_s):
        return _WHEN_INCONCLUSIVE
    excess = needed_s / (_HALF_FOR_BAD_LUCK * max(left_s, 1.0))
    steps = max(1 + math.log2(max(1.0, excess)), in_a_row)
    return max(_SMALLEST_STEP, math.pow(_WHEN_INCONCLUSIVE, steps))


def is_hopeless(verdict: Verdict, rate_per_s: float, left_s: float) -> bool:
    """True if a run would stay inconclusive for `left_s` more seconds even if one burst so far was bad luck.

    False before its violation budget covers half a burst of the usual size.
    """
    burst = min(verdict.burst, _LONGEST_BURSTS_WAITED_FOR * _least_burst(verdict.limit.limit_ms, rate_per_s))
    if not verdict.n * (verdict.limit.allowed) >= _MIN_BURSTS_BEFORE_HOPELESS * burst:
        return False
    if verdict.n < _JUDGED_BEFORE_HOPELESS_S * rate_per_s:
        return False
    return seconds_needed(verdict, rate_per_s, forgiven_bursts=1.0) > left_s


def shortest_s(limit: LatencyLimit, rate_per_s: float, confidence: float) -> float:
    """Return the seconds, after the warm-up, of the shortest run that decides a limit without any violation."""
    burst = _least_burst(limit.limit_ms, rate_per_s)
    return requests_needed(0, 1 - limit.quantile, burst, confidence) / rate_per_s


def _least_burst(limit_ms: float, rate_per_s: float) -> float:
    return max(1.0, least_burst(rate_per_s, limit_ms))


def seconds_needed(verdict: Verdict, rate_per_s: float, *, forgiven_bursts: float = 0.0) -> float:
    """Return how many more seconds a run needs until "met", if it goes on like this; inf: it never gets there.

    `forgiven_bursts` of average size are subtracted from the violations so far.
    """
    allowed, wanted = verdict.limit.allowed, -math.log1p(-verdict.confidence)
    share = max(0.0, verdict.violations - forgiven_bursts * verdict.burst) / max(verdict.n, 1)
    if not share < allowed or math.isnan(verdict.burst):
        return math.inf
    low = high = max(float(verdict.n), 1.0)
    while log_evidence_below(share * high, high, allowed, verdict.burst) < wanted:
        low, high = high, 1.5 * high
        if high > _LONGEST_OUTLOOK:
            return math.inf
    for _ in range(20):
        middle = (low + high) / 2
        enough = log_evidence_below(share * middle, middle, allowed, verdict.burst) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return (high - verdict.n) / rate_per_s
