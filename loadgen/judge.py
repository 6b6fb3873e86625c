"""What a log says about each limit, and about p99 itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loadgen.bursts import least_burst
from loadgen.certify import Verdict, certify
from loadgen.certify_tally import certify_failures, certify_tally, quantile_bounds_ms
from loadgen.evidence import fewest_violations, most_violations, requests_needed
from loadgen.measurement import FAILED_NS, RequestLog, known
from loadgen.reports.record import CheckRecord
from loadgen.reports.words import percent

if TYPE_CHECKING:
    from loadgen.order import LatencyLimit, Limits
    from loadgen.tally import Tally

_NS_PER_MS = 1e6
_LONGER = 1.25
_MOST_TIMES_LONGER = 1000
# Runs shorter than these show nothing about how their requests depend on each other (loadgen.bursts).
_LEAST_S = 1.0
_LEAST_REQUESTS = 170
_UNKNOWN_BURST = 2.0  # what independent requests look like at the most in a run that is just long enough


def judge(log: RequestLog, limits: Limits) -> tuple[CheckRecord, ...]:
    """A check for each limit, in the order of the quantiles, failures last."""
    checks = [check_latency(log, limit, limits.confidence) for limit in limits.latency]
    if limits.max_error_ratio is not None:
        checks.append(check_errors(log, limits.max_error_ratio, limits.confidence))
    return tuple(checks)


def judge_tally(tally: Tally, limits: Limits) -> tuple[CheckRecord, ...]:
    """The same of a run of which only a tally was kept."""
    confidence, last_s = limits.confidence, tally.last_due_ns / 1e9
    checks = []
    for limit in limits.latency:
        verdict = certify_tally(tally, limit_ms=limit.limit_ms, quantile=limit.quantile, confidence=confidence)
        checks.append(_latency_check(limit, verdict, last_s))
    if limits.max_error_ratio == 0:
        checks.append(_no_errors_check(len(tally), tally.failures, confidence))
    elif limits.max_error_ratio is not None:
        verdict = certify_failures(tally, max_ratio=limits.max_error_ratio, confidence=confidence)
        checks.append(_errors_check(limits.max_error_ratio, verdict, last_s))
    return tuple(checks)


def any_broken(checks: tuple[CheckRecord, ...]) -> bool:
    """Whether a limit is broken already; may be asked again and again while the run goes on."""
    return any(check.answer == "broken" for check in checks)


def check_latency(log: RequestLog, limit: LatencyLimit, confidence: float) -> CheckRecord:
    """At least `limit.quantile` of all requests within `limit.limit_ms`; failures are over it."""
    verdict = certify(log, limit_ms=limit.limit_ms, quantile=limit.quantile, confidence=confidence)
    return _latency_check(limit, verdict, _last_s(log))


def _latency_check(limit: LatencyLimit, verdict: Verdict, last_s: float) -> CheckRecord:
    return CheckRecord(
        name=limit.text,
        kind="latency",
        quantile=limit.quantile,
        limit=limit.limit_ms,
        answer=verdict.answer,
        observed=known(verdict.latency_ms),
        low=known(verdict.latency_lower_ms) or None,
        high=known(verdict.latency_upper_ms),
        confidence=verdict.confidence,
        requests=verdict.n,
        violations=verdict.violations,
        reason=verdict.reason,
        needed_s=needed_s(last_s, verdict),
    )


def check_errors(log: RequestLog, max_ratio: float, confidence: float) -> CheckRecord:
    """At most `max_ratio` of all requests fail. For 0 this run alone counts: no run can promise none ever."""
    if max_ratio == 0:
        return _no_errors_check(len(log), int(np.count_nonzero(log.failed)), confidence)
    verdict = certify(_failures_alone(log), limit_ms=1.0, quantile=1 - max_ratio, confidence=confidence)
    return _errors_check(max_ratio, verdict, _last_s(log))


def _no_errors_check(n: int, failures: int, confidence: float) -> CheckRecord:
    return CheckRecord(
        name=f"errors <= {percent(0.0)}",
        kind="errors",
        quantile=None,
        limit=0.0,
        answer="broken" if failures else "kept" if n else "undecided",
        observed=failures / n if n else None,
        low=None,
        high=None,
        confidence=confidence,
        requests=n,
        violations=failures,
        reason=f"{failures} of {n} requests failed",
        needed_s=None,
    )


def _errors_check(max_ratio: float, verdict: Verdict, last_s: float) -> CheckRecord:
    return CheckRecord(
        name=f"errors <= {percent(max_ratio)}",
        kind="errors",
        quantile=None,
        limit=max_ratio,
        answer=verdict.answer,
        observed=known(verdict.share),
        low=verdict.share_lower,
        high=verdict.share_upper,
        confidence=verdict.confidence,
        requests=verdict.n,
        violations=verdict.violations,
        reason=verdict.reason.replace("failed or took over 1 ms", "failed"),
        needed_s=needed_s(last_s, verdict),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class P99Bounds:
    """Bounds of p99 whatever the limit, so that runs with different limits compare; None where there is none.

    `needed_s`: without an upper bound, about how long a run has to be to get one; None where that is not known.
    """

    low_ms: float | None = None
    high_ms: float | None = None
    needed_s: float | None = None


def p99_bounds(log: RequestLog, confidence: float) -> P99Bounds:
    """The bounds that a run gives."""
    if not len(log):
        return P99Bounds()
    (p99_ns,) = log.latency_failures_last.percentiles_ns((0.99,))
    if p99_ns == FAILED_NS:
        return P99Bounds()
    verdict = certify(log, limit_ms=max(1e-3, p99_ns / _NS_PER_MS), quantile=0.99, confidence=confidence)
    high_ms = known(verdict.latency_upper_ms)
    return P99Bounds(
        low_ms=known(verdict.latency_lower_ms) or None,
        high_ms=high_ms,
        needed_s=_bounded_after_s(_last_s(log), verdict) if high_ms is None else None,
    )


def p99_bounds_of_tally(tally: Tally, confidence: float) -> P99Bounds:
    """The same of a run of which only a tally was kept."""
    low_ms, high_ms = quantile_bounds_ms(tally, 0.99, confidence)
    return P99Bounds(low_ms=known(low_ms) or None, high_ms=known(high_ms))


def _bounded_after_s(last_s: float, verdict: Verdict) -> float | None:
    """When there will be requests enough for an upper bound of the quantile, at the same rate and bursts.

    That is when not a single violation among them would surely be few enough.
    """
    span_s = last_s - verdict.steady_from_s
    if not verdict.n or span_s <= 0:
        return None
    burst = 1.0 if math.isnan(verdict.burst) else verdict.burst
    n = max(_LEAST_REQUESTS, requests_needed(0, 1 - verdict.quantile, burst, verdict.confidence))
    # The bursts of a longer run are known only then, and are seldom exactly as long.
    return verdict.steady_from_s + max(_LEAST_S, _LONGER * n / verdict.n * span_s)


def needed_s(last_s: float, verdict: Verdict) -> float | None:
    """About how long a run would have to be to decide, if it goes on as it went; None where that is not known.

    `last_s` is when its last request was due. The share of violations and their bursts stay as they are; the run
    gets longer until a bound is passed.
    """
    if verdict.answer != "undecided" or not verdict.n:
        return None
    span_s = last_s - verdict.steady_from_s
    if span_s <= 0:
        return None
    allowed, confidence = 1 - verdict.quantile, verdict.confidence
    burst = verdict.burst
    if math.isnan(burst):
        burst = max(_UNKNOWN_BURST, least_burst(verdict.n / span_s, verdict.limit_ms))
    least = 0 if verdict.violations else requests_needed(0, allowed, burst, confidence)
    times = max(_LONGER, _LEAST_S / span_s, _LEAST_REQUESTS / verdict.n, least / verdict.n)
    while times < _MOST_TIMES_LONGER:
        n, violations = round(times * verdict.n), times * verdict.violations
        if violations <= most_violations(n, allowed, burst, confidence) or violations >= fewest_violations(
            n, allowed, burst, confidence
        ):
            return verdict.steady_from_s + times * span_s
        times *= _LONGER
    return None


def _failures_alone(log: RequestLog) -> RequestLog:
    """The log with every answer at once, so that nothing but failures is over a limit."""
    return RequestLog(
        scheduled_ns=log.scheduled_ns, sent_ns=log.scheduled_ns, done_ns=log.scheduled_ns, outcome=log.outcome
    )


def _last_s(log: RequestLog) -> float:
    return float(log.scheduled_ns[-1]) / 1e9 if len(log) else 0.0
