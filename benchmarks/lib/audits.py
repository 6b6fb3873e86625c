"""Decide whether an audit kept its limits, and read how much CPU time the hypervisor stole meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.records.record import Answer
from search.records.slo import Slo

WARMUP_S = 2.0


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


def cpu_ticks() -> dict[str, int]:
    """Return the ticks of all processors since boot: those stolen by the hypervisor, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return {"steal": ticks[7], "all": sum(ticks)}


def stolen_share(before: dict[str, int], after: dict[str, int]) -> float:
    """Return the stolen share of all processors' time between two readings of `cpu_ticks`."""
    return (after["steal"] - before["steal"]) / max(1, after["all"] - before["all"])
