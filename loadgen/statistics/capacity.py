"""Find the highest request rate that meets the latency limits, in as few seconds of load as possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import (
    CapacityFit,
    HeadroomEstimate,
    Probe,
    ProbeResult,
    evaluate_probe,
    fit_capacity,
)
from loadgen.statistics.slo_test import certify_each, combined_answer

Watch: TypeAlias = "Callable[[RequestLog], bool]"
"""Called about every 0.5 s with the log so far; ends the run by returning True."""

Outcome = Literal["found", "too_slow", "gave_up", "untrusted", "out_of_budget"]

_STEP_DOWN = 0.25
_STEP_UP = 4.0
_FASTER = 0.8  # of the median, or of the share of late requests: less is a server that is faster when busier
_BELOW_SATURATION = 0.9
_MIN_PROBE_S = 0.5
_LONE_REQUESTS = 8
_MEANINGLESS = 100.0
"""An upper bound over 100 times the highest rate tried is dropped: it means nothing and may overflow a file."""

CAUTION = 0.5
"""The reported rate is 0.5 standard errors below the estimate."""


class Measure(Protocol):
    """Sends Poisson load at a rate; `watch` is called about every 0.5 s and ends the run by returning True."""

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Return the requests of the run, all ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """The capacity, or the reason why there is none.

    `rate_per_s` is slightly pessimistic; `lower_per_s` and `upper_per_s` each hold with about 95 %, less often if
    the seconds ran out. All three are None unless `outcome` is "found", with the exceptions below; an upper bound
    far above every rate that was tried is None too.
    "too_slow": even requests so rare that they hardly ever queue violate the limit. "gave_up": the rate to beat is
    out of reach, see `upper_per_s`. "untrusted": the client could not send the load, twice in a row; `lower_per_s`
    is the highest rate that seemed to meet the limit before. `lone_latency_ms` is the median latency of requests
    that do not queue, if any were sent.
    """

    outcome: Outcome
    reason: str
    rate_per_s: float | None
    lower_per_s: float | None
    upper_per_s: float | None
    lone_latency_ms: float | None
    probes: tuple[ProbeResult, ...]
    load_s: float


def find_capacity(
    measure: Measure,
    *,
    limits: tuple[LatencyLimit, ...],
    budget_s: float,
    seed: int,
    start_rate_per_s: float | None = None,
    alone_ms: float = 0.0,
    give_up_below_per_s: float | None = None,
    resolution: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
    on_probe: Callable[[ProbeResult], object] = id,
) -> CapacityEstimate:
    """Probe rates until the capacity is known to within `resolution`, the standard error of its logarithm.

    `start_rate_per_s` is a guess of the capacity; without it, or if one user's requests take `alone_ms`, over the
    limit, the first probe sends requests that hardly queue. `give_up_below_per_s`, the rate to beat, is probed
    first. `stop` is called between and within probes. All `limits` have to be met.
    """
    search = _Search(
        measure=measure,
        limits=limits,
        alone_ms=alone_ms,
        budget_s=budget_s,
        seed=seed,
        to_beat=give_up_below_per_s,
        resolution=resolution,
        stop=stop,
        on_probe=on_probe,
    )
    guess = start_rate_per_s if alone_ms <= search.limit_ms else None
    search.probe(give_up_below_per_s or guess or search.lone_rate_per_s)
    while (answer := search.answer()) is None:
        search.probe(search.next_rate())
    return answer


@dataclass(slots=True, kw_only=True)
class _Search:
    measure: Measure
    limits: tuple[LatencyLimit, ...]
    alone_ms: float
    budget_s: float
    seed: int
    to_beat: float | None
    resolution: float
    stop: Callable[[], bool]
    on_probe: Callable[[ProbeResult], object]
    seen: list[ProbeResult] = field(default_factory=list)

    @property
    def limit_ms(self) -> float:
        """The longest of the limits."""
        return max(limit.limit_ms for limit in self.limits)

    @property
    def lone_rate_per_s(self) -> float:
        """A rate at which a server that answers within the limit, or `alone_ms`, is idle for 3/4 of the time."""
        return 250.0 / max(self.limit_ms, self.alone_ms)

    @property
    def warmup_s(self) -> float:
        return max(1.0, 3e-3 * self.limit_ms)

    @property
    def trusted(self) -> list[ProbeResult]:
        return [seen for seen in self.seen if not seen.problems]

    @property
    def counted(self) -> list[ProbeResult]:
        """The trusted probes; without those below all that met the limit, if lone requests are too slow."""
        lowest_met = min((seen.rate_per_s for seen in self.trusted if seen.reading.met), default=0.0)
        return [seen for seen in self.trusted if seen.rate_per_s >= lowest_met or not self._too_slow()]

    @property
    def readings(self) -> list[HeadroomEstimate]:
        return [seen.reading for seen in self.counted]

    def left_s(self) -> float:
        return self.budget_s - sum(max(seen.load_s, _MIN_PROBE_S) for seen in self.seen)

    def probe(self, rate_per_s: float) -> None:
        """Send one probe, a short one if the limit is far away, and store its result."""
        if self._near(rate_per_s):
            judged_s = min(max(3.0, 40e-3 * self.limit_ms, 800 / rate_per_s), 10.0)
        else:
            judged_s = min(max(1.5, 100 / rate_per_s), 3.0)
        judged_s = max(judged_s, _LONE_REQUESTS / rate_per_s)
        duration_s = max(min(self.warmup_s + judged_s, self.left_s()), self.warmup_s + _MIN_PROBE_S)
        probe = self.measure(rate_per_s, duration_s, self.seed + 7919 * len(self.seen), self._enough)
        seen = evaluate_probe(probe, rate_per_s, self.limits)
        self.seen.append(seen)
        self.on_probe(seen)

    def _enough(self, log: RequestLog) -> bool:
        return self.stop() or combined_answer(certify_each(log, self.limits)) != "inconclusive"

    def _near(self, rate_per_s: float) -> bool:
        """True if the capacity is known to be somewhere near this rate."""
        met, violated = self._met(), self._violated()
        return bool(met) and bool(violated) and met[-1].rate_per_s > 0.7 * rate_per_s

    def _met(self) -> list[HeadroomEstimate]:
        """Return the readings that met the limit, by rate."""
        return sorted((r for r in self.readings if r.met), key=lambda reading: reading.rate_per_s)

    def _violated(self) -> list[HeadroomEstimate]:
        """Return the readings that violated the limit, by rate."""
        return sorted((r for r in self.readings if not r.met), key=lambda reading: reading.rate_per_s)

    def next_rate(self) -> float:
        """Return a rate between the highest that met the limit and the lowest that violated it, if known."""
        if self.seen[-1].problems:
            return self.seen[-1].rate_per_s
        met, violated = self._met(), self._violated()
        if not violated:
            return self._further_up(max(self.readings, key=lambda reading: reading.rate_per_s))
        if not met:
            return (self._busier_per_s() if self._too_slow() else None) or self._further_down(violated)
        return min(self._between(met, violated), self._saturation_per_s())

    def _between(self, met: list[HeadroomEstimate], violated: list[HeadroomEstimate]) -> float:
        """Return the fitted capacity; if the two rates are far apart, a rate just below saturation, if known."""
        rate = fit_capacity(self.readings).rate_per_s
        high, highest_met = violated[0].rate_per_s, met[-1].rate_per_s
        low = max((r.rate_per_s for r in met if r.surely_met and r.rate_per_s < high), default=None)
        if highest_met < high and (low is None or high / low > 1.2):
            below_saturation = _BELOW_SATURATION * self._saturation_per_s()
            if below_saturation < high / 1.02:
                rate = below_saturation  # where the queue's end comes into sight
        if low is not None and high / low > 1.2:
            rate = min(max(rate, low * (high / low) ** 0.15), low * (high / low) ** 0.85)
        return rate

    @property
    def _of_streams(self) -> bool:
        return self.limits[0].kind == "attainment"

    def _saturation_per_s(self) -> float:
        # An overload of streams is stopped when its first replies have ended.
        answered = (seen.answered_per_s for seen in self.counted if seen.overloaded and not self._of_streams)
        return min((rate for rate in answered if rate > 0), default=math.inf)

    def _further_up(self, highest: HeadroomEstimate) -> float:
        """Step up, far if the limit is far. One request at a time already gives a rate of 1 / latency."""
        # Times of streams hardly grow until the server is full; a step too far is soon seen.
        far = highest.headroom > 3 or self._of_streams
        least, most = (2.0, 4.0) if far else (1.3, 2.0) if highest.headroom > 1.5 else (1.1, 1.25)
        alone_per_s = max((700.0 / seen.median_ms for seen in self.trusted if seen.median_ms > 0), default=0.0)
        aim = 1.02 * fit_capacity(self.readings).rate_per_s if len(self.readings) > 1 else math.inf
        rate = min(max(aim, least * highest.rate_per_s), most * highest.rate_per_s)
        return max(rate, min(alone_per_s, 30 * highest.rate_per_s))

    def _further_down(self, violated: list[HeadroomEstimate]) -> float:
        lowest = violated[0]
        if lowest.headroom == 0:
            aim = _BELOW_SATURATION * self._saturation_per_s()
        else:
            aim = 0.98 * fit_capacity(self.readings).rate_per_s
        least = 1.1 if len(violated) < 3 else 2.0  # guesses that were wrong again and again are given up
        rate = min(max(aim, _STEP_DOWN * lowest.rate_per_s), lowest.rate_per_s / least)
        return max(rate, self.lone_rate_per_s)

    def answer(self) -> CapacityEstimate | None:
        """Return the estimate once more load would not improve it, or the budget is spent."""
        ended = self._settled()
        if ended is None and (self.stop() or self.left_s() < self.warmup_s + 1.0):
            ended = self._out_of_seconds()
        return None if ended is None else self._estimate(*ended)

    def _settled(self) -> tuple[Outcome, str] | None:
        """Return outcome and reason if more load would not change them."""
        if len(self.seen) > 1 and self.seen[-1].problems and self.seen[-2].problems:
            return "untrusted", self.seen[-1].problems[0]
        met, violated = self._met(), self._violated()
        if not met and self._too_slow() and self._busier_per_s() is None:
            limit = self._lone()[-1].verdict.limit
            if limit.colocated is not None:
                return "too_slow", f"no {limit.within}, even with hardly any other requests"
            return "too_slow", f"requests failed or {limit.over} even if they hardly met"
        if self.to_beat is not None and self._out_of_reach(self.to_beat):
            return "gave_up", f"the limit is violated below {self.to_beat:,.4g}/s"
        if met and violated and self._known(fit_capacity(self.readings)):
            return "found", "the capacity was found"
        return None

    def _out_of_seconds(self) -> tuple[Outcome, str]:
        if not self._met():
            return "out_of_budget", "no rate that met the limit was seen in the seconds for it"
        if not self._violated():
            return "found", "no rate that violated the limit was seen in the seconds for it"
        return "found", "the seconds for it ran out"

    def _lone(self) -> list[ProbeResult]:
        return [seen for seen in self.trusted if seen.rate_per_s <= 1.001 * self.lone_rate_per_s]

    def _too_slow(self) -> bool:
        """True if most lone requests are over the limit, or some in two runs: one outlier proves nothing."""
        lone = self._lone()
        over = [seen for seen in lone if not seen.verdict.latency_ms <= seen.verdict.limit.limit_ms]
        return len(over) > 1 or any(not seen.median_ms <= self.limit_ms for seen in lone)

    def _busier_per_s(self) -> float | None:
        """Return a higher rate to try if lone requests are too slow; None if the server gets no faster.

        Clocks that save power, and schedulers, make a server slower when it is idle; one user kept it busy.
        """
        lone = self._lone()[0]
        above = [seen for seen in self.trusted if seen.rate_per_s > 1.001 * self.lone_rate_per_s]
        overload_per_s = min((seen.rate_per_s for seen in above if seen.reading.headroom == 0), default=math.inf)
        busy = [seen for seen in above if seen.rate_per_s < overload_per_s]
        busiest = max(busy, key=lambda seen: seen.rate_per_s, default=lone)
        rate = _STEP_UP * busiest.rate_per_s
        if busiest is lone:
            may_get_faster = self.alone_ms <= self.limit_ms and math.isfinite(lone.median_ms)
            return rate if rate < overload_per_s and may_get_faster else None
        faster = (
            busiest.median_ms < _FASTER * lone.median_ms or busiest.verdict.share < _FASTER * lone.verdict.share
        )
        if rate >= overload_per_s:
            rate = math.sqrt(busiest.rate_per_s * overload_per_s)
        return rate if faster and rate > 1.3 * busiest.rate_per_s else None

    def _known(self, fit: CapacityFit) -> bool:
        close = [r for r in self.readings if abs(math.log(r.rate_per_s / fit.rate_per_s)) < 0.1 and r.headroom > 0]
        return fit.error <= self.resolution and len(close) >= 2

    def _out_of_reach(self, to_beat: float) -> bool:
        surely_violated = any(
            seen.rate_per_s <= 1.001 * to_beat and seen.reading.headroom + 2 * seen.reading.error < 1
            for seen in self.trusted
        )
        if surely_violated:
            return True
        useful = [reading for reading in self.readings if reading.headroom > 0]
        return len(useful) > 1 and fit_capacity(self.readings).upper_per_s < to_beat

    def _ceiling_per_s(self) -> float:
        """Return the lowest rate that surely violates the limit, if none above it met it; else inf."""
        highest_met = max((reading.rate_per_s for reading in self._met()), default=0.0)
        violated = (
            seen.rate_per_s
            for seen in self.trusted
            if seen.overloaded or seen.reading.headroom + 2 * seen.reading.error < 1
        )
        return min((rate for rate in violated if rate > highest_met), default=math.inf)

    def _estimate(self, outcome: Outcome, reason: str) -> CapacityEstimate:
        met, lone = self._met(), self._lone()
        rate = lower = upper = None
        if outcome in ("found", "gave_up") and any(reading.headroom > 0 for reading in self.readings):
            fit = fit_capacity(self.readings)
            rate, lower, upper = (
                fit.rate_per_s * math.exp(-CAUTION * fit.error),
                fit.lower_per_s,
                fit.upper_per_s,
            )
            if outcome == "gave_up":
                rate = lower = None
            elif not self._violated():  # what was never tried is not estimated
                rate, lower = min(rate, met[-1].rate_per_s), min(lower, met[-1].rate_per_s)
            elif met and rate >= self._ceiling_per_s():
                # The headroom fell off a cliff, as with a saturated front end: a line does not fit.
                rate = math.sqrt(met[-1].rate_per_s * self._ceiling_per_s())
                lower, upper = min(lower, rate), self._ceiling_per_s()
            if upper > _MEANINGLESS * max(reading.rate_per_s for reading in self.readings):
                upper = None
        elif outcome == "untrusted" and met:
            lower = met[-1].rate_per_s
        return CapacityEstimate(
            outcome=outcome,
            reason=reason,
            rate_per_s=rate,
            lower_per_s=lower,
            upper_per_s=upper,
            lone_latency_ms=none_if_not_finite(lone[-1].median_ms) if lone else None,
            probes=tuple(self.seen),
            load_s=sum(seen.load_s for seen in self.seen),
        )
