"""Decide whether an audit met its limits, count audits, and read the CPU time that the hypervisor stole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.bounds import lower_bound
from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.records.record import Answer
from search.records.slo import Slo

WARMUP_S = 2.0
CONFIDENCE = 0.95


def audited_log(log: RequestLog, slo: Slo) -> dict[str, Any]:
    """Return the figures of an audit; failed requests are over every limit. None: no such figure."""
    latency_ms = np.where(log.failed, np.inf, log.latency_ns / 1e6)
    if not len(latency_ms):
        return {"requests": 0, "p50_ms": None, "p99_ms": None, "share_over_limit": None, "met": False}
    p50_ms, p99_ms = np.quantile(latency_ms, (0.5, 0.99), method="inverted_cdf")
    return {
        "requests": len(log),
        "p50_ms": none_if_not_finite(float(p50_ms)),
        "p99_ms": none_if_not_finite(float(p99_ms)),
        "share_over_limit": float(np.mean(latency_ms > slo.first.limit_ms)),
        "met": all(np.mean(latency_ms > limit.limit_ms) <= 1 - limit.quantile for limit in slo.limits),
    }


def answer_of(figures: Mapping[str, Any], problems: Sequence[str], disturbed: str | None = None) -> Answer:
    """Return the answer: inconclusive if the client was late, others used the machine, or nothing was sent."""
    if problems or disturbed or not figures["requests"]:
        return "inconclusive"
    return "met" if figures["met"] else "violated"


def summary(answers: Counter[Answer]) -> str:
    """Return a summary such as `met 3 of 4, so 24.8 % or more of such audits are (95%); 1 not decided`.

    The bound is Clopper and Pearson's, one-sided. Audits that were not decided count on neither side.
    """
    decided = answers["met"] + answers["violated"]
    least = lower_bound(answers["met"], decided, confidence=CONFIDENCE)
    percent = math.floor(1000 * least) / 10  # not rounded up
    bound = f", so {percent:g} % or more of such audits are ({CONFIDENCE:.0%})" if decided else ""
    rest = f"; {answers['inconclusive']} not decided" if answers["inconclusive"] else ""
    return f"met {answers['met']} of {decided}{bound}{rest}"


def cpu_ticks() -> dict[str, int]:
    """Return the ticks of all processors since boot: those stolen by the hypervisor, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return {"steal": ticks[7], "all": sum(ticks)}


def stolen_share(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the stolen share of all processors' time between two readings of `cpu_ticks`."""
    return (after["steal"] - before["steal"]) / max(1, after["all"] - before["all"])
