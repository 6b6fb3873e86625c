"""Check a log against each limit, bound its p99, and report a change in its middle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from loadgen.measurement.request_log import FAILED_NS, RequestLog, none_if_not_finite, percentiles_ns
from loadgen.measurement.streams import came_at_once
from loadgen.records.formats import format_percent
from loadgen.records.record import CheckRecord
from loadgen.spec.limits import Kind, LatencyLimit, Limits
from loadgen.statistics.confirm import shortest_s
from loadgen.statistics.dependence import MIN_BLOCKS, least_burst
from loadgen.statistics.sequential import fewest_violations, most_violations, requests_needed
from loadgen.statistics.slo_test import Verdict, certify
from loadgen.statistics.steady_state import left_out_ns

_NS_PER_MS = 1e6
_SPARE_TIME = 1.25
_MIN_TIMES_LONGER, _MAX_TIMES_LONGER = 2.0, 8.0
"""An advised duration is 2 to 8 times that of the run. Near the limit, the share of violations in a run is so
uncertain that equal runs would get advice from seconds to hours; after 8 times the length it is known better."""

# Shorter runs do not show how their requests depend on each other (see `dependence`).
_MIN_S = 1.0
_FEWEST_REQUESTS = 170
_UNKNOWN_BURST = 2.0  # independent requests look like this at most, in a run that is just long enough


def judge(log: RequestLog, limits: Limits, decided: Sequence[Verdict] = ()) -> tuple[CheckRecord, ...]:
    """Return a check per limit, in the order of the quantiles, failures last.

    `decided` are verdicts on the latency limits that ended the run, and stand; none: the whole log decides.
    """
    checks = [_check_of(verdict, log.until_s) for verdict in decided]
    checks = checks or [_check_bounds(log, limit, limits.confidence) for limit in limits.latency]
    if limits.max_error_ratio is not None:
        checks.append(_check_errors(log, limits.max_error_ratio, limits.confidence))
    return tuple(checks)


def _check_bounds(log: RequestLog, limit: LatencyLimit, confidence: float) -> CheckRecord:
    """Check a limit by the most that the times can be; what that does not show as met, by the least."""
    most = _check_of(certify(log, limit, confidence=confidence), log.until_s)
    if most.answer == "met" or log.streams is None or not (at_once := came_at_once(log.streams)).any():
        return most
    streams = log.streams.copy()
    streams["tokens_later"][at_once] = streams["tokens_first"][at_once]
    least = _check_of(certify(replace(log, streams=streams), limit, confidence=confidence), log.until_s)
    if least.answer == "violated" or least.violations == most.violations:
        return least if least.answer == "violated" else most
    reason = "tokens that came at once leave open whether they were in time, and a longer run does not tell"
    return most.model_copy(update={"answer": "inconclusive", "reason": reason, "needed_s": None})


def _check_of(verdict: Verdict, last_s: float) -> CheckRecord:
    limit = verdict.limit
    check = _share_check(limit.text, limit.kind, limit.allowed, verdict, last_s)
    if limit.kind == "attainment":
        return check
    return check.model_copy(
        update={
            "quantile": limit.quantile,
            "limit": limit.limit_ms,
            "observed": none_if_not_finite(verdict.latency_ms),
            "low": none_if_not_finite(verdict.latency_lower_ms) or None,
            "high": none_if_not_finite(verdict.latency_upper_ms),
        }
    )


def _check_errors(log: RequestLog, max_ratio: float, confidence: float) -> CheckRecord:
    """Check that at most `max_ratio` of all requests fail. For 0, only this run counts: no run can prove never."""
    if max_ratio == 0:
        return _no_errors_check(len(log), int(np.count_nonzero(log.outcome)), confidence)
    # With zero latencies, only failures are over a limit.
    log = replace(log, sent_ns=log.scheduled_ns, done_ns=log.scheduled_ns, colocated=None, streams=None)
    verdict = certify(log, LatencyLimit(limit_ms=1.0, quantile=1 - max_ratio), confidence=confidence)
    check = _share_check(f"errors <= {format_percent(max_ratio)}", "errors", max_ratio, verdict, log.until_s)
    return check.model_copy(update={"reason": check.reason.replace("failed or took over 1 ms", "failed")})


def _share_check(name: str, kind: Kind, allowed: float, verdict: Verdict, last_s: float) -> CheckRecord:
    return CheckRecord(
        name=name,
        kind=kind,
        quantile=None,
        limit=allowed,
        answer=verdict.answer,
        observed=none_if_not_finite(verdict.share),
        low=verdict.share_lower,
        high=verdict.share_upper,
        confidence=verdict.confidence,
        requests=verdict.n,
        violations=verdict.violations,
        reason=verdict.reason,
        needed_s=needed_s(last_s, verdict),
    )


def _no_errors_check(n: int, failures: int, confidence: float) -> CheckRecord:
    return CheckRecord(
        name=f"errors <= {format_percent(0.0)}",
        kind="errors",
        quantile=None,
        limit=0.0,
        answer="violated" if failures else "met" if n else "inconclusive",
        observed=failures / n if n else None,
        low=None,
        high=None,
        confidence=confidence,
        requests=n,
        violations=failures,
        reason=f"{failures} of {n} requests failed",
        needed_s=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class P99Bounds:
    """Bounds of p99, independent of the limit, to compare runs with different limits; None if there is none.

    `needed_s`: without an upper bound, about how long a run has to be to get one; None if unknown.
    """

    low_ms: float | None = None
    high_ms: float | None = None
    needed_s: float | None = None


def p99_bounds(log: RequestLog, confidence: float) -> P99Bounds:
    """Return the bounds of p99 of a run."""
    if not len(log):
        return P99Bounds()
    (p99_ns,) = percentiles_ns(log.latency_failures_last_ns, (0.99,))
    if p99_ns == FAILED_NS:
        return P99Bounds()
    verdict = certify(log, LatencyLimit(limit_ms=max(1e-3, p99_ns / _NS_PER_MS)), confidence=confidence)
    high_ms = none_if_not_finite(verdict.latency_upper_ms)
    return P99Bounds(
        low_ms=none_if_not_finite(verdict.latency_lower_ms) or None,
        high_ms=high_ms,
        needed_s=_bounded_after_s(log.until_s, verdict) if high_ms is None else None,
    )


def _bounded_after_s(last_s: float, verdict: Verdict) -> float | None:
    """Return the length of a run with enough requests for an upper bound, at this rate and burst size.

    With so many requests, no violation at all would be surely few enough.
    """
    span_s = last_s - verdict.steady_from_s
    if not verdict.n or span_s <= 0:
        return None
    burst = 1.0 if math.isnan(verdict.burst) else verdict.burst
    n = max(_FEWEST_REQUESTS, requests_needed(0, verdict.limit.allowed, burst, verdict.confidence))
    # The bursts of a longer run are known only then, and are seldom exactly as long.
    return verdict.steady_from_s + max(_MIN_S, _SPARE_TIME * n / verdict.n * span_s)


def shortest_run_s(limit: LatencyLimit, rate_per_s: float, confidence: float) -> float:
    """Return the length of a run at a rate that shows a limit as met if no request is over it.

    The steady state may begin as late as in its middle, so it is twice as long as the steady part has to be.
    """
    judged = max(_FEWEST_REQUESTS, shortest_s(limit, rate_per_s, confidence) * rate_per_s)
    return left_out_ns(limit.steady_after_ms) / 1e9 + max(_MIN_S, 2 * judged / rate_per_s)


def needed_s(last_s: float, verdict: Verdict) -> float | None:
    """Return about how long a run would have to be to decide, if it goes on like this; None if unknown.

    `last_s` is the due time of its last request. The share of violations and the burst size stay the same; the run
    gets longer until a bound is passed, but at most eight times as long, or as long as a run takes that has no
    violation and the shortest bursts.
    """
    if verdict.answer != "inconclusive" or not verdict.n:
        return None
    span_s = last_s - verdict.steady_from_s
    if span_s <= 0:
        return None
    allowed, confidence = verdict.limit.allowed, verdict.confidence
    shortest_burst = max(_UNKNOWN_BURST, least_burst(verdict.n / span_s, verdict.limit.limit_ms))
    burst = shortest_burst if math.isnan(verdict.burst) else verdict.burst
    least = 0 if verdict.violations else _SPARE_TIME * requests_needed(0, allowed, burst, confidence)
    most_times = max(
        _MAX_TIMES_LONGER,
        _MIN_S / span_s,
        _FEWEST_REQUESTS / verdict.n,
        _SPARE_TIME * requests_needed(0, allowed, shortest_burst, confidence) / verdict.n,
    )
    times = max(_MIN_TIMES_LONGER, _MIN_S / span_s, _FEWEST_REQUESTS / verdict.n, least / verdict.n)
    while times < most_times:
        n, violations = round(times * verdict.n), times * verdict.violations
        few, many = (bound(n, allowed, burst, confidence) for bound in (most_violations, fewest_violations))
        if violations <= few or violations >= many:
            break
        times *= _SPARE_TIME
    return verdict.steady_from_s + min(times, most_times) * span_s


class FailFast:
    """Judges a growing log at each look until a limit is violated; `violated_by` are the checks of that look."""

    def __init__(self, limits: Limits) -> None:
        self.violated_by: tuple[CheckRecord, ...] = ()
        self._limits = limits

    def look(self, log: RequestLog) -> bool:
        """Return True once a limit is violated."""
        if not self.violated_by:
            checks = judge(log, self._limits)
            self.violated_by = checks if any(check.answer == "violated" for check in checks) else ()
        return bool(self.violated_by)


MIN_LATE, NEARLY_ALL_LATE = 20, 0.9
"""A run changed in its middle if a half has 90 % of 20 or more late requests, and these are more than allowed.

A test of a limit assumes one machine and one server: more of the same load decides nothing if they changed.
"""

MIN_PARTS = 3
"""At least 3 of the 4 parts of that half have late requests: a single burst is no change.

Of 450 runs of 8 s on simulated servers that stay the same, at 0.95 to 1.02 of their capacity, 28 had nearly all
late requests in one half, and 12 had them in 3 parts of it.
"""


def change_of(log: RequestLog, limits: Sequence[LatencyLimit]) -> str | None:
    """Return how a run changed in its middle, in words, by the first limit that shows it; None if it did not.

    Late requests are those that failed or took longer than the limit. The warm-up does not count.
    """
    changes = (_change(log.judged_by(limit), limit) for limit in limits)
    return next(filter(None, changes), None)


def _change(log: RequestLog, limit: LatencyLimit) -> str | None:
    rows, late = _late_in_parts(log, limit)
    total, halves = sum(late), (late[: MIN_BLOCKS // 2], late[MIN_BLOCKS // 2 :])
    most = max(halves, key=sum)
    if total < max(MIN_LATE, limit.allowed * rows) or sum(most) < NEARLY_ALL_LATE * total:
        return None
    if sum(part > 0 for part in most) < MIN_PARTS:
        return None
    half = "first" if most is halves[0] else "second"
    return f"{sum(most):,} of the {total:,} requests over {limit.text} came in the {half} half of the run"


def _late_in_parts(log: RequestLog, limit: LatencyLimit) -> tuple[int, list[int]]:
    """Return the number of requests after the warm-up, and how many were late in each part of equal length."""
    if not len(log):
        return 0, [0] * MIN_BLOCKS
    start_ns, end_ns = left_out_ns(limit.steady_after_ms), int(log.scheduled_ns[-1])
    edges_ns = np.linspace(start_ns, max(start_ns, end_ns), MIN_BLOCKS + 1)[:-1]
    edges = [*np.searchsorted(log.scheduled_ns, edges_ns).tolist(), len(log)]
    late = log.latency_failures_last_ns > limit.limit_ns
    return len(log) - edges[0], [int(np.count_nonzero(late[first:last])) for first, last in pairwise(edges)]
