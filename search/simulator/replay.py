"""Replay a short load run of a predicted configuration in the simulator, which corrects its predicted capacity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.capacity import Sharpness, binding_limit, rate_at_limit, sharpness
from search.simulator.server import NO_NOISE, SimulatedServer, simulate
from search.workload import REQUESTS, Workload

MATCHED = (0.8, 0.9, 0.95, 0.98, 0.99)
"""The quantiles of latency that a replay matches: those that determine the capacity."""

SLOWEST, FASTEST = 3.0, 0.4
"""Bounds of the factor between real and profiled execution times; a replay within 1 % of them has no result."""

MIN_REQUESTS = 50
MIN_ERROR = 0.015
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


def binding_of(
    server: SimulatedServer, limits: Sequence[LatencyLimit], rate_per_s: float, seed: int, workload: Workload = ANY
) -> LatencyLimit:
    """Return `search.simulator.capacity.binding_limit` with as few requests as `sharpness_of`."""
    return binding_limit(server, limits, rate_per_s, workload.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def sharpness_of(
    server: SimulatedServer, limit: LatencyLimit, rate_per_s: float, seed: int, workload: Workload = ANY
) -> Sharpness:
    """Return `search.simulator.capacity.sharpness` with so few requests that it takes hardly any time."""
    return sharpness(server, limit, rate_per_s, workload.unit(seed, requests=_REQUESTS_FOR_SHARPNESS))


def replay_run(
    server: SimulatedServer,
    log: RequestLog,
    limits: Sequence[LatencyLimit],
    *,
    seed: int,
    workload: Workload = ANY,
) -> ReplayResult | None:
    """Return the server's capacity as estimated from a run.

    None if that is not possible: too few requests, failures, or executions far from the profile.
    """
    strictest = max(one.quantile for one in limits)
    if len(log) < MIN_REQUESTS or log.failed.mean() > 1 - strictest:
        return None
    matched = {*MATCHED, *(one.quantile for one in limits if one.quantile < MATCHED[0])}
    slowdown = replayed_slowdown(server, log.scheduled_ns / 1e9, log.latency_ns / 1e9, sorted(matched))
    if not 1.01 * FASTEST < slowdown < 0.99 * SLOWEST:
        return None
    slower = server.slowed(slowdown)
    rate = rate_at_limit(slower, limits, workload.unit(seed, requests=REQUESTS))
    if not rate > 0:
        return ReplayResult(rate_per_s=0.0, error=math.inf, slowdown=slowdown)
    binding = binding_of(slower, limits, rate, seed, workload)
    sharp = sharpness_of(slower, binding, rate, seed, workload)
    error = math.hypot(MIN_ERROR, sharp.relative_error(len(log), binding.quantile))
    return ReplayResult(rate_per_s=rate, error=error, slowdown=slowdown)


def replayed_slowdown(
    server: SimulatedServer, arrivals_s: Floats, latency_s: Floats, quantiles: Sequence[float] = MATCHED
) -> float:
    """Return the factor on execution times with which the same arrivals have the same quantiles of latency."""
    wanted = np.quantile(latency_s, quantiles, method="inverted_cdf")

    def too_slow(factor: float) -> bool:
        simulated_s = simulate(server.slowed(factor), arrivals_s).latency_s
        simulated = np.quantile(simulated_s, quantiles, method="inverted_cdf")
        return float(np.mean(np.log(simulated / wanted))) > 0

    low, high = math.log(FASTEST), math.log(SLOWEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if too_slow(math.exp(middle)) else (middle, high)
    return math.exp((low + high) / 2)


WINDOW_S, MAX_WINDOW_S, MIN_IN_WINDOW = 0.1, 0.5, 20
"""Slowdowns are found for windows of 0.1 s, in which a stall is seen; at low rates for longer ones, with 20
requests if 0.5 s have as many."""

SLOW = 0.2
"""In a slow phase executions take at least 20 % longer than usual."""

FASTEST, _ROUNDS = 0.1, 5
"""The usual factor of a kind is the mean of those that are not slow compared with it, from the fastest tenth on: a
machine may be slow for most of a run."""

LASTING_S = 1.0
"""What lasts for a second is the speed, not noise: a drift of 5 % makes long bursts near the capacity."""

MIN_BEFORE_S = 0.2
"""A window is simulated with what was sent 0.2 s before it, and what was in flight then."""

_WINDOW_SLOWEST = 20.0
_WINDOW_STEPS = 6


def slowdowns_by_window(server: SimulatedServer, arrivals_s: Floats, latency_s: Floats) -> Floats:
    """Return the factor on execution times in each 0.1 s of a run, shape (windows,).

    Arrivals ascend from 0. Each factor is the one with which the requests that arrive in the window have their
    mean latency; the queue at its beginning is that of the run.
    """
    server = replace(server, noise=NO_NOISE)
    needed_s = MIN_IN_WINDOW * float(arrivals_s[-1]) / len(arrivals_s)
    merged = round(min(max(WINDOW_S, needed_s), MAX_WINDOW_S) / WINDOW_S)
    window_s = merged * WINDOW_S
    count = max(1, int(arrivals_s[-1] / window_s))
    edges_s = window_s * np.arange(count + 1)
    first = np.searchsorted(arrivals_s, edges_s)
    all_done_s = np.maximum.accumulate(arrivals_s + latency_s)
    factors = np.ones(count)
    for window in range(count):
        before = factors[window - 1] if window else 1.0
        begin, end = int(first[window]), int(first[window + 1])
        if begin == end:
            factors[window] = before
            continue
        start_s = max(0.0, edges_s[window] - MIN_BEFORE_S)
        in_flight = int(np.searchsorted(all_done_s, start_s, side="right"))
        until = int(np.searchsorted(arrivals_s, edges_s[window + 1] + window_s / 4))
        known_from = int(start_s / window_s)
        excerpt = _Excerpt(
            server=server.after(in_flight),
            arrivals_s=np.maximum(arrivals_s[in_flight:until], start_s),
            asked=slice(begin - in_flight, end - in_flight),
            starts_s=np.array([start_s, *edges_s[known_from + 1 : window + 1]]),
            before=factors[known_from:window],
        )
        factors[window] = excerpt.factor(float(latency_s[begin:end].mean()), near=before)
    # Near the capacity, too much in one window is too little in the next.
    before = np.concatenate([factors[:1], factors[:-1]])
    return np.repeat(np.sqrt(before * factors), merged)


def usual_slowdown(slowdowns: Floats) -> float:
    """Return ln of the usual slowdown from those in single windows, shape (windows,)."""
    usual = float(np.quantile(slowdowns, FASTEST))
    for _ in range(_ROUNDS):
        usual = float(slowdowns[slowdowns <= usual + math.log1p(SLOW)].mean())
    return usual


def without_noise(slowdowns: Floats) -> Floats:
    """Return ln of slowdowns beyond the usual, shape (windows,), with less of what may be noise in single windows.

    The noise is that of windows that are not slow. What lasts for a second is kept as it is.
    """
    width = round(LASTING_S / WINDOW_S)
    around = np.pad(slowdowns, (width // 2, width - 1 - width // 2), mode="edge")
    lasting: Floats = np.convolve(around, np.full(width, 1 / width), "valid")
    short: Floats = slowdowns - lasting
    usual = short[slowdowns < math.log1p(SLOW)]
    noise = float(np.var(usual)) if len(usual) else 0.0
    return lasting + short**3 / (short**2 + max(noise, 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excerpt:
    """One window of a run and the moments before it, whose factors are known."""

    server: SimulatedServer
    arrivals_s: Floats
    asked: slice
    starts_s: Floats
    before: Floats

    def factor(self, mean_latency_s: float, *, near: float) -> float:
        """Return the factor on execution times with this mean latency."""
        low = high = math.log(near)
        step, most = 0.1, math.log(_WINDOW_SLOWEST)
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
        pace = Pace(starts_s=self.starts_s, slowdowns=np.append(self.before, math.exp(factor)))
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

    def latency_s(self, server: SimulatedServer, arrivals_s: Floats) -> Floats:
        """Return the latencies of requests that arrive at these times, none before the first start."""
        begun = np.interp(arrivals_s, self._times_s, self._work_s)
        done = begun + simulate(server, begun).latency_s - server.overhead_s
        latency: Floats = np.interp(done, self._work_s, self._times_s) - arrivals_s + server.overhead_s
        return latency


_FAR_S = 1e4
