"""The highest request rate that keeps a latency limit, found in as few seconds of load as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from loadgen.knee import Knee, Reading, knee_from_readings
from loadgen.measurement import known
from loadgen.order import LatencyLimit
from loadgen.probing import Seen, seen_from_probe
from loadgen.several import certify_each, joint_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog

Watch: TypeAlias = "Callable[[RequestLog], bool]"
"""Asked about every 0.5 s with the log so far; True ends the run."""

Outcome = Literal["found", "too_slow", "gave_up", "untrusted", "out_of_budget"]

_STEP_DOWN = 0.25
_BELOW_SATURATION = 0.9
_LEAST_PROBE_S = 0.5
_LONE_REQUESTS = 8
_FAR_ABOVE = 100.0
"""Times the highest rate that was tried: a bound beyond says nothing, and may be too large for any file."""

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

    `rate_per_s` is on the cautious side; `lower_per_s` and `upper_per_s` each hold with about 95 %, less often
    where the seconds ran out. All are None unless `outcome` is "found", but for the bounds named here; so is an
    upper bound far above everything that was tried.
    "too_slow": not even requests so rare that they hardly meet keep the limit. "gave_up": the rate to beat is out
    of reach, see `upper_per_s`. "untrusted": the client could not send the load, twice in a row; `lower_per_s` is
    the highest rate that seemed kept before. `lone_latency_ms` is the median of lone requests, if any were sent.
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
    also: tuple[LatencyLimit, ...] = (),
    start_rate_per_s: float | None = None,
    give_up_below_per_s: float | None = None,
    resolution: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
    on_probe: Callable[[Seen], object] = id,
) -> CapacityEstimate:
    """Probe rates until the one at the limit is known to within `resolution` (a standard error of its logarithm).

    `start_rate_per_s` is a guess of the most the server can do; without it the first probe is of lone requests.
    `give_up_below_per_s`, the rate to beat, is probed first. `stop` is asked between and within probes. Limits
    in `also` have to be kept besides.
    """
    search = _Search(
        measure=measure,
        limits=(LatencyLimit(quantile=quantile, limit_ms=limit_ms), *also),
        budget_s=budget_s,
        seed=seed,
        to_beat=give_up_below_per_s,
        resolution=resolution,
        stop=stop,
        on_probe=on_probe,
    )
    rate = give_up_below_per_s or start_rate_per_s or search.lone_rate_per_s
    while True:
        search.probe(rate)
        answer = search.answer()
        if answer is not None:
            return answer
        rate = search.next_rate()


@dataclass(slots=True, kw_only=True)
class _Search:
    measure: Measure
    limits: tuple[LatencyLimit, ...]
    budget_s: float
    seed: int
    to_beat: float | None
    resolution: float
    stop: Callable[[], bool]
    on_probe: Callable[[Seen], object]
    seen: list[Seen] = field(default_factory=list)

    @property
    def limit_ms(self) -> float:
        """The longest of the limits."""
        return max(limit.limit_ms for limit in self.limits)

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
        return self.budget_s - sum(max(seen.load_s, _LEAST_PROBE_S) for seen in self.seen)

    def probe(self, rate_per_s: float) -> None:
        """One run, short where the limit is far away, and its reading."""
        if self._near(rate_per_s):
            judged_s = min(max(3.0, 40e-3 * self.limit_ms, 800 / rate_per_s), 10.0)
        else:
            judged_s = min(max(1.5, 100 / rate_per_s), 3.0)
        judged_s = max(judged_s, _LONE_REQUESTS / rate_per_s)
        duration_s = max(min(self.warmup_s + judged_s, self.left_s()), self.warmup_s + _LEAST_PROBE_S)
        probe = self.measure(rate_per_s, duration_s, self.seed + 7919 * len(self.seen), self._enough)
        first, *also = self.limits
        seen = seen_from_probe(
            probe, rate_per_s, limit_ms=first.limit_ms, quantile=first.quantile, also=tuple(also)
        )
        self.seen.append(seen)
        self.on_probe(seen)

    def _enough(self, log: RequestLog) -> bool:
        if self.stop():
            return True
        return joint_answer(certify_each(log, self.limits)) != "undecided"

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
        return min(self._between(kept, broken), self._saturation_per_s())

    def _between(self, kept: list[Reading], broken: list[Reading]) -> float:
        """Where the line says; while the two are far apart there is no line yet, but perhaps a saturation."""
        rate = knee_from_readings(self.readings).rate_per_s
        high, highest_kept = broken[0].rate_per_s, kept[-1].rate_per_s
        low = max((r.rate_per_s for r in kept if r.surely_kept and r.rate_per_s < high), default=None)
        if highest_kept < high and (low is None or high / low > 1.2):
            below_saturation = _BELOW_SATURATION * self._saturation_per_s()
            if below_saturation < high / 1.02:
                rate = below_saturation  # where the queue's end comes into sight
        if low is not None and high / low > 1.2:
            rate = min(max(rate, low * (high / low) ** 0.15), low * (high / low) ** 0.85)
        return rate

    def _saturation_per_s(self) -> float:
        answered = (seen.answered_per_s for seen in self.trusted if seen.overloaded)
        return min((rate for rate in answered if rate > 0), default=math.inf)

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
        least = 1.1 if len(broken) < 3 else 2.0  # guesses that were wrong again and again are given up
        rate = min(max(aim, _STEP_DOWN * lowest.rate_per_s), lowest.rate_per_s / least)
        return max(rate, self.lone_rate_per_s)

    def answer(self) -> CapacityEstimate | None:
        """What was found, once there is nothing more to find, or nothing left to find it with."""
        ended = self._settled()
        if ended is None and (self.stop() or self.left_s() < self.warmup_s + 1.0):
            ended = self._out_of_seconds()
        return None if ended is None else self._estimate(*ended)

    def _settled(self) -> tuple[Outcome, str] | None:
        """Outcome and reason where more load would not change them."""
        if len(self.seen) > 1 and self.seen[-1].problems and self.seen[-2].problems:
            return "untrusted", self.seen[-1].problems[0]
        kept, broken = self._kept(), self._broken()
        if not kept and self._too_slow():
            limit_ms = self._lone()[-1].verdict.limit_ms
            return "too_slow", f"requests fail or take over {limit_ms:g} ms even where they hardly meet"
        if self.to_beat is not None and self._out_of_reach(self.to_beat):
            return "gave_up", f"the limit breaks below {self.to_beat:,.4g}/s"
        if kept and broken and self._known(knee_from_readings(self.readings)):
            return "found", "the rate at the limit was found"
        return None

    def _out_of_seconds(self) -> tuple[Outcome, str]:
        if not self._kept():
            return "out_of_budget", "no rate that keeps the limit was seen in the seconds for it"
        if not self._broken():
            return "found", "no rate that breaks the limit was seen in the seconds for it"
        return "found", "the seconds for it ran out"

    def _lone(self) -> list[Seen]:
        return [seen for seen in self.trusted if seen.rate_per_s <= 1.001 * self.lone_rate_per_s]

    def _too_slow(self) -> bool:
        """Whether most lone requests are over the limit, or some are in two runs: one hiccup proves nothing."""
        lone = self._lone()
        over = [seen for seen in lone if not seen.verdict.latency_ms <= seen.verdict.limit_ms]
        return len(over) > 1 or any(not seen.median_ms <= self.limit_ms for seen in lone)

    def _known(self, knee: Knee) -> bool:
        close = [
            r for r in self.readings if abs(math.log(r.rate_per_s / knee.rate_per_s)) < 0.1 and r.headroom > 0
        ]
        return knee.error <= self.resolution and len(close) >= 2

    def _out_of_reach(self, to_beat: float) -> bool:
        surely_broken = any(
            seen.rate_per_s <= 1.001 * to_beat and seen.reading.headroom + 2 * seen.reading.error < 1
            for seen in self.trusted
        )
        if surely_broken:
            return True
        useful = [reading for reading in self.readings if reading.headroom > 0]
        return len(useful) > 1 and knee_from_readings(self.readings).upper_per_s < to_beat

    def _ceiling_per_s(self) -> float:
        """The lowest rate that surely breaks the limit, where none above it was kept."""
        highest_kept = max((reading.rate_per_s for reading in self._kept()), default=0.0)
        broken = (
            seen.rate_per_s
            for seen in self.trusted
            if seen.overloaded or seen.reading.headroom + 2 * seen.reading.error < 1
        )
        return min((rate for rate in broken if rate > highest_kept), default=math.inf)

    def _estimate(self, outcome: Outcome, reason: str) -> CapacityEstimate:
        kept, lone = self._kept(), self._lone()
        rate = lower = upper = None
        if outcome in ("found", "gave_up") and any(reading.headroom > 0 for reading in self.readings):
            knee = knee_from_readings(self.readings)
            rate, lower, upper = (
                knee.rate_per_s * math.exp(-_CAUTION * knee.error),
                knee.lower_per_s,
                knee.upper_per_s,
            )
            if outcome == "gave_up":
                rate = lower = None
            elif not self._broken():  # what was never tried is not estimated
                rate, lower = min(rate, kept[-1].rate_per_s), min(lower, kept[-1].rate_per_s)
            elif kept and rate >= self._ceiling_per_s():
                # The headroom fell off a cliff, as before a front end that has had enough: it is no line.
                rate = math.sqrt(kept[-1].rate_per_s * self._ceiling_per_s())
                lower, upper = min(lower, rate), self._ceiling_per_s()
            if upper > _FAR_ABOVE * max(reading.rate_per_s for reading in self.readings):
                upper = None
        elif outcome == "untrusted" and kept:
            lower = kept[-1].rate_per_s
        return CapacityEstimate(
            outcome=outcome,
            reason=reason,
            rate_per_s=rate,
            lower_per_s=lower,
            upper_per_s=upper,
            lone_latency_ms=known(lone[-1].median_ms) if lone else None,
            probes=tuple(self.seen),
            load_s=sum(seen.load_s for seen in self.seen),
        )
