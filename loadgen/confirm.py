"""From an estimated rate to a promised one: fresh arrivals until the limit is certified, lower where it is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from loadgen.bursts import least_burst
from loadgen.evidence import log_evidence_below, requests_needed
from loadgen.order import LatencyLimit
from loadgen.served import served_per_s
from loadgen.several import certify_each, confidence_of_each, deciding, joint_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.capacity import Measure
    from loadgen.certify import Verdict
    from loadgen.measurement import RequestLog

FIRST_SHARE = 0.985
"""Of the estimated rate at the limit, where the first confirmation is tried."""

_LOWER, _LOWER_WHEN_BROKEN, _LOWEST = 0.96, 0.92, 0.85
"""What a rate is multiplied by after it was not decided, after it was broken, and at the least; broken rates in a
row are further apart each time, for then the estimate was wrong, or the server is slower than it was."""

_LOWEST_AT_ONCE = 0.7

OF_WHAT_IT_SERVED = 0.9
"""Of what a server answered that could not keep up, where the next rate is tried: it may have become slower since
the estimate, and steps from there would take too long."""

_HALF_FOR_BAD_LUCK = 0.5
"""The share of what is left that a rate may need without any violation: with some it takes about twice that."""

MOST_UNTRUSTED, UNTRUSTED_FOR_S = 3, 25.0
"""Runs in a row that measured the client, and seconds of load in them, until it is given up: what keeps the
processors from it often lasts for longer than one run, which a late client ends after a few seconds."""

_LEAST_RUN_S = 2.0
_JUDGED_BEFORE_HOPELESS_S = 2.0
_LEAST_BURSTS_BEFORE_HOPELESS, _LEAST_WHERE_RUNS_ARE_LONG = 0.5, 0.25
"""How much of a burst has to be allowed so far. Less where runs are long because the machine comes and goes: it is
what makes the bursts there, and to wait for them at each rate takes more than a rate gains."""

_LONGEST_BURSTS_WAITED_FOR = 16.0
"""As multiples of the least burst: where a machine that was disturbed makes bursts look longer, the violations are
judged sooner than after half of such a burst is allowed."""

_PATIENCE = 5.0
"""As a multiple of the shortest run that can decide: a rate that needs longer is too near the limit for what it
gains, and a lower one is tried."""

_HOPELESS_FOR, _HOPELESS_AT_LEAST_S = 0.1, 1.0
"""As a share of the run so far: one look alone may see bursts of any length."""

_LOOKS_KEPT = 2
"""In a row before a run ends as kept: at one look alone bursts may seem shorter than they are."""

_LONGEST_OUTLOOK = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One confirmation run. Nothing follows from one with problems.

    `verdict` is on the first limit, `others` are on those that have to be kept besides. `served_per_s` is what the
    server did while requests were late; inf where hardly any were.
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
        """On every limit."""
        return (self.verdict, *self.others)

    @property
    def kept(self) -> bool:
        """Whether the rate may be promised."""
        return joint_answer(self.verdicts) == "kept" and not self.overloaded and not self.problems

    @property
    def broken(self) -> bool:
        """Whether the rate is surely too high."""
        return (joint_answer(self.verdicts) == "broken" or self.overloaded) and not self.problems

    @property
    def reason(self) -> str:
        """Why the rate was kept, broken or not decided."""
        return deciding(self.verdicts).reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """`kept` is the attempt whose rate may be promised; None: there was no such rate in the seconds for it."""

    kept: Attempt | None
    attempts: tuple[Attempt, ...]
    reason: str

    @property
    def served_per_s(self) -> float:
        """What the server did in the last attempt that it could not keep up with; inf where there was none."""
        return next((one.served_per_s for one in reversed(self.attempts) if one.served_per_s < math.inf), math.inf)

    @property
    def load_s(self) -> float:
        """Seconds of load that it took."""
        return sum(attempt.load_s for attempt in self.attempts)


def confirm(
    measure: Measure,
    rate_per_s: float,
    *,
    limit_ms: float,
    budget_s: float,
    seed: int,
    quantile: float = 0.99,
    confidence: float = 0.95,
    also: tuple[LatencyLimit, ...] = (),
    floor_per_s: float = 0.0,
    least_s: Callable[[], float] = lambda: 0.0,
    most_after: Callable[[RequestLog], float] = lambda _: math.inf,
    stop: Callable[[], bool] = lambda: False,
    on_attempt: Callable[[Attempt], object] = id,
) -> Confirmation:
    """Certify the highest rate possible from 0.985 x `rate_per_s` on downwards, within `budget_s` of load.

    Every rate is tried with fresh arrivals until it is decided, or until what is left of the budget would not
    decide it; then a lower rate follows, down to `floor_per_s`. A run with problems is repeated, for 25 s.
    `also` are further limits to keep: `confidence` is that of all of them together. A rate is not kept before its
    run has lasted `least_s()`, which is asked at every look. `most_after` says what may be tried, per second,
    after a run that was not kept.
    """
    confirming = _Confirming(
        measure=measure,
        limits=(LatencyLimit(quantile=quantile, limit_ms=limit_ms), *also),
        confidence=confidence,
        budget_s=budget_s,
        seed=seed,
        least_s=least_s,
        stop=stop,
        on_attempt=on_attempt,
    )
    rate = FIRST_SHARE * rate_per_s
    while True:
        if stop() or confirming.left_s() < _LEAST_RUN_S + confirming.warmup_s:
            return confirming.confirmation("the seconds for it ran out before any rate was decided to be kept")
        if rate < floor_per_s:
            return confirming.confirmation(f"no rate down to {floor_per_s:,.4g}/s was kept")
        attempt, log = confirming.attempt(rate)
        if attempt.kept:
            return confirming.confirmation(attempt.reason, kept=attempt)
        if confirming.untrusted():
            return confirming.confirmation(attempt.problems[0])
        if not attempt.problems:
            most = max(most_after(log), _LOWEST_AT_ONCE * rate)
            rate = min(rate * _step_down(confirming.attempts, confirming.left_s()), most)


@dataclass(slots=True, kw_only=True)
class _Confirming:
    measure: Measure
    limits: tuple[LatencyLimit, ...]
    confidence: float
    budget_s: float
    seed: int
    least_s: Callable[[], float]
    stop: Callable[[], bool]
    on_attempt: Callable[[Attempt], object]
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def warmup_s(self) -> float:
        return max(1.0, 3e-3 * max(limit.limit_ms for limit in self.limits))

    def left_s(self) -> float:
        return self.budget_s - _counted_s(self.attempts)

    def untrusted(self) -> bool:
        last = list(takewhile(lambda attempt: attempt.problems, reversed(self.attempts)))
        return len(last) >= MOST_UNTRUSTED and _counted_s(last) >= UNTRUSTED_FOR_S

    def confirmation(self, reason: str, *, kept: Attempt | None = None) -> Confirmation:
        return Confirmation(kept=kept, attempts=tuple(self.attempts), reason=reason)

    def attempt(self, rate_per_s: float) -> tuple[Attempt, RequestLog]:
        duration_s, patience_s = self.left_s(), self.patience_s(rate_per_s)
        hopeful_until_s = 0.0
        kept_at: list[tuple[Verdict, ...]] = []  # the latest looks in a row

        def decided(log: RequestLog) -> bool:
            nonlocal hopeful_until_s
            verdicts = self.verdicts(log)
            now_s = float(log.scheduled_ns[-1]) / 1e9 if len(log) else 0.0
            most_s = min(duration_s - now_s, patience_s)
            least_bursts = _LEAST_WHERE_RUNS_ARE_LONG if self.least_s() else _LEAST_BURSTS_BEFORE_HOPELESS
            if not any(is_hopeless(verdict, rate_per_s, most_s, least_bursts) for verdict in verdicts):
                hopeful_until_s = now_s
            hopeless = now_s - hopeful_until_s > max(_HOPELESS_AT_LEAST_S, _HOPELESS_FOR * now_s)
            answer = joint_answer(verdicts)
            if answer == "kept":
                kept_at.append(verdicts)
            else:
                kept_at.clear()
            kept = len(kept_at) >= _LOOKS_KEPT and now_s >= self.least_s()
            return self.stop() or answer == "broken" or kept or hopeless

        probe = self.measure(rate_per_s, duration_s, self.seed + 104_729 * len(self.attempts), decided)
        verdict, *others = as_decided(self.verdicts(probe.log), kept_at)
        attempt = Attempt(
            rate_per_s=rate_per_s,
            load_s=float(probe.log.done_ns.max()) / 1e9 if len(probe.log) else 0.0,
            verdict=verdict,
            overloaded=probe.overloaded or any(one.overloaded for one in (verdict, *others)),
            problems=probe.problems,
            others=tuple(others),
            served_per_s=served_per_s(probe.log, self.limits[0].limit_ms),
        )
        self.attempts.append(attempt)
        self.on_attempt(attempt)
        return attempt, probe.log

    def patience_s(self, rate_per_s: float) -> float:
        """How much longer a run may take, whenever it is looked at."""
        each = confidence_of_each(self.confidence, len(self.limits))
        return _PATIENCE * (self.warmup_s + max(shortest_s(limit, rate_per_s, each) for limit in self.limits))

    def verdicts(self, log: RequestLog) -> tuple[Verdict, ...]:
        return certify_each(log, self.limits, confidence=self.confidence)


def _counted_s(attempts: Sequence[Attempt]) -> float:
    """Seconds of load, as they count against a budget: never 0, so that there is an end of attempts."""
    return sum(max(attempt.load_s, _LEAST_RUN_S) for attempt in attempts)


def as_decided(at_the_end: tuple[Verdict, ...], kept_at: Sequence[tuple[Verdict, ...]]) -> tuple[Verdict, ...]:
    """The verdicts that ended a run as kept, where those on its whole log only miss that by a little.

    An answer that ended a run may be taken, whatever came in while it ended (`loadgen.certify`); bursts that look
    a little longer then would cost it all of its seconds.
    """
    decided = len(kept_at) >= _LOOKS_KEPT and joint_answer(at_the_end) == "undecided"
    return kept_at[-1] if decided else at_the_end


def _step_down(attempts: list[Attempt], left_s: float) -> float:
    """What to multiply the rate by: less where even without violations half of what is left would not do."""
    attempt = attempts[-1]
    in_a_row = sum(1 for _ in takewhile(lambda earlier: earlier.broken == attempt.broken, reversed(attempts)))
    if attempt.broken:
        step = max(_LOWEST_AT_ONCE, math.pow(_LOWER_WHEN_BROKEN, in_a_row))
        return min(step, OF_WHAT_IT_SERVED * attempt.served_per_s / attempt.rate_per_s)
    needed_s = max(
        seconds_needed(replace(verdict, violations=0, n=0), attempt.rate_per_s) for verdict in attempt.verdicts
    )
    if not math.isfinite(needed_s):
        return _LOWER
    excess = needed_s / (_HALF_FOR_BAD_LUCK * max(left_s, 1.0))
    steps = max(1 + math.log2(max(1.0, excess)), in_a_row)
    return max(_LOWEST, math.pow(_LOWER, steps))


def is_hopeless(verdict: Verdict, rate_per_s: float, left_s: float, least_bursts: float) -> bool:
    """Whether a run would stay undecided for `left_s` more seconds even if one burst so far was bad luck.

    Nothing is said before `least_bursts` of a burst of the usual size would have been allowed.
    """
    burst = min(verdict.burst, _LONGEST_BURSTS_WAITED_FOR * _least_burst(verdict.limit_ms, rate_per_s))
    if not verdict.n * (1 - verdict.quantile) >= least_bursts * burst:
        return False
    if verdict.n < _JUDGED_BEFORE_HOPELESS_S * rate_per_s:
        return False
    return seconds_needed(verdict, rate_per_s, forgiven_bursts=1.0) > left_s


def shortest_s(limit: LatencyLimit, rate_per_s: float, confidence: float) -> float:
    """Seconds, those left out not counted, of a run that decides a limit and in which no request is over it."""
    burst = _least_burst(limit.limit_ms, rate_per_s)
    return requests_needed(0, 1 - limit.quantile, burst, confidence) / rate_per_s


def _least_burst(limit_ms: float, rate_per_s: float) -> float:
    return max(1.0, least_burst(rate_per_s, limit_ms))


def seconds_needed(verdict: Verdict, rate_per_s: float, *, forgiven_bursts: float = 0.0) -> float:
    """How much longer a run has to be until "kept", if it goes on as it went; inf: it never gets there.

    `forgiven_bursts` of average size are taken from the violations so far.
    """
    allowed, wanted = 1 - verdict.quantile, -math.log1p(-verdict.confidence)
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
