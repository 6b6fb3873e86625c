"""Find the highest request rate that meets the latency limits, in as few seconds of load as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import NormalDist
from typing import Literal

from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity import CAUTION, Capacity
from loadgen.statistics.probe import Measure, ProbeResult, evaluate_probe
from loadgen.statistics.slo_test import Verdict, certify_each, combined_answer
from loadgen.statistics.steady_state import left_out_ns

Outcome = Literal["found", "too_slow", "gave_up", "untrusted", "out_of_budget"]

_STEP_UP = 4.0
_FASTER = 0.8  # of the median, or of the share of late requests: less is a server that is faster when busier
_MIN_PROBE_S = 0.5
_LONE_REQUESTS = 8
LOW, HIGH = 0.05, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """The capacity, or the reason why there is none.

    `rate_per_s` is slightly pessimistic; `lower_per_s` and `upper_per_s` each hold with about 95 %. All three are
    None unless `outcome` is "found", with the exceptions below; where no rate violated the limit, `upper_per_s` is
    None. `known` is the whole distribution.
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
    known: Capacity | None = field(default=None, repr=False)

    @property
    def steady(self) -> Verdict | None:
        """The verdict on the latest run that met the limit, if any: it shows how late requests cluster."""
        return next((one.verdict for one in reversed(self.probes) if one.met and not one.problems), None)


def find_capacity(
    measure: Measure,
    *,
    limits: tuple[LatencyLimit, ...],
    budget_s: float,
    seed: int,
    before: Sequence[ProbeResult] = (),
    start_rate_per_s: float | None = None,
    alone_ms: float = 0.0,
    give_up_below_per_s: float | None = None,
    resolution: float = 0.02,
    stop: Callable[[], bool] = lambda: False,
    on_probe: Callable[[ProbeResult], object] = id,
) -> CapacityEstimate:
    """Probe rates until the capacity is known to within `resolution`, the standard deviation of its logarithm.

    `start_rate_per_s` is a guess of the capacity; without it, or if one user's requests take `alone_ms`, over the
    limit, the first probe sends requests that hardly queue. `give_up_below_per_s`, the rate to beat, is probed
    first. If there were runs `before`, which the budget does not count, the search goes on from those in which the
    client was in time, unless all were overloaded: under a tight limit the capacity may be far below what is
    answered then. `stop` is called between and within probes. All `limits` have to be met.
    """
    in_time = tuple(one for one in before if not one.problems)
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
        before=() if all(one.overloaded for one in in_time) else in_time,
    )
    if not search.before:
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
    before: tuple[ProbeResult, ...] = ()
    seen: list[ProbeResult] = field(default_factory=list)
    _known: tuple[int, Capacity] | None = None

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
        return left_out_ns(self.limit_ms) / 1e9

    @property
    def trusted(self) -> list[ProbeResult]:
        return [*self.before, *(seen for seen in self.seen if not seen.problems)]

    @property
    def counted(self) -> list[ProbeResult]:
        """The trusted probes; without those below all that met the limit, if lone requests are too slow."""
        lowest_met = min((seen.rate_per_s for seen in self.trusted if seen.met), default=0.0)
        return [seen for seen in self.trusted if seen.rate_per_s >= lowest_met or not self._too_slow()]

    @property
    def known(self) -> Capacity:
        """What is known of the capacity now.

        Without any other guess, it is about what one user at a time gets.
        """
        if self._known is None or self._known[0] != len(self.seen):
            first = (*self.before, *self.seen)[0]
            alone_per_s = 1000 / first.median_ms if 0 < first.median_ms < math.inf else 0.0
            guess = first.rate_per_s if first.rate_per_s > 1.001 * self.lone_rate_per_s else alone_per_s
            prior = Capacity.guessed(max(guess, first.rate_per_s), first.verdict.limit.limit_ms / 1e3)
            self._known = len(self.seen), reduce(Capacity.updated, self.counted, prior)
        return self._known[1]

    def left_s(self) -> float:
        return self.budget_s - sum(max(seen.load_s, _MIN_PROBE_S) for seen in self.seen)

    def probe(self, rate_per_s: float) -> None:
        """Send one probe, a short one if the limit is far away, and store its result."""
        if self._violated() and any(seen.met for seen in self.counted):
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

    def next_rate(self) -> float:
        """Return the median of what is known, where a run tells most."""
        if self.seen and self.seen[-1].problems:
            return self.seen[-1].rate_per_s
        busier = self._busier_per_s() if self._too_slow() and not any(seen.met for seen in self.trusted) else None
        return busier or max(self.known.quantile(0.5), self.lone_rate_per_s)

    def answer(self) -> CapacityEstimate | None:
        """Return the estimate once more load would not improve it, or the budget is spent."""
        ended = self._settled()
        if ended is None and (self.stop() or self.left_s() < self.warmup_s + 1.0):
            ended = self._out_of_seconds()
        return None if ended is None else self._estimate(*ended)

    def _settled(self) -> tuple[Outcome, str] | None:
        """Return outcome and reason if more load would not change them."""
        ended: tuple[Outcome, str] | None = None
        met = any(seen.met for seen in self.trusted)
        if len(self.seen) > 1 and self.seen[-1].problems and self.seen[-2].problems:
            ended = "untrusted", self.seen[-1].problems[0]
        elif not self.trusted:
            pass
        elif not met and self._too_slow() and self._busier_per_s() is None:
            limit = self._lone()[-1].verdict.limit
            alone = f"requests failed or {limit.over} even if they hardly met"
            if limit.colocated is not None:
                alone = f"no {limit.within}, even with hardly any other requests"
            ended = "too_slow", alone
        elif self.to_beat is not None and self.known.below(self.to_beat) > HIGH:
            ended = "gave_up", f"the limit is violated below {self.to_beat:,.4g}/s"
        elif met and self._violated() and self.known.error <= self.resolution:
            ended = "found", "the capacity was found"
        return ended

    def _violated(self) -> bool:
        return any(not seen.met for seen in self.counted)

    def _out_of_seconds(self) -> tuple[Outcome, str]:
        if not any(seen.met for seen in self.trusted):
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
        overload_per_s = min((seen.rate_per_s for seen in above if seen.overloaded), default=math.inf)
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

    def _estimate(self, outcome: Outcome, reason: str) -> CapacityEstimate:
        met, lone = [seen.rate_per_s for seen in self.trusted if seen.met], self._lone()
        rate = lower = upper = known = None
        if outcome in ("found", "gave_up"):
            known = self.known
            rate, lower, upper = map(known.quantile, (NormalDist().cdf(-CAUTION), LOW, HIGH))
            if outcome == "gave_up":
                rate = lower = None
            elif not self._violated():  # what was never tried is not estimated
                rate, lower, upper = min(rate, max(met)), min(lower, max(met)), None
        elif outcome == "untrusted" and met:
            lower = max(met)
        return CapacityEstimate(
            outcome=outcome,
            reason=reason,
            rate_per_s=rate,
            lower_per_s=lower,
            upper_per_s=upper,
            lone_latency_ms=none_if_not_finite(lone[-1].median_ms) if lone else None,
            probes=(*self.before, *self.seen),
            load_s=sum(seen.load_s for seen in self.seen),
            known=known,
        )
