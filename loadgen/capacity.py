"""The highest request rate that keeps a latency limit, found in as few seconds of load as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from loadgen.certify import certify
from loadgen.knee import Knee, Reading, knee_from_readings
from loadgen.probing import Seen, seen_from_probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog

    Watch = Callable[[RequestLog], bool]

Outcome = Literal["found", "too_slow", "gave_up", "untrusted", "out_of_budget"]

_STEP_DOWN = 0.25
_BELOW_SATURATION = 0.9
_LONE_REQUESTS = 8
_CAUTION = 0.5
"""How many standard errors below the estimate the reported rate is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """One load run. Nothing is decided on a probe with `problems`: the client, not the server, was measured."""

    log: RequestLog
    overloaded: bool
    problems: tuple[str, ...]


class Measure(Protocol):
    """Sends Poisson load at a rate; `watch` is asked about every 0.5 s and ends the run by True."""

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """The run's requests, all ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """The rate at the limit, or why there is none.

    `rate_per_s` is on the cautious side; `lower_per_s` and `upper_per_s` each hold with about 95 %. All are None
    unless `outcome` is "found", except the upper one, which "gave_up" has too. "too_slow": not even requests so
    rare that they hardly meet keep the limit; `lone_latency_ms` is the median of theirs. "gave_up": the rate to
    beat is out of reach. "untrusted": the client could not send the load, twice in a row.
    """

    outcome: Outcome
    reason: str
    rate_per_s: float | None
    lower_per_s: float | None
    upper_per_s: float | None
    lone_latency_ms: float | None
    probes: tuple[Seen, ...]
    load_s: float


def find_capacity(
    measure: Measure,
    *,
    limit_ms: float,
    budget_s: float,
    seed: int,
    quantile: float = 0.99,
    start_rate_per_s: float | None = None,
    give_up_below_per_s: float | None = None,
    resolution: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
    on_probe: Callable[[Seen], None] = lambda seen: None,
) -> CapacityEstimate:
    """Probe rates until the one at the limit is known to within `resolution` (a standard error of its logarithm).

    `start_rate_per_s` is a guess of the most the server can do; without it the first probe is of lone requests.
    `give_up_below_per_s`, the rate to beat, is probed first. `stop` is asked between and within probes.
    """
    search = _Search(
        measure=measure,
        limit_ms=limit_ms,
        quantile=quantile,
        budget_s=budget_s,
        seed=seed,
        to_beat=give_up_below_per_s,
        resolution=resolution,
        stop=stop,
        on_probe=on_probe,
    )
    rate = give_up_below_per_s or start_rate_per_s or search.lone_rate_per_s
    while search.answer is None:
        search.probe(rate)
        search.conclude()
        rate = search.next_rate()
    return search.answer


@dataclass(slots=True, kw_only=True)
class _Search:
    measure: Measure
    limit_ms: float
    quantile: float
    budget_s: float
    seed: int
    to_beat: float | None
    resolution: float
    stop: Callable[[], bool]
    on_probe: Callable[[Seen], None]
    seen: list[Seen] = field(default_factory=list)
    answer: CapacityEstimate | None = None

    @property
    def lone_rate_per_s(self) -> float:
        """So low that a server that answers within the limit is idle three quarters of the time."""
        return 250.0 / self.limit_ms

    @property
    def warmup_s(self) -> float:
        return max(1.0, 3e-3 * self.limit_ms)

    @property
    def trusted(self) -> list[Seen]:
        return [seen for seen in self.seen if not seen.problems]

    @property
    def readings(self) -> list[Reading]:
        return [seen.reading for seen in self.trusted]

    def left_s(self) -> float:
        return self.budget_s - sum(seen.load_s for seen in self.seen)

    def probe(self, rate_per_s: float) -> None:
        """One run, short where the limit is far away, and its reading."""
        if self._near(rate_per_s):
            judged_s = min(max(3.0, 40e-3 * self.limit_ms, 800 / rate_per_s), 10.0)
        else:
            judged_s = min(max(1.5, 100 / rate_per_s), 3.0)
        judged_s = max(judged_s, _LONE_REQUESTS / rate_per_s)
        duration_s = max(min(self.warmup_s + judged_s, self.left_s()), self.warmup_s + 0.5)
        probe = self.measure(rate_per_s, duration_s, self.seed + 7919 * len(self.seen), self._enough)
        seen = seen_from_probe(probe, rate_per_s, limit_ms=self.limit_ms, quantile=self.quantile)
        self.seen.append(seen)
        self.on_probe(seen)

    def _enough(self, log: RequestLog) -> bool:
        if self.stop():
            return True
        return certify(log, limit_ms=self.limit_ms, quantile=self.quantile).answer != "undecided"

    def _near(self, rate_per_s: float) -> bool:
        """Whether the limit is known to break somewhere near this rate."""
        kept, broken = self._kept(), self._broken()
        return bool(kept) and bool(broken) and kept[-1].rate_per_s > 0.7 * rate_per_s

    def _kept(self) -> list[Reading]:
        """In the order of their rates."""
        return sorted((r for r in self.readings if r.kept), key=lambda reading: reading.rate_per_s)

    def _broken(self) -> list[Reading]:
        """In the order of their rates."""
        return sorted((r for r in self.readings if not r.kept), key=lambda reading: reading.rate_per_s)

    def next_rate(self) -> float:
        """Between the highest kept and the lowest broken rate; outside, where there is not yet one of each."""
        if self.seen[-1].problems:
            return self.seen[-1].rate_per_s
        kept, broken = self._kept(), self._broken()
        if not broken:
            return self._further_up(max(self.readings, key=lambda reading: reading.rate_per_s))
        if not kept:
            return self._further_down(broken)
        high = broken[0].rate_per_s
        low = max((r.rate_per_s for r in kept if r.surely_kept and r.rate_per_s < high), default=None)
        rate = knee_from_readings(self.readings).rate_per_s
        if low is None or high / low > 1.2:  # far apart: there is no line yet
            if broken[0].headroom == 0:
                rate = _BELOW_SATURATION * self._saturation_per_s()  # where the queue's end comes into sight
            if low is not None:
                rate = min(max(rate, low * (high / low) ** 0.15), low * (high / low) ** 0.85)
        return min(rate, self._saturation_per_s())

    def _saturation_per_s(self) -> float:
        return min((seen.answered_per_s for seen in self.trusted if seen.overloaded), default=math.inf)

    def _further_up(self, highest: Reading) -> float:
        """Up in large steps where the limit is far. One request at a time already makes 1 / latency a second."""
        least, most = (2.0, 4.0) if highest.headroom > 3 else (1.3, 2.0) if highest.headroom > 1.5 else (1.1, 1.25)
        alone_per_s = max((700.0 / seen.median_ms for seen in self.trusted if seen.median_ms > 0), default=0.0)
        aim = 1.02 * knee_from_readings(self.readings).rate_per_s if len(self.readings) > 1 else math.inf
        rate = min(max(aim, least * highest.rate_per_s), most * highest.rate_per_s)
        return max(rate, min(alone_per_s, 30 * highest.rate_per_s))

    def _further_down(self, broken: list[Reading]) -> float:
        lowest = broken[0]
        if lowest.headroom == 0:
            aim = _BELOW_SATURATION * self._saturation_per_s()
        else:
            aim = 0.98 * knee_from_readings(self.readings).rate_per_s
        rate = min(max(aim, _STEP_DOWN * lowest.rate_per_s), lowest.rate_per_s / 1.1)
        return max(rate, self.lone_rate_per_s)

    def conclude(self) -> None:
        """Set `answer` once there is nothing more to find, or nothing left to find it with."""
        if len(self.seen) > 1 and self.seen[-1].problems and self.seen[-2].problems:
            self._answer("untrusted", self.seen[-1].problems[0])
            return
        readings = self.readings
        kept, broken = self._kept(), self._broken()
        if broken and not kept and broken[0].rate_per_s <= 1.001 * self.lone_rate_per_s:
            self._answer("too_slow", f"requests take over {self.limit_ms:g} ms even where they hardly meet")
        elif self.to_beat is not None and self._out_of_reach(self.to_beat):
            self._answer("gave_up", f"the limit breaks below {self.to_beat:,.4g}/s")
        elif kept and broken and self._known(knee_from_readings(readings)):
            self._answer("found", "the rate at the limit was found")
        elif self.left_s() < self.warmup_s + 1.0 or self.stop():
            if kept:
                self._answer("found", "the seconds for it ran out")
            else:
                self._answer("out_of_budget", "no rate that keeps the limit was seen in the seconds for it")

    def _known(self, knee: Knee) -> bool:
        close = [r for r in self.readings if abs(math.log(r.rate_per_s / knee.rate_per_s)) < 0.1 and r.headroom > 0]
        return knee.error <= self.resolution and len(close) >= 2

    def _out_of_reach(self, to_beat: float) -> bool:
        surely_broken = any(
            seen.rate_per_s <= 1.001 * to_beat and seen.reading.headroom + 2 * seen.reading.error < 1 for seen in self.trusted
        )
        if surely_broken:
            return True
        useful = [reading for reading in self.readings if reading.headroom > 0]
        return len(useful) > 1 and knee_from_readings(self.readings).upper_per_s < to_beat

    def _answer(self, outcome: Outcome, reason: str) -> None:
        useful = [reading for reading in self.readings if reading.headroom > 0]
        knee = knee_from_readings(self.readings) if useful and outcome in ("found", "gave_up") else None
        lone = [seen for seen in self.trusted if seen.rate_per_s <= 1.001 * self.lone_rate_per_s]
        found = knee if outcome == "found" else None
        self.answer = CapacityEstimate(
            outcome=outcome,
            reason=reason,
            rate_per_s=None if found is None else found.rate_per_s * math.exp(-_CAUTION * found.error),
            lower_per_s=None if found is None else found.lower_per_s,
            upper_per_s=None if knee is None else knee.upper_per_s,
            lone_latency_ms=lone[-1].median_ms if lone else None,
            probes=tuple(self.seen),
            load_s=sum(seen.load_s for seen in self.seen),
        )
