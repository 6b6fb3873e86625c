"""Replay a short load run of a predicted configuration in the simulator, which corrects its predicted capacity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.capacity import Sharpness, binding_limit, rate_at_limit, sharpness
from search.simulator.server import Simulated, simulate
from search.workload import REQUESTS, Workload

MATCHED = (0.8, 0.9, 0.95, 0.98, 0.99)
"""The quantiles of latency that a replay matches: those that determine the capacity."""

OVERLOAD = (0.2, 0.8)
"""In an overloaded run, latencies at these quantiles are those of its first and last fifth. Factors on execution
times that match each of them alone differ as far as the server is unlike its simulation: that is the error."""

SLOWEST, FASTEST = 3.0, 0.1
"""Bounds of the factor between real and profiled execution times; a replay within 1 % of them has no result."""

MIN_REQUESTS = 50
MIN_ERROR = 0.015
"""The standard error of ln(capacity) that is left after any number of replays."""

WANTED_ERROR = 0.025
MIN_REPLAY_S, MAX_REPLAY_S = 3.0, 8.0
ANY = Workload()
"""Single requests in Poisson arrivals."""

_STEPS = 14
_REQUESTS_FOR_SHARPNESS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The capacity after a replay, the standard error of its logarithm, and the factor by which executions took
    longer than profiled."""

    rate_per_s: float
    error: float
    slowdown: float


def seconds_for(sharp: Sharpness, rate_per_s: float, limit: LatencyLimit) -> float:
    """Return the seconds that a run near the capacity takes for the wanted error: 3 at least, 8 at most."""
    needed = sharp.relative_error(1.0, limit.quantile) ** 2 / WANTED_ERROR**2
    return min(max(MIN_REPLAY_S, needed / rate_per_s), MAX_REPLAY_S)


def sharpness_of(
    server: Simulated, limits: Sequence[LatencyLimit], rate_per_s: float, seed: int, workload: Workload = ANY
) -> tuple[LatencyLimit, Sharpness]:
    """Return the limit that binds, and the sharpness at it, by so few requests that it takes hardly any time."""
    unit = workload.unit(seed, requests=_REQUESTS_FOR_SHARPNESS)
    binding = binding_limit(server, limits, rate_per_s, unit)
    return binding, sharpness(server, binding, rate_per_s, unit)


def replay_run(
    server: Simulated,
    log: RequestLog,
    limits: Sequence[LatencyLimit],
    *,
    seed: int,
    workload: Workload = ANY,
) -> ReplayResult | None:
    """Return the server's capacity as estimated from a run, by when requests left: a late client changes nothing.

    None if that is not possible: too few requests, failures, or executions far from the profile.
    """
    strictest = max(one.quantile for one in limits)
    if len(log) < MIN_REQUESTS or log.failed.mean() > 1 - strictest:
        return None
    matched = {*MATCHED, *(one.quantile for one in limits if one.quantile < MATCHED[0])}
    in_order = np.argsort(log.sent_ns, kind="stable")
    arrivals_s, latency_s = log.sent_ns[in_order] / 1e9, log.service_ns[in_order] / 1e9
    slowdown = replayed_slowdown(server, arrivals_s, latency_s, sorted(matched))
    if not 1.01 * FASTEST < slowdown < 0.99 * SLOWEST:
        return None
    slower = server.slowed(slowdown)
    rate = rate_at_limit(slower, limits, workload.unit(seed, requests=REQUESTS))
    if not rate > 0:
        return ReplayResult(rate_per_s=0.0, error=math.inf, slowdown=slowdown)
    binding, sharp = sharpness_of(slower, limits, rate, seed, workload)
    unlike = 0.0
    if np.quantile(latency_s, MATCHED[0]) > binding.limit_s:
        # Overloaded: what the server carries is read off the queue, and no latency near the limit was seen.
        each = [replayed_slowdown(server, arrivals_s, latency_s, (one,)) for one in OVERLOAD]
        unlike = max(abs(math.log(one / slowdown)) for one in each)
    error = math.hypot(MIN_ERROR, sharp.relative_error(len(log), binding.quantile), unlike)
    return ReplayResult(rate_per_s=rate, error=error, slowdown=slowdown)


def replayed_slowdown(
    server: Simulated, arrivals_s: Floats, latency_s: Floats, quantiles: Sequence[float] = MATCHED
) -> float:
    """Return the factor on execution times with which the same arrivals have the same quantiles of latency."""
    wanted = np.quantile(latency_s, quantiles, method="inverted_cdf")

    def too_slow(factor: float) -> bool:
        simulated_s = simulate(server.slowed(factor), arrivals_s)
        simulated = np.quantile(simulated_s, quantiles, method="inverted_cdf")
        return float(np.mean(np.log(simulated / wanted))) > 0

    low, high = math.log(FASTEST), math.log(SLOWEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_slow(math.exp(middle)) else (middle, high)
    return math.exp((low + high) / 2)


Grains = NDArray[np.int64]
GRAIN_S = 0.005
"""A machine's speed is known for each 5 ms: pauses of the host are as short as 15 ms."""

WINDOW_S, MAX_WINDOW_S, MIN_IN_WINDOW = 0.1, 0.5, 20
"""Slowdowns are found for windows of 0.1 s; at low rates for longer ones with 20 requests, of 0.5 s at most."""

QUIET, MIN_PAUSE_S, PAUSED = 0.3, 0.01, 20.0
"""A machine pauses while it answers less than 30 % of what arrives, for 10 ms and longer than executions explain.
They take 20 times as long then: a pause makes requests late at any rate, and slow executions do not."""

MUCH_LONGER, BACKLOG = 1.25, 4.0
"""A pause is a quarter longer than any such time of the simulated run, and longer than any execution at the speed
that was found before it: instances that take turns answer at least as often. While requests take four times as
long as those, slow executions would look the same."""

SLOW = 0.2
"""In a slow phase executions take at least 20 % longer than usual."""

FASTEST_SHARE, _ROUNDS = 0.1, 5
"""The usual factor of a kind is the mean of those that are not slow compared with it, from the fastest tenth on: a
machine may be slow for most of a run."""

LASTING_S = 1.0
"""What lasts for a second is the speed, not noise: a drift of 5 % makes long bursts near the capacity."""

MIN_BEFORE_S = 0.2
"""A window is simulated with what was sent 0.2 s before it, and what was in flight then."""

_WINDOW_STEPS = 6


def slowdowns_by_grain(server: Simulated, arrivals_s: Floats, latency_s: Floats) -> Floats:
    """Return the factor on execution times in each 5 ms of a run, shape (grains,).

    Arrivals ascend from 0. In pauses it is `PAUSED`; else that of its window of 0.1 s: the one with which the
    requests that arrive in the window have their mean latency. The queue at its beginning is that of the run.
    """
    run = _Replayed(server=server.without_noise(), arrivals_s=arrivals_s, latency_s=latency_s)
    factors = np.ones(run.windows)
    paused = np.zeros((run.windows + 1) * run.merged, np.bool_)
    run.fit(factors, paused, range(run.windows))
    begins, ends = run.pauses(factors)
    for begin, end in zip(begins, ends, strict=True):
        paused[begin:end] = True
    touched = np.unique(np.flatnonzero(paused)[:, None] // run.merged + np.arange(3))
    run.fit(factors, paused, touched[touched < run.windows].tolist())
    # Near the capacity, too much in one window is too little in the next.
    before = np.concatenate([factors[:1], factors[:-1]])
    smooth = np.repeat(np.sqrt(before * factors), run.merged)
    return np.where(paused[: len(smooth)], PAUSED, smooth)


@dataclass(slots=True, kw_only=True)
class _Replayed:
    """A run of a server, in windows of `merged` grains."""

    server: Simulated
    arrivals_s: Floats
    latency_s: Floats
    merged: int = field(init=False)
    windows: int = field(init=False)
    _all_done_s: Floats = field(init=False)  # when each request and all before it were answered

    def __post_init__(self) -> None:
        needed_s = MIN_IN_WINDOW * float(self.arrivals_s[-1]) / len(self.arrivals_s)
        self.merged = round(min(max(WINDOW_S, needed_s), MAX_WINDOW_S) / WINDOW_S) * round(WINDOW_S / GRAIN_S)
        self.windows = max(1, int(self.arrivals_s[-1] / (self.merged * GRAIN_S)))
        self._all_done_s = np.maximum.accumulate(self.arrivals_s + self.latency_s)

    def fit(self, factors: Floats, paused: NDArray[np.bool_], windows: Iterable[int]) -> None:
        """Find the factors of these windows, which ascend, and write them to `factors`, shape (windows,).

        `paused` has a window of grains more, shape ((windows + 1) * merged,).
        """
        merged = self.merged
        window_s = merged * GRAIN_S
        first = np.searchsorted(self.arrivals_s, window_s * np.arange(self.windows + 1))
        for window in windows:
            near = factors[window - 1] if window else 1.0
            begin, end = int(first[window]), int(first[window + 1])
            asked = slice(window * merged, (window + 1) * merged)
            if begin == end or paused[asked].all():
                factors[window] = near
                continue
            start = max(0, asked.start - round(MIN_BEFORE_S / GRAIN_S))
            grains = np.arange(start, asked.stop + merged)
            in_flight = int(np.searchsorted(self._all_done_s, start * GRAIN_S, side="right"))
            until = int(np.searchsorted(self.arrivals_s, (window + 1.25) * window_s))
            known = np.append(factors, 1.0)[grains // merged]
            excerpt = _Excerpt(
                server=self.server.after(in_flight),
                arrivals_s=np.maximum(self.arrivals_s[in_flight:until], start * GRAIN_S),
                asked=slice(begin - in_flight, end - in_flight),
                starts_s=GRAIN_S * grains,
                slowdowns=np.where(paused[grains], PAUSED, known),
                fitted=(grains >= asked.start) & ~paused[grains],
            )
            factors[window] = excerpt.factor(float(self.latency_s[begin:end].mean()), near=near)

    def pauses(self, factors: Floats) -> tuple[Grains, Grains]:
        """Return the grains at which pauses begin and end, shape (pauses,) each."""
        as_usual = self.server.slowed(math.exp(usual_slowdown(np.log(factors))))
        usual = self._quiet(simulate(as_usual, self.arrivals_s))
        begins, ends = self._quiet(self.latency_s)
        slower = np.maximum(1.0, factors[np.maximum(0, begins // self.merged - 1)])
        longest_s = self.server.longest_s * slower
        least = np.maximum(longest_s / GRAIN_S + 1, MUCH_LONGER * np.max(usual[1] - usual[0], initial=0))
        answered = np.searchsorted(self._all_done_s, GRAIN_S * begins, side="right") - 1
        # In a backlog, requests wait for longer, and slow executions and pauses do the same.
        waited = (answered < 0) | (self.latency_s[answered] > BACKLOG * longest_s)
        found = ~waited & (ends - begins >= np.maximum(least, MIN_PAUSE_S / GRAIN_S))
        return begins[found], ends[found]

    def _quiet(self, latency_s: Floats) -> tuple[Grains, Grains]:
        """Return the grains at which times with hardly an answer begin and end; not the first time."""
        grains = self.windows * self.merged
        done = ((self.arrivals_s + latency_s) / GRAIN_S).astype(np.int64)
        answers = np.bincount(done, minlength=grains)[:grains]
        most = QUIET * len(self.arrivals_s) * GRAIN_S / max(GRAIN_S, float(self.arrivals_s[-1]))
        edges = np.diff(np.concatenate([[False], answers <= most, [False]]).astype(np.int64))
        begins, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
        return begins[begins > 0], ends[begins > 0]


def usual_slowdown(slowdowns: Floats) -> float:
    """Return ln of the usual slowdown from those in each 5 ms, shape (grains,)."""
    usual = float(np.quantile(slowdowns, FASTEST_SHARE))
    for _ in range(_ROUNDS):
        usual = float(slowdowns[slowdowns <= usual + math.log1p(SLOW)].mean())
    return usual


def without_noise(slowdowns: Floats) -> Floats:
    """Return ln of slowdowns beyond the usual, shape (grains,), with less of what may be noise in single windows.

    The noise is that of times that are not slow. What lasts for a second is kept as it is, and so are pauses.
    """
    width = round(LASTING_S / GRAIN_S)
    around = np.pad(slowdowns, (width // 2, width - 1 - width // 2), mode="edge")
    lasting: Floats = np.convolve(around, np.full(width, 1 / width), "valid")
    short: Floats = slowdowns - lasting
    usual = short[slowdowns < math.log1p(SLOW)]
    noise = float(np.var(usual)) if len(usual) else 0.0
    return lasting + short**3 / (short**2 + max(noise, 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excerpt:
    """One window of a run and the moments before it, whose factors are known, and the pauses after it."""

    server: Simulated
    arrivals_s: Floats
    asked: slice
    starts_s: Floats
    slowdowns: Floats
    fitted: NDArray[np.bool_]

    def factor(self, mean_latency_s: float, *, near: float) -> float:
        """Return the factor on execution times with this mean latency."""
        low = high = math.log(near)
        step, most = 0.1, math.log(PAUSED)
        if self._mean_latency_s(low) < mean_latency_s:
            while high < most and self._mean_latency_s(high) < mean_latency_s:
                low, high, step = high, high + step, 2 * step
        else:
            while low > -most and self._mean_latency_s(low) >= mean_latency_s:
                low, high, step = low - step, low, 2 * step
        for _ in range(_WINDOW_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_latency_s(middle) < mean_latency_s else (low, middle)
        return math.exp((low + high) / 2)

    def _mean_latency_s(self, factor: float) -> float:
        slowdowns = np.where(self.fitted, math.exp(factor), self.slowdowns)
        pace = Pace(starts_s=self.starts_s, slowdowns=slowdowns)
        return float(pace.latency_s(self.server, self.arrivals_s)[self.asked].mean())


class Pace:
    """A machine whose executions take `slowdowns[i]` times as long from `starts_s[i]` on, ascending, shape (n,).

    Work done is the integral of 1 / slowdown over time: a server is simulated in units of work, and the times are
    mapped back, so that a change of speed also affects executions that are under way.
    """

    def __init__(self, *, starts_s: Floats, slowdowns: Floats) -> None:
        work = np.concatenate([[0.0], np.cumsum(np.diff(starts_s) / slowdowns[:-1])])
        self._times_s = np.append(starts_s, starts_s[-1] + _FAR_S)
        self._work_s = np.append(work, work[-1] + _FAR_S / slowdowns[-1])

    def latency_s(self, server: Simulated, arrivals_s: Floats) -> Floats:
        """Return the latencies of requests that arrive at these times, none before the first start."""
        begun = np.interp(arrivals_s, self._times_s, self._work_s)
        done = begun + simulate(server, begun) - server.overhead_s
        latency: Floats = np.interp(done, self._work_s, self._times_s) - arrivals_s + server.overhead_s
        return latency


_FAR_S = 1e4
