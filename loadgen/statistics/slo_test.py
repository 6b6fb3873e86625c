"""The sequential SLO test of one run, for one latency limit or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import FAILED_NS, RequestLog, concatenate
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.dependence import Clustering, bursts
from loadgen.statistics.sequential import (
    fewest_violations,
    most_violations,
    requests_needed,
    share_at_least,
    share_at_most,
)
from loadgen.statistics.steady_state import Steady, steady_state

Answer = Literal["met", "violated", "inconclusive"]
OVERLOADED = "overloaded: over 3 x rate x limit requests were waiting, and more and more for a second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the test of one run against one latency limit.

    All figures are of the steady part, `n` requests from `steady_from_s` on, `violations` of them failed or over
    the limit. Each bound alone holds with `confidence`, even when the run is looked at again and again: "met"
    means `share_upper` <= 1 - quantile and `latency_upper_ms` <= limit, "violated" that a lower bound is beyond.
    Latencies are inf if that many requests failed or there is no bound, NaN if nothing was measured.
    """

    answer: Answer
    reason: str
    limit: LatencyLimit
    confidence: float
    steady_from_s: float
    stationary: bool
    overloaded: bool  # more requests left than came back, and "violated" for that reason alone
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
        """The mean number of violations per burst; NaN if the run is too short."""
        return self.vif if math.isnan(self.vif) else max(1.0, self.vif / 2)

    @property
    def share(self) -> float:
        """Violations per request; NaN without requests."""
        return self.violations / self.n if self.n else math.nan


def certify(log: RequestLog, limit: LatencyLimit, *, confidence: float = 0.95) -> Verdict:
    """Test whether the limit is met: "met", "violated" or "inconclusive".

    May be called as often as one likes while the log grows, and the first answer other than "inconclusive" taken:
    the confidence covers all looks. The log of a run that is still going on must leave nothing out that was due
    before its last request; requests in flight that are late already count as failed. Raises ValueError for a
    confidence that is not between 0 and 1.
    """
    (verdict,) = certify_each(log, (limit,), confidence=confidence)
    return verdict


def _usual_reply_ms(*logs: RequestLog) -> float:
    """Return the median time of the streams of the run in which they took longest; 0 if there are none."""
    replies_ns = [log.service_ns[~log.failed] for log in logs if log.streams is not None]
    return max((float(np.median(each)) for each in replies_ns if len(each)), default=0.0) / 1e6


def _shared_ms(limit: LatencyLimit, usual_reply_ms: float) -> float:
    """Return the time, of a quarter of which requests may be late together: the limit, or two usual replies.

    A pause is shared by all streams under way, but for the time to the first token of those that have theirs.
    """
    return limit.limit_ms if limit.kind == "ttft" else max(limit.limit_ms, 2 * usual_reply_ms)


def verdict_of_steady(steady: Steady, judge: Callable[[int], Verdict]) -> Verdict:
    """Return the verdict on the steady part, overruled if the run as a whole contradicts it.

    `judge` returns the verdict on the requests that were due from a time on.
    """
    verdict = judge(steady.earliest_ns)
    if verdict.answer != "inconclusive" and steady.start_ns > steady.earliest_ns:
        verdict = _upheld(verdict, judge(steady.start_ns))
    verdict = replace(verdict, stationary=steady.stationary and not steady.backed_up)
    if steady.growing:
        return replace(verdict, answer="violated", overloaded=True, reason=OVERLOADED)
    if verdict.answer == "met" and not verdict.stationary:
        return replace(
            verdict, answer="inconclusive", reason=f"{verdict.reason}; but the latencies had not settled"
        )
    if verdict.answer == "inconclusive" and steady.start_ns > steady.earliest_ns:
        unlike_s = (steady.start_ns - steady.earliest_ns) / 1e9
        return replace(
            verdict, reason=f"{verdict.reason}; the first {unlike_s:.3g} s after the warm-up are unlike the rest"
        )
    return verdict


def _upheld(whole: Verdict, rest: Verdict) -> Verdict:
    """Return the verdict on a run whose beginning is unlike the rest: its answer has to be that on both.

    But a rest with no larger a share of late requests is no reason against "met": it may only be too short.
    """
    if rest.answer == whole.answer:
        return rest
    no_worse = rest.violations * whole.n <= whole.violations * rest.n
    return whole if whole.answer == "met" and no_worse else replace(whole, answer="inconclusive")


def _judge(limit: LatencyLimit, confidence: float, log: RequestLog, start_ns: int, shared_ms: float) -> Verdict:
    """Return the verdict on the requests due from `start_ns` on, as if they were stationary."""
    first = int(np.searchsorted(log.scheduled_ns, start_ns))
    latency_ns = log.rows(first, len(log)).latency_failures_last_ns
    return verdict_of_counts(
        limit,
        confidence,
        n=len(latency_ns),
        violations=int(np.count_nonzero(latency_ns > limit.limit_ns)),
        found=bursts(
            log.scheduled_ns[first:],
            latency_ns,
            limit_ns=limit.limit_ns,
            start_ns=start_ns,
            shared_ms=shared_ms,
        ),
        start_ns=start_ns,
        order_statistics_ms=lambda thresholds: _order_statistics_ms(latency_ns, limit.quantile, thresholds),
    )


def verdict_of_counts(
    limit: LatencyLimit,
    confidence: float,
    *,
    n: int,
    violations: int,
    found: Clustering | None,
    start_ns: int,
    order_statistics_ms: Callable[[tuple[int, int]], tuple[float, float, float]],
) -> Verdict:
    """Return the verdict on this number of violations.

    `order_statistics_ms` returns the quantile, its upper and its lower bound, for the most violations that are
    surely few enough and the fewest that are surely too many.
    """
    thresholds, shares = (-1, n + 1), (0.0, 1.0)  # not even no violation decides anything
    if found is not None:
        few = most_violations(n, limit.allowed, found.size, confidence)
        thresholds = few, fewest_violations(n, limit.allowed, found.size_to_break, confidence)
        least = share_at_least(violations, n, found.size_to_break, confidence)
        shares = least, share_at_most(violations, n, found.size, confidence)
    answer, reason = _answer(limit, confidence, n, violations, thresholds, found)
    point, upper, lower = order_statistics_ms(thresholds)
    return Verdict(
        answer=answer,
        reason=reason,
        limit=limit,
        confidence=confidence,
        steady_from_s=start_ns / 1e9,
        stationary=True,
        overloaded=False,
        n=n,
        violations=violations,
        share_lower=shares[0],
        share_upper=shares[1],
        vif=math.nan if found is None else found.vif,
        latency_ms=point,
        latency_lower_ms=lower,
        latency_upper_ms=upper,
    )


def _answer(
    limit: LatencyLimit,
    confidence: float,
    n: int,
    violations: int,
    thresholds: tuple[int, int],
    found: Clustering | None,
) -> tuple[Answer, str]:
    to = "" if limit.colocated is None else f" to {limit.model}"
    if not n:
        return "inconclusive", f"too short: no request{to} was due after the load had settled"
    seen = f"{violations} of {n} requests{to} failed or {limit.over}"
    if found is None:
        return "inconclusive", f"{seen}; the run is too short to judge how late requests cluster"
    most, fewest = thresholds
    if violations <= most:
        return "met", f"{seen}; up to {most} would pass{_bursts(found.size)}"
    if violations >= fewest:
        return "violated", f"{seen}; {fewest} or more fail{_bursts(found.size_to_break)}"
    needed = requests_needed(violations, limit.allowed, found.size, confidence)
    return "inconclusive", f"{seen}; {needed} requests would be enough with no more late{_bursts(found.size)}"


def _bursts(size: float) -> str:
    return f" (late requests come in bursts of {size:.0f})"


def _order_statistics_ms(
    latency_ns: NDArray[np.int64], quantile: float, thresholds: tuple[int, int]
) -> tuple[float, float, float]:
    """Return the quantile, its upper and its lower bound: limits at which the answer would change.

    Reorders `latency_ns`.
    """
    n, (most, fewest) = len(latency_ns), thresholds
    if n == 0:
        return math.nan, math.inf, 0.0
    ranks = [max(0, math.ceil(quantile * n) - 1), n - 1 - max(most, 0), max(n - fewest, 0)]
    latency_ns.partition(sorted(set(ranks)))
    point, upper, lower = (math.inf if time == FAILED_NS else float(time) / 1e6 for time in latency_ns[ranks])
    return point, upper if most >= 0 else math.inf, lower if fewest <= n else 0.0


def certify_together(
    logs: Sequence[RequestLog], limits: Sequence[LatencyLimit], *, confidence: float = 0.95
) -> tuple[Verdict, ...]:
    """Call `certify` for each limit on runs of one configuration as if they were one, each without its beginning.

    The last run may still be going on. An overload in one of the runs is one of them all.
    """
    if len(logs) == 1:
        return certify_each(logs[0], limits, confidence=confidence)
    each, usual_reply_ms = confidence_of_each(confidence, len(limits)), _usual_reply_ms(*logs)

    def together(limit: LatencyLimit) -> Verdict:
        judged, shared_ms = [log.judged_by(limit) for log in logs], _shared_ms(limit, usual_reply_ms)
        steady = [steady_state(log, limit_ms=limit.steady_after_ms) for log in judged]
        starts = zip(*((one.earliest_ns, one.start_ns) for one in steady), strict=True)
        first, second = (_judge(limit, each, joined(judged, starts_ns), 0, shared_ms) for starts_ns in starts)
        verdict = replace(first, answer=_upheld(first, second).answer)
        if any(one.growing for one in steady):
            verdict = replace(verdict, answer="violated", overloaded=True, reason=OVERLOADED)
        return verdict

    return tuple(together(limit) for limit in limits)


def joined(logs: Sequence[RequestLog], starts_ns: Sequence[int]) -> RequestLog:
    """Return one log of what was due from these times on, each run right after the one before."""
    parts, offset_ns = [], 0
    for log, start_ns in zip(logs, starts_ns, strict=True):
        kept = log.rows(int(np.searchsorted(log.scheduled_ns, start_ns)), len(log))
        parts.append(kept.shifted(offset_ns - start_ns))
        if len(kept):
            offset_ns = int(parts[-1].scheduled_ns[-1]) + 1
    return concatenate(parts)


def certify_each(
    log: RequestLog, limits: Sequence[LatencyLimit], *, confidence: float = 0.95
) -> tuple[Verdict, ...]:
    """Call `certify` for each limit, in order; all verdicts hold together with `confidence`."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must be between 0 and 1")
    each, usual_reply_ms = confidence_of_each(confidence, len(limits)), _usual_reply_ms(log)

    def verdict_on(limit: LatencyLimit) -> Verdict:
        judged, shared_ms = log.judged_by(limit), _shared_ms(limit, usual_reply_ms)
        steady = steady_state(judged, limit_ms=limit.steady_after_ms)
        return verdict_of_steady(steady, lambda start_ns: _judge(limit, each, judged, start_ns, shared_ms))

    return tuple(verdict_on(limit) for limit in limits)


def confidence_of_each(confidence: float, count: int) -> float:
    """Return the confidence of each of `count` statements so that all hold together with `confidence`.

    Bonferroni: whatever their dependence, the probabilities of error add up at most.
    """
    return confidence if count == 1 else 1 - (1 - confidence) / count


def combined_answer(verdicts: Sequence[Verdict]) -> Answer:
    """Return violated if one limit is, met if all are, else inconclusive."""
    answers = {verdict.answer for verdict in verdicts}
    return "violated" if "violated" in answers else "inconclusive" if "inconclusive" in answers else "met"


def deciding_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the first verdict with the combined answer."""
    answer = combined_answer(verdicts)
    return next(verdict for verdict in verdicts if verdict.answer == answer)


def least_headroom(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict with the least headroom; the first if nothing was measured."""
    used = ((one.latency_ms / one.limit.limit_ms, one) for one in verdicts if not math.isnan(one.latency_ms))
    return max(used, key=lambda pair: pair[0], default=(math.nan, verdicts[0]))[1]
