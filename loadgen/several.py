"""Several latency limits on one run, of which every one has to be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loadgen.certify import certify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.certify import Answer, Verdict
    from loadgen.measurement import RequestLog
    from loadgen.order import LatencyLimit


def certify_each(
    log: RequestLog, limits: Sequence[LatencyLimit], *, confidence: float = 0.95
) -> tuple[Verdict, ...]:
    """`loadgen.certify.certify` for each limit, in order; all verdicts hold together with `confidence`."""
    each = confidence_of_each(confidence, len(limits))
    return tuple(
        certify(log, limit_ms=limit.limit_ms, quantile=limit.quantile, confidence=each) for limit in limits
    )


def confidence_of_each(confidence: float, count: int) -> float:
    """What each of `count` statements needs so that all of them hold together with `confidence`.

    Bonferroni: whatever the dependence between them, the chances of error add up at most.
    """
    return confidence if count == 1 else 1 - (1 - confidence) / count


def joint_answer(verdicts: Sequence[Verdict]) -> Answer:
    """Broken as soon as one limit is, kept when every one is."""
    answers = {verdict.answer for verdict in verdicts}
    return "broken" if "broken" in answers else "undecided" if "undecided" in answers else "kept"


def deciding(verdicts: Sequence[Verdict]) -> Verdict:
    """The first verdict that gives the joint answer."""
    answer = joint_answer(verdicts)
    return next(verdict for verdict in verdicts if verdict.answer == answer)


def tightest(verdicts: Sequence[Verdict]) -> Verdict:
    """The one whose quantile is nearest to its limit, or furthest beyond; the first where nothing was measured."""
    return max(verdicts, key=_use_of_limit)


def _use_of_limit(verdict: Verdict) -> float:
    return -math.inf if math.isnan(verdict.latency_ms) else verdict.latency_ms / verdict.limit_ms
