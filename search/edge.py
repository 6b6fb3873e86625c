"""The rate at which a configuration stops keeping the limit, found in few seconds of load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadgen.warmup import steady_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.capacity import Measure, Probe
    from loadgen.measurement import RequestLog
    from search.records import Slo

LONE_RATE_PER_S = 2.0
FIRST_RATE_PER_S = 20.0
MOST_PROBES = 14
CLOSE_ENOUGH = 1.04
"""Ratio of the lowest rate seen broken to the highest seen kept at which the edge is known well enough."""

Verdict = Literal["kept", "broken", "untrustworthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One probe and what it says. `share` is violations per request after the warm-up; 1 when overloaded."""

    rate_per_s: float
    verdict: Verdict
    share: float
    throughput_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`kept_per_s`: the highest rate seen to keep the limit, None if none did; `broken_per_s`: the lowest
    seen to break it.

    `gave_up`: the search ended early because `beat_per_s` cannot be reached.
    """

    kept_per_s: float | None
    broken_per_s: float | None
    estimate_per_s: float | None
    gave_up: bool
    lone_p99_ms: float | None
    probes: tuple[Seen, ...]
    problems: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class EdgeFinder:
    """Bisects ln(rate) between a kept and a broken rate; an overloaded run tells the maximum throughput.

    `spent_s` gives the seconds of load so far, `budget_s` the most that may be spent.
    """

    measure: Measure
    slo: Slo
    seed: int
    budget_s: float
    spent_s: Callable[[], float]
    stop: Callable[[], bool]
    on_probe: Callable[[Seen], None]
    seen: list[Seen] = field(default_factory=list)
    problems: tuple[str, ...] = ()
    _started_s: float = 0.0

    def find(self, *, beat_per_s: float | None, start_per_s: float | None) -> Edge:
        """The edge. With `beat_per_s`, the first probe is there: what breaks at that rate is given up at once."""
        self._started_s = self.spent_s()
        rate = beat_per_s or start_per_s or FIRST_RATE_PER_S
        while self._may_go_on():
            seen = self.probe(rate)
            if beat_per_s is not None and seen.verdict == "broken" and seen.rate_per_s <= beat_per_s:
                return self._edge(gave_up=True)
            if seen.verdict == "untrustworthy" and self._untrustworthy_in_a_row() >= 2:
                break
            kept, broken = self._kept(), self._broken()
            if kept and broken and broken / kept <= CLOSE_ENOUGH:
                break
            if broken is not None and kept is None and broken <= LONE_RATE_PER_S:
                break
            rate = self._next_rate()
        return self._edge(gave_up=False)

    def probe(self, rate_per_s: float) -> Seen:
        """Send load at one rate for as long as it takes to see the violations that matter."""
        limit_s = self.slo.limit_ms / 1000
        judged_s = min(max(2.0, 40 * limit_s, 800 / rate_per_s), 6.0)
        duration_s = max(1.0, 3 * limit_s) + judged_s
        run = self.measure(rate_per_s, duration_s, self.seed + 7919 * (1 + len(self.seen)), self._hopeless)
        self.problems = run.problems
        seen = self._judged(run, rate_per_s)
        self.seen.append(seen)
        self.on_probe(seen)
        return seen

    def _hopeless(self, log: RequestLog) -> bool:
        """So many violations that no end of this run can make up for them; or the user asks to stop."""
        if self.stop():
            return True
        if len(log) < 100:
            return False
        late = int(np.count_nonzero(log.failed | (log.latency_ns > self.slo.limit_ms * 1e6)))
        return late > 0.3 * len(log) and late > 60 and log.scheduled_ns[-1] > 1.5e9

    def _judged(self, run: Probe, rate_per_s: float) -> Seen:
        log = run.log
        over = log.failed | (log.latency_ns > self.slo.limit_ms * 1e6)
        steady = log.scheduled_ns >= steady_state(log, limit_ms=self.slo.limit_ms).earliest_ns
        if steady.sum() < 20:
            steady = np.ones(len(log), bool)
        share = float(over[steady].mean()) if len(log) else math.nan
        # One or two slow requests among a few hundred prove nothing on a machine that others use too.
        few = over[steady].sum() <= 2 and share < 0.5
        verdict: Verdict = "kept" if share <= 1 - self.slo.quantile or few else "broken"
        if run.overloaded:
            verdict, share = "broken", 1.0
        if (run.problems and verdict == "kept") or not len(log):
            verdict = "untrustworthy"
        p50_ms, p99_ms = np.quantile(log.latency_ns, (0.5, 0.99)) / 1e6 if len(log) else (math.nan, math.nan)
        return Seen(
            rate_per_s=rate_per_s,
            verdict=verdict,
            share=share,
            throughput_per_s=_throughput(log),
            p50_ms=float(p50_ms),
            p99_ms=float(p99_ms),
        )

    def _next_rate(self) -> float:
        kept, broken = self._kept(), self._broken()
        if broken is None:
            return self._further(self.seen[-1])
        overload = min((s.throughput_per_s for s in self.seen if s.share == 1.0), default=math.inf)
        if kept is None:
            guess = 0.9 * min(overload, broken)
            if guess >= 0.95 * broken or broken < 3 * LONE_RATE_PER_S:
                guess = broken / 2
            return max(LONE_RATE_PER_S, min(guess, broken / 1.1))
        if kept < 0.92 * overload < broken / 1.05:
            return 0.92 * overload
        return math.sqrt(kept * broken)

    def _further(self, last: Seen) -> float:
        """Up from a rate that was kept: in large steps where latency is far from the limit, in small ones near it.

        One request at a time already makes 1 / latency requests a second, so nothing below most of that is news.
        """
        headroom = last.p99_ms / self.slo.limit_ms
        step = 3.0 if headroom < 0.4 else 1.6 if headroom < 0.7 else 1.2
        return max(step * last.rate_per_s, 0.7e3 / last.p50_ms if last.p50_ms > 0 else 0.0)

    def _may_go_on(self) -> bool:
        left_s = self.budget_s - (self.spent_s() - self._started_s)
        return not self.stop() and (left_s > 2.0 or not self.seen) and len(self.seen) < MOST_PROBES

    def _untrustworthy_in_a_row(self) -> int:
        count = 0
        for seen in reversed(self.seen):
            if seen.verdict != "untrustworthy":
                break
            count += 1
        return count

    def _broken(self) -> float | None:
        return min((s.rate_per_s for s in self.seen if s.verdict == "broken"), default=None)

    def _kept(self) -> float | None:
        """The highest kept rate below every broken one: a kept probe above a broken one was luck."""
        broken = self._broken() or math.inf
        return max(
            (s.rate_per_s for s in self.seen if s.verdict == "kept" and s.rate_per_s < broken), default=None
        )

    def _edge(self, *, gave_up: bool) -> Edge:
        kept, broken = self._kept(), self._broken()
        estimate = kept
        if kept is not None and broken is not None:
            estimate = min(math.sqrt(kept * broken), kept * 1.02)
        lone = [s.p99_ms for s in self.seen if s.rate_per_s <= LONE_RATE_PER_S * 1.01]
        return Edge(
            kept_per_s=kept,
            broken_per_s=broken,
            estimate_per_s=estimate,
            gave_up=gave_up,
            lone_p99_ms=lone[-1] if lone else None,
            probes=tuple(self.seen),
            problems=self.problems if kept is None and broken is None else (),
        )


def _throughput(log: RequestLog) -> float:
    """Answers per second in the second half of the run: what the server does when it is not waiting for work."""
    answered = np.sort(log.done_ns[~log.failed])
    if len(answered) < 20:
        return math.inf
    half = answered[len(answered) // 2 :]
    return float((len(half) - 1) / max((half[-1] - half[0]) / 1e9, 1e-9))
