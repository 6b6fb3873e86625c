"""Short load runs, and what they show at a glance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.slo_test import Verdict, certify, least_headroom

NO_REQUEST = "no request was due after the warm-up, so nothing was measured"

Watch: TypeAlias = "Callable[[RequestLog], bool]"
"""Called about every 0.5 s with the log so far; ends the run by returning True."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """One load run. A probe with `problems` measured the client, not the server, and decides nothing.

    `only_slower`: all requests reached the server, so the problems can only have made latencies longer.
    It began at `began_unix_s`; None if that is not known.
    """

    log: RequestLog
    overloaded: bool
    problems: tuple[str, ...]
    began_unix_s: float | None = None
    only_slower: bool = False


class Measure(Protocol):
    """Sends Poisson load at a rate; `watch` is called about every 0.5 s and ends the run by returning True."""

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Return the requests of the run, all ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe and its result. With `problems` it has none: the client was measured, or no request was sent.

    Of several limits, `verdict` belongs to the one with the least headroom, `first` to the first. The median and
    the rate of answers are those of the model itself, whatever colocated ones do.
    """

    rate_per_s: float
    verdict: Verdict
    first: Verdict
    overloaded: bool  # more requests left than came back, or most took longer than the limit
    median_ms: float  # of the steady part; inf: most failed, NaN: nothing was measured
    answered_per_s: float  # in the run's second half: the throughput limit if overloaded; 0: unknown
    load_s: float
    problems: tuple[str, ...]

    @property
    def met(self) -> bool:
        """True if this run's own quantile is within the limit; most runs are too short for a verdict."""
        return not self.overloaded and self.verdict.latency_ms <= self.verdict.limit.limit_ms


def evaluate_probe(probe: Probe, rate_per_s: float, limits: Sequence[LatencyLimit]) -> ProbeResult:
    """Return verdict, median and throughput of one run at a rate."""
    log = probe.log
    verdicts = [certify(log, limit) for limit in limits]
    verdict = least_headroom(verdicts)
    steady = log.scheduled_ns >= verdicts[0].steady_from_s * 1e9
    latency_ms = np.where(log.failed, np.inf, log.latency_ns / 1e6)[steady]
    growing = probe.overloaded or any(one.overloaded for one in verdicts)
    found = ProbeResult(
        rate_per_s=rate_per_s,
        verdict=verdict,
        first=verdicts[0],
        overloaded=growing or verdict.share > max(0.5, 1.5 * verdict.limit.allowed),  # of a median, half may be
        median_ms=float(np.median(latency_ms)) if len(latency_ms) else math.nan,
        answered_per_s=_answered_per_s(log),
        load_s=float(log.done_ns.max()) / 1e9 if len(log) else 0.0,
        # An overload may end a run before its warm-up does, and is seen all the same.
        problems=probe.problems or (() if verdict.n or (growing and len(log)) else (NO_REQUEST,)),
    )
    # Latencies count from when requests were due: a late client only makes them longer.
    return replace(found, problems=()) if probe.only_slower and found.met else found


def _answered_per_s(log: RequestLog) -> float:
    answered = np.sort(log.done_ns[~log.failed])
    if len(answered) < 20:
        return 0.0
    half = answered[len(answered) // 2 :]
    return float((len(half) - 1) / max((half[-1] - half[0]) / 1e9, 1e-9))
