"""Measure the capacity of a running server by bisection under open load; no code of the search is used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.probe import Measure, Probe
from loadgen.statistics.slo_test import Verdict, certify
from search.records.slo import Slo

SURE = 0.99
"""A run ends early once it is decided with this confidence."""

MIN_REQUESTS = 1000
"""A run at a low rate has at least so many requests, unless it is decided earlier."""

ATTEMPTS = 6


class Untrusted(Exception):
    """The client was late in every attempt; the message has the lag of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One run. `met`: it met the limit, with confidence if `sure`, else by its final share of late requests."""

    rate_per_s: float
    met: bool
    sure: bool
    overloaded: bool
    share: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest rate that met the limit and the lowest that did not; 0 and 0 if lone requests violate it."""

    low_per_s: float
    high_per_s: float

    @property
    def rate_per_s(self) -> float:
        """The mean of the two rates."""
        return math.sqrt(self.low_per_s * self.high_per_s)

    def figures(self) -> dict[str, float]:
        """Return the figures for a raw line."""
        return {"rate_per_s": self.rate_per_s, "low_per_s": self.low_per_s, "high_per_s": self.high_per_s}


Read = Callable[[float], Reading]
Run = tuple[float, bool, float]
"""A reading's rate, whether it was met, and its share of late requests."""


def reader(measure: Measure, slo: Slo, *, seconds: float, seed: int, least_requests: int = MIN_REQUESTS) -> Read:
    """Return a function that runs `seconds` of load after a warm-up, shorter if decided; it raises Untrusted.

    All runs have the same arrivals, except if a rate is repeated.
    """
    warmup_s = max(1.0, 3e-3 * slo.first.limit_ms)
    asked: Counter[float] = Counter()

    def judged(log: RequestLog) -> Verdict:
        return certify(log, slo.first, confidence=SURE)

    def read(rate_per_s: float) -> Reading:
        duration_s = warmup_s + max(seconds, least_requests / rate_per_s)
        problems: tuple[str, ...] = ()
        for _ in range(ATTEMPTS):
            fresh = seed + asked[rate_per_s]
            asked[rate_per_s] += 1
            probe = measure(rate_per_s, duration_s, fresh, lambda log: judged(log).answer != "inconclusive")
            problems = probe.problems
            if not problems:
                return reading_of(judged(probe.log), rate_per_s, overloaded=probe.overloaded)
        raise Untrusted(problems[0])

    return read


def trusted(measure: Measure, rate_per_s: float, duration_s: float, seed: int) -> Probe:
    """Return a run whose client was on time. Raises Untrusted."""
    for attempt in range(ATTEMPTS):
        probe = measure(rate_per_s, duration_s, seed + attempt)
        if not probe.problems:
            return probe
    raise Untrusted(probe.problems[0])


def noting(read: Read, runs: list[Run]) -> Read:
    """Return the same function, which also appends each reading to `runs`."""

    def noted(rate_per_s: float) -> Reading:
        found = read(rate_per_s)
        runs.append((rate_per_s, found.met, found.share))
        return found

    return noted


def reading_of(verdict: Verdict, rate_per_s: float, *, overloaded: bool) -> Reading:
    """Return the reading of a run; if it is inconclusive, the share of late requests decides."""
    violated = overloaded or verdict.answer == "violated"
    few = verdict.answer == "inconclusive" and verdict.share <= verdict.limit.allowed
    return Reading(
        rate_per_s=rate_per_s,
        met=not violated and (verdict.answer == "met" or few),
        sure=violated or verdict.answer == "met",
        overloaded=overloaded or verdict.overloaded,
        share=verdict.share,
        requests=verdict.n,
    )


def bisected(
    read: Read,
    start_per_s: float,
    *,
    step: float,
    floor_per_s: float,
    resolution: float,
    growth: float = 2.0,
    known: Sequence[Reading] = (),
) -> Capacity:
    """Step up or down from `start_per_s` until met and violated rates are known, then bisect between them.

    A step is `step` times the rate, then its `growth`-th power, and so on. Ends if the two are `resolution` apart
    in ln(rate), or if a rate of at most `floor_per_s` is violated. `known` are earlier readings of the same
    configuration.
    """
    low = max((one.rate_per_s for one in known if one.met), default=None)
    high = min((one.rate_per_s for one in known if not one.met), default=None)
    stride = math.log(step)
    while low is None or high is None or math.log(high / low) > resolution:
        if low is not None and high is not None:
            rate = math.sqrt(low * high)
        elif low is not None:
            rate = start_per_s if start_per_s > low else low * math.exp(stride)
        elif high is not None:
            rate = max(floor_per_s, high / math.exp(stride))
        else:
            rate = start_per_s
        if read(rate).met:
            low = rate
        elif low is None and rate <= floor_per_s:
            return Capacity(low_per_s=0.0, high_per_s=0.0)
        else:
            high = rate
        if rate != start_per_s:
            stride *= growth
    return Capacity(low_per_s=low, high_per_s=high)
