"""Is the latency quantile within its limit: yes, no, or not yet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadgen.bursts import Bursts, bursts
from loadgen.evidence import fewest_violations, most_violations, requests_needed, share_at_least, share_at_most
from loadgen.measurement import FAILED_NS
from loadgen.warmup import Steady, steady_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog
    from loadgen.times import Times

Answer = Literal["kept", "broken", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run says about the promise that a share `quantile` of all requests is answered within `limit_ms`.

    All figures are of the steady part, `n` requests from `steady_from_s` on, `violations` of them failed or over
    the limit. Each bound alone holds with `confidence`, even when the run is looked at again and again: "kept"
    means `share_upper` <= 1 - quantile and `latency_upper_ms` <= limit, "broken" that a lower bound is beyond.
    Latencies are inf where that many requests failed or nothing can be bounded, NaN where nothing was measured.
    """

    answer: Answer
    reason: str
    limit_ms: float
    quantile: float
    confidence: float
    steady_from_s: float
    stationary: bool
    overloaded: bool  # more requests left than came back, and "broken" for that reason alone
    n: int
    violations: int
    share_lower: float
    share_upper: float
    vif: float  # variance inflation by bursts, an upper bound; NaN: the run is too short to tell
    latency_ms: float  # the quantile itself, nearest rank
    latency_lower_ms: float
    latency_upper_ms: float

    @property
    def burst(self) -> float:
        """The mean number of violations in one burst; NaN when the run is too short to tell."""
        return self.vif if math.isnan(self.vif) else max(1.0, self.vif / 2)

    @property
    def share(self) -> float:
        """Violations per request; NaN without requests."""
        return self.violations / self.n if self.n else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A share `quantile` of all requests is answered within `limit_ms`; asked with a confidence."""

    limit_ms: float
    quantile: float
    confidence: float

    def __post_init__(self) -> None:
        if not self.limit_ms > 0 or not 0 < self.quantile < 1 or not 0 < self.confidence < 1:
            raise ValueError(
                f"limit_ms {self.limit_ms} must be > 0, quantile {self.quantile} and confidence "
                f"{self.confidence} between 0 and 1"
            )

    @property
    def limit_ns(self) -> int:
        """The limit in ns."""
        return round(self.limit_ms * 1e6)

    @property
    def allowed(self) -> float:
        """The share that may be slower."""
        return 1.0 - self.quantile


def certify(
    log: RequestLog, *, limit_ms: float, quantile: float = 0.99, confidence: float = 0.95, warmup_s: float = 0.0
) -> Verdict:
    """Whether a share `quantile` of all requests is answered within `limit_ms`: "kept", "broken" or "undecided".

    May be asked as often as one likes while the log grows, and the first answer other than "undecided" be taken:
    the confidence counts all looks. The log of a run that is still going on must leave nothing out that was due
    before its last request; requests in flight that are late already count as failed.
    """
    promise = Promise(limit_ms=limit_ms, quantile=quantile, confidence=confidence)
    steady = steady_state(log, limit_ms=limit_ms, warmup_s=warmup_s)
    return verdict_of_steady(steady, lambda start_ns: _judge(promise, log, start_ns))


def verdict_of_steady(steady: Steady, judge: Callable[[int], Verdict]) -> Verdict:
    """The verdict on the steady part, overruled where the run as a whole speaks against it.

    `judge` gives the verdict on the requests that were due from a time on.
    """
    verdict = judge(steady.earliest_ns)
    if verdict.answer != "undecided" and steady.start_ns > steady.earliest_ns:
        later = judge(steady.start_ns)
        verdict = later if later.answer == verdict.answer else replace(verdict, answer="undecided")
    verdict = replace(verdict, stationary=steady.stationary and not steady.backed_up)
    if steady.growing:
        reason = "overloaded: over 3 x rate x limit requests were waiting, and more and more for a second"
        return replace(verdict, answer="broken", overloaded=True, reason=reason)
    if verdict.answer == "kept" and not verdict.stationary:
        return replace(verdict, answer="undecided", reason=f"{verdict.reason}; but the latencies had not settled")
    if verdict.answer == "undecided" and steady.start_ns > steady.earliest_ns:
        unlike_s = (steady.start_ns - steady.earliest_ns) / 1e9
        return replace(
            verdict, reason=f"{verdict.reason}; the first {unlike_s:.3g} s after the warm-up are unlike the rest"
        )
    return verdict


def _judge(promise: Promise, log: RequestLog, start_ns: int) -> Verdict:
    """The verdict on the requests that were due from `start_ns` on, as if they were stationary."""
    first = int(np.searchsorted(log.scheduled_ns, start_ns))
    latency = log.latency_failures_last.between(first, len(log))
    return verdict_of_counts(
        promise,
        n=len(latency),
        violations=latency.over(promise.limit_ns),
        found=bursts(log.scheduled_ns[first:], latency, limit_ns=promise.limit_ns, start_ns=start_ns),
        start_ns=start_ns,
        order_statistics_ms=lambda thresholds: _order_statistics_ms(latency, promise.quantile, thresholds),
    )


def verdict_of_counts(
    promise: Promise,
    *,
    n: int,
    violations: int,
    found: Bursts | None,
    start_ns: int,
    order_statistics_ms: Callable[[tuple[int, int]], tuple[float, float, float]],
) -> Verdict:
    """The verdict on so many violations.

    `order_statistics_ms` gives the quantile and its upper and lower bound for the most violations that are surely
    few enough and the fewest that are surely too many.
    """
    thresholds = _thresholds(promise, n, found)
    share_lower, share_upper = _share_bounds(promise, n, violations, found)
    answer, reason = _answer(promise, n, violations, thresholds, found)
    point, upper, lower = order_statistics_ms(thresholds)
    return Verdict(
        answer=answer,
        reason=reason,
        limit_ms=promise.limit_ms,
        quantile=promise.quantile,
        confidence=promise.confidence,
        steady_from_s=start_ns / 1e9,
        stationary=True,
        overloaded=False,
        n=n,
        violations=violations,
        share_lower=share_lower,
        share_upper=share_upper,
        vif=math.nan if found is None else found.vif,
        latency_ms=point,
        latency_lower_ms=lower,
        latency_upper_ms=upper,
    )


def _share_bounds(promise: Promise, n: int, violations: int, found: Bursts | None) -> tuple[float, float]:
    if found is None:
        return 0.0, 1.0
    return (
        share_at_least(violations, n, found.size_to_break, promise.confidence),
        share_at_most(violations, n, found.size, promise.confidence),
    )


def _thresholds(promise: Promise, n: int, found: Bursts | None) -> tuple[int, int]:
    """The most violations that are surely few enough (-1: none are), the fewest that are surely too many."""
    if found is None:
        return -1, n + 1
    return (
        most_violations(n, promise.allowed, found.size, promise.confidence),
        fewest_violations(n, promise.allowed, found.size_to_break, promise.confidence),
    )


def _answer(
    promise: Promise, n: int, violations: int, thresholds: tuple[int, int], found: Bursts | None
) -> tuple[Answer, str]:
    if found is None:
        return "undecided", f"{n} requests after the warm-up are too short a run to tell how they depend"
    most, fewest = thresholds
    seen = f"{violations} of {n} requests failed or took over {promise.limit_ms:g} ms"
    if violations <= most:
        return "kept", f"{seen}, and up to {most} are surely few enough at bursts of {found.size:.0f}"
    if violations >= fewest:
        return "broken", f"{seen}, and {fewest} are surely too many at bursts of {found.size_to_break:.0f}"
    needed = requests_needed(violations, promise.allowed, found.size, promise.confidence)
    return "undecided", f"{seen}; at bursts of {found.size:.0f}, {needed} requests would be enough with no more"


def _order_statistics_ms(
    latency: Times, quantile: float, thresholds: tuple[int, int]
) -> tuple[float, float, float]:
    """The quantile and its upper and lower bound: limits below and above which the answer would be different."""
    n, (most, fewest) = len(latency), thresholds
    if n == 0:
        return math.nan, math.inf, 0.0
    ranks = [max(0, math.ceil(quantile * n) - 1), n - 1 - max(most, 0), max(n - fewest, 0)]
    point, upper, lower = (math.inf if time == FAILED_NS else time / 1e6 for time in latency.at_ranks(ranks))
    return point, upper if most >= 0 else math.inf, lower if fewest <= n else 0.0
