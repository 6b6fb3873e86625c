"""Certify a rate with fresh arrivals, each time the one that is worth most by what is known of the capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import Capacity
from loadgen.statistics.dependence import least_burst
from loadgen.statistics.probe import Measure, Probe, evaluate_probe
from loadgen.statistics.sequential import bursts_needed, requests_needed
from loadgen.statistics.slo_test import (
    Verdict,
    certify,
    combined_answer,
    deciding_verdict,
)
from loadgen.statistics.steady_state import left_out_ns

MAX_UNTRUSTED, UNTRUSTED_FOR_S = 3, 25.0
"""The certification is abandoned after 3 runs in a row, and 25 s of load in them, that measured the client: CPU
contention often outlasts one run, which ends within a few seconds if requests leave late."""

MIN_RUN_S = 2.0
_MIN_BURSTS_BEFORE_HOPELESS = 0.5
"""An attempt is not abandoned within 2 s, or before its violation budget covers this share of a typical burst."""

_LONGEST_BURSTS_WAITED_FOR = 16.0
"""Bursts count with at most 16 times the least burst for the share above: CPU contention makes bursts look longer,
and the attempt would be judged too late."""

LOOKS_MET, LOOKS_HOPELESS = 2, 4
"""A run ends as met after two looks in a row: at a single look, bursts may seem shorter than they are. It ends
after four in a row at which it would not be met in its time, even if one burst was bad luck."""

LEAST_GAIN = 0.01
"""After a rate is certified, a higher one is tried if 1 % is expected of that."""

TOO_SHORT = "the seconds for it ran out before any rate surely met the SLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One confirmation run. One with `problems` decides nothing.

    `verdict` is on the first limit, `others` on the others, which have to be met too.
    """

    rate_per_s: float
    load_s: float
    verdict: Verdict
    overloaded: bool
    problems: tuple[str, ...]
    others: tuple[Verdict, ...] = ()

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
    known: Capacity,
    seen: Verdict | None = None,
    *,
    limit: LatencyLimit,
    budget_s: float,
    seed: int,
    most_per_s: float = math.inf,
    confidence: float = 0.95,
    stop: Callable[[], bool] = lambda: False,
    on_attempt: Callable[[Attempt], object] = id,
) -> Confirmation:
    """Certify a rate within `budget_s` of load, by what is known of the capacity and what `seen` shows of bursts.

    None above `most_per_s` is tried: where no rate violated the limit, the client's own limit may be near.

    Each attempt has fresh arrivals and the rate that is worth most (see `Capacity.best_test`), until the test
    decides or another rate is worth more. What it shows is added to what is known. A run with problems is
    repeated, for 25 s.
    """
    confirming = _Confirming(
        measure=measure,
        known=known,
        burst_s=_burst_s(seen, limit, known.quantile(0.5)),
        limit=limit,
        most_per_s=most_per_s,
        confidence=confidence,
        budget_s=budget_s,
        seed=seed,
        stop=stop,
        on_attempt=on_attempt,
    )
    while not stop() and confirming.left_s() >= MIN_RUN_S + confirming.warmup_s:
        attempt = confirming.attempt()
        if attempt is None:
            break
        if confirming.untrusted():
            return confirming.confirmation(attempt.problems[0])
    return confirming.confirmation(TOO_SHORT)


@dataclass(slots=True, kw_only=True)
class _Confirming:
    measure: Measure
    known: Capacity
    burst_s: float
    limit: LatencyLimit
    most_per_s: float
    confidence: float
    budget_s: float
    seed: int
    stop: Callable[[], bool]
    on_attempt: Callable[[Attempt], object]
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def warmup_s(self) -> float:
        return left_out_ns(self.limit.steady_after_ms) / 1e9

    def left_s(self) -> float:
        return self.budget_s - _counted_s(self.attempts)

    def untrusted(self) -> bool:
        last = list(takewhile(lambda attempt: attempt.problems, reversed(self.attempts)))
        return len(last) >= MAX_UNTRUSTED and _counted_s(last) >= UNTRUSTED_FOR_S

    @property
    def met(self) -> Attempt | None:
        """The attempt that certified the highest rate that is not refuted."""
        refuted_per_s = min((one.rate_per_s for one in self.attempts if one.violated), default=math.inf)
        met = [one for one in self.attempts if one.met and one.rate_per_s < refuted_per_s]
        return max(met, key=lambda one: one.rate_per_s, default=None)

    def confirmation(self, reason: str) -> Confirmation:
        """Return what is certified now; `reason` is why nothing is."""
        return Confirmation(
            met=self.met, attempts=tuple(self.attempts), reason=self.met.reason if self.met else reason
        )

    def attempt(self) -> Attempt | None:
        """Return the next attempt; None if none is worth the seconds left."""
        duration_s = self.left_s()
        rate_per_s, _ = self._best(duration_s)
        if not rate_per_s:
            return None
        if self.attempts and self.attempts[-1].problems:
            rate_per_s = self.attempts[-1].rate_per_s
        met_at: list[Verdict] = []  # at the latest looks in a row
        hopeless = 0

        def decided(log: RequestLog) -> bool:
            nonlocal hopeless
            verdict = self._verdict(log)
            met_at[:] = [*met_at, verdict] if verdict.answer == "met" else []
            hopeless = hopeless + 1 if self._is_hopeless(verdict, rate_per_s, duration_s - log.until_s) else 0
            met = len(met_at) >= LOOKS_MET
            return self.stop() or verdict.answer == "violated" or met or hopeless >= LOOKS_HOPELESS

        probe = self.measure(rate_per_s, duration_s, self.seed + 104_729 * len(self.attempts), decided)
        attempt = attempt_of(probe, rate_per_s, (self._verdict(probe.log),), [(one,) for one in met_at])
        self.attempts.append(attempt)
        self.on_attempt(attempt)
        if not attempt.problems:
            seen = evaluate_probe(probe, rate_per_s, (self.limit,))
            self.known = self.known.updated(seen)
            if seen.met:  # above the capacity, late requests come in bursts as long as the run
                self.burst_s = _burst_s(seen.verdict, self.limit, rate_per_s)
        return attempt

    @property
    def _held_per_s(self) -> float:
        return self.met.rate_per_s if self.met else 0.0

    def _best(self, left_s: float) -> tuple[float, float]:
        """Return what is worth most, and its worth; with the shortest bursts if nothing can be met with these."""
        held_per_s = self._held_per_s
        for burst_s in (self.burst_s, least_burst(1.0, self.limit.limit_ms)):
            rate_per_s, worth = self.known.best_test(
                left_s=max(MIN_RUN_S, left_s - self.warmup_s),
                burst_s=burst_s,
                allowed=self.limit.allowed,
                most_per_s=self.most_per_s,
                confidence=self.confidence,
                held_per_s=held_per_s,
            )
            if rate_per_s or held_per_s:
                break
        return (rate_per_s, worth) if worth >= LEAST_GAIN * held_per_s else (0.0, 0.0)

    def _is_hopeless(self, verdict: Verdict, rate_per_s: float, left_s: float) -> bool:
        """True if another rate is worth more, even if one burst so far was bad luck."""
        _, other_per_s = self._best(left_s)
        return is_hopeless(verdict, rate_per_s, left_s * (1 - other_per_s / (rate_per_s - self._held_per_s)))

    def _verdict(self, log: RequestLog) -> Verdict:
        return certify(log, self.limit, confidence=self.confidence)


def _burst_s(seen: Verdict | None, limit: LatencyLimit, rate_per_s: float) -> float:
    """Return the mean size of bursts as the seconds in which so many requests arrive."""
    burst = 0.0 if seen is None or math.isnan(seen.burst) else seen.burst
    return max(burst / rate_per_s, least_burst(1.0, limit.limit_ms))


def _counted_s(attempts: Sequence[Attempt]) -> float:
    """Return the seconds of load that count against the budget; never 0, so that attempts come to an end."""
    return sum(max(attempt.load_s, MIN_RUN_S) for attempt in attempts)


def attempt_of(
    probe: Probe, rate_per_s: float, at_the_end: tuple[Verdict, ...], met_at: Sequence[tuple[Verdict, ...]]
) -> Attempt:
    """Return what a run at this rate showed: by the verdicts at its end, or at the looks that ended it as met.

    The answer that ended a run stands, whatever came in afterwards (see `slo_test`); otherwise bursts that look
    slightly longer at the end would waste the whole run.
    """
    decided = len(met_at) >= LOOKS_MET and combined_answer(at_the_end) == "inconclusive"
    verdict, *others = met_at[-1] if decided else at_the_end
    return Attempt(
        rate_per_s=rate_per_s,
        load_s=float(probe.log.done_ns.max()) / 1e9 if len(probe.log) else 0.0,
        verdict=verdict,
        overloaded=probe.overloaded or any(one.overloaded for one in (verdict, *others)),
        problems=probe.problems,
        others=tuple(others),
    )


def is_hopeless(verdict: Verdict, rate_per_s: float, left_s: float) -> bool:
    """True if a run would stay inconclusive for `left_s` more seconds even if one burst so far was bad luck.

    False before its violation budget covers half a burst of the usual size.
    """
    burst = min(verdict.burst, _LONGEST_BURSTS_WAITED_FOR * _least_burst(verdict.limit.limit_ms, rate_per_s))
    if not verdict.n * (verdict.limit.allowed) >= _MIN_BURSTS_BEFORE_HOPELESS * burst:
        return False
    if verdict.n < MIN_RUN_S * rate_per_s:
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
    allowed = verdict.limit.allowed
    share = max(0.0, verdict.violations - forgiven_bursts * verdict.burst) / max(verdict.n, 1)
    if not share < allowed or math.isnan(verdict.burst):
        return math.inf
    needed = bursts_needed(share / allowed, verdict.confidence) * verdict.burst / allowed
    return max(0.0, needed - verdict.n) / rate_per_s
