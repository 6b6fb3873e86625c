"""The rate at the limit of what is being served, by bisection under open load; nothing of the search is used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.capacity import Measure, Probe
from loadgen.certify import Verdict, certify
from loadgen.measurement import RequestLog
from search.records import Slo

SURE = 0.99
"""With this confidence a run is decided before its end."""

LEAST_REQUESTS = 1000
"""Of a run at a low rate, unless it is decided earlier."""

ATTEMPTS = 6


class Untrusted(Exception):
    """The client was late in every attempt; the message says by how much in the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One run. `kept`: the limit was, surely where `sure`, else by the share of late requests at the run's end."""

    rate_per_s: float
    kept: bool
    sure: bool
    overloaded: bool
    share: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Between the highest rate that was kept and the lowest that was not, 0 and 0: not even lone requests are."""

    low_per_s: float
    high_per_s: float

    @property
    def rate_per_s(self) -> float:
        """The middle of the two."""
        return math.sqrt(self.low_per_s * self.high_per_s)

    def figures(self) -> dict[str, float]:
        """For a raw line."""
        return {"rate_per_s": self.rate_per_s, "low_per_s": self.low_per_s, "high_per_s": self.high_per_s}


Read = Callable[[float], Reading]
Run = tuple[float, bool, float]
"""A reading's rate, whether it was kept, and its share of late requests."""


def reader(measure: Measure, slo: Slo, *, seconds: float, seed: int, least_requests: int = LEAST_REQUESTS) -> Read:
    """Runs of so many seconds after the warm-up, shorter where they are decided; all with the same arrivals,
    but for a rate that is asked for again.

    What it returns raises Untrusted.
    """
    warmup_s = max(1.0, 3e-3 * slo.limit_ms)
    asked: Counter[float] = Counter()

    def judged(log: RequestLog) -> Verdict:
        return certify(log, limit_ms=slo.limit_ms, quantile=slo.quantile, confidence=SURE)

    def read(rate_per_s: float) -> Reading:
        duration_s = warmup_s + max(seconds, least_requests / rate_per_s)
        problems: tuple[str, ...] = ()
        for _ in range(ATTEMPTS):
            fresh = seed + asked[rate_per_s]
            asked[rate_per_s] += 1
            probe = measure(rate_per_s, duration_s, fresh, lambda log: judged(log).answer != "undecided")
            problems = probe.problems
            if not problems:
                return reading_of(judged(probe.log), rate_per_s, overloaded=probe.overloaded)
        raise Untrusted(problems[0])

    return read


def trusted(measure: Measure, rate_per_s: float, duration_s: float, seed: int) -> Probe:
    """A run in which the client was in time. Raises Untrusted."""
    for attempt in range(ATTEMPTS):
        probe = measure(rate_per_s, duration_s, seed + attempt)
        if not probe.problems:
            return probe
    raise Untrusted(probe.problems[0])


def noting(read: Read, runs: list[Run]) -> Read:
    """The same, and each reading goes to `runs`."""

    def noted(rate_per_s: float) -> Reading:
        found = read(rate_per_s)
        runs.append((rate_per_s, found.kept, found.share))
        return found

    return noted


def reading_of(verdict: Verdict, rate_per_s: float, *, overloaded: bool) -> Reading:
    """What a run says; of an undecided one, the share of its requests that were late."""
    broken = overloaded or verdict.answer == "broken"
    few = verdict.answer == "undecided" and verdict.share <= 1 - verdict.quantile
    return Reading(
        rate_per_s=rate_per_s,
        kept=not broken and (verdict.answer == "kept" or few),
        sure=broken or verdict.answer == "kept",
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
    """Up or down from `start_per_s` in steps until kept and broken rates are known, then in between.

    A step is `step` times the rate, then its `growth`-th power, and so on. Ends when the two are `resolution`
    apart in ln(rate), or when a rate of at most `floor_per_s` is broken. `known` are readings of the same
    configuration that were made before.
    """
    low = max((one.rate_per_s for one in known if one.kept), default=None)
    high = min((one.rate_per_s for one in known if not one.kept), default=None)
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
        if read(rate).kept:
            low = rate
        elif low is None and rate <= floor_per_s:
            return Capacity(low_per_s=0.0, high_per_s=0.0)
        else:
            high = rate
        if rate != start_per_s:
            stride *= growth
    return Capacity(low_per_s=low, high_per_s=high)
