"""What a log says about each limit, and about p99 itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from loadgen.certify import Verdict, certify
from loadgen.evidence import fewest_violations, most_violations, requests_needed
from loadgen.measurement import RequestLog, percentiles_ns
from loadgen.reports.record import CheckRecord
from loadgen.reports.words import percent

if TYPE_CHECKING:
    from loadgen.order import LatencyLimit, Limits

_NS_PER_MS = 1e6
_LONGER = 1.25
_MOST_TIMES_LONGER = 1000
# Runs shorter than these show nothing about how their requests depend on each other (loadgen.bursts).
_LEAST_S = 1.0
_LEAST_REQUESTS = 170


def judge(log: RequestLog, limits: Limits) -> tuple[CheckRecord, ...]:
    """A check for each limit, in the order of the quantiles, failures last."""
    checks = [check_latency(log, limit, limits.confidence) for limit in limits.latency]
    if limits.max_error_ratio is not None:
        checks.append(check_errors(log, limits.max_error_ratio, limits.confidence))
    return tuple(checks)


def surely_broken(log: RequestLog, limits: Limits) -> bool:
    """Whether a limit is broken already; may be asked again and again while the log grows."""
    return any(check.answer == "broken" for check in judge(log, limits))


def check_latency(log: RequestLog, limit: LatencyLimit, confidence: float) -> CheckRecord:
    """At least `limit.quantile` of all requests within `limit.limit_ms`; failures are over it."""
    verdict = certify(log, limit_ms=limit.limit_ms, quantile=limit.quantile, confidence=confidence)
    return CheckRecord(
        name=limit.text,
        kind="latency",
        quantile=limit.quantile,
        limit=limit.limit_ms,
        answer=verdict.answer,
        observed=_known(verdict.latency_ms),
        low=_known(verdict.latency_lower_ms) or None,
        high=_known(verdict.latency_upper_ms),
        confidence=confidence,
        requests=verdict.n,
        violations=verdict.violations,
        reason=verdict.reason,
        needed_s=needed_s(log, verdict),
    )


def check_errors(log: RequestLog, max_ratio: float, confidence: float) -> CheckRecord:
    """At most `max_ratio` of all requests fail. For 0 this run alone counts: no run can promise none ever."""
    failures = int(np.count_nonzero(log.failed))
    common = {"name": f"errors <= {percent(max_ratio)}", "kind": "errors", "quantile": None, "limit": max_ratio}
    if max_ratio == 0:
        return CheckRecord.model_validate(
            {
                **common,
                "answer": "broken" if failures else "kept" if len(log) else "undecided",
                "observed": failures / len(log) if len(log) else None,
                "low": None,
                "high": None,
                "confidence": confidence,
                "requests": len(log),
                "violations": failures,
                "reason": f"{failures} of {len(log)} requests failed",
                "needed_s": None,
            }
        )
    verdict = certify(_failures_alone(log), limit_ms=1.0, quantile=1 - max_ratio, confidence=confidence)
    return CheckRecord.model_validate(
        {
            **common,
            "answer": verdict.answer,
            "observed": _known(verdict.share),
            "low": verdict.share_lower,
            "high": verdict.share_upper,
            "confidence": confidence,
            "requests": verdict.n,
            "violations": verdict.violations,
            "reason": verdict.reason.replace("failed or took over 1 ms", "failed"),
            "needed_s": needed_s(log, verdict),
        }
    )


def p99_bounds_ms(log: RequestLog, confidence: float) -> tuple[float | None, float | None]:
    """Bounds of p99 whatever the limit, so that runs with different limits compare; None where there is none."""
    if not len(log):
        return None, None
    latency = np.where(log.failed, np.iinfo(np.int64).max, log.latency_ns)
    (p99_ns,) = percentiles_ns(latency, (0.99,))
    if p99_ns == np.iinfo(np.int64).max:
        return None, None
    verdict = certify(log, limit_ms=max(1e-3, p99_ns / _NS_PER_MS), quantile=0.99, confidence=confidence)
    return _known(verdict.latency_lower_ms) or None, _known(verdict.latency_upper_ms)


def needed_s(log: RequestLog, verdict: Verdict) -> float | None:
    """About how long a run would have to be to decide, if it goes on as it went; None where that is not known.

    The share of violations and their bursts stay as they are; the run gets longer until a bound is passed.
    """
    if verdict.answer != "undecided" or not verdict.n or not len(log):
        return None
    span_s = float(log.scheduled_ns[-1]) / 1e9 - verdict.steady_from_s
    if span_s <= 0:
        return None
    allowed, confidence = 1 - verdict.quantile, verdict.confidence
    burst = 1.0 if math.isnan(verdict.burst) else verdict.burst
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
