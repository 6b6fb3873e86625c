"""Draw the send times of a plan: pure, seeded, absolute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadgen.spec.plan import Arrivals, LoadPlan

_NS_PER_S = 1e9
PIECE = 1 << 18
_RAMP_STEPS = 2000  # a ramp has so many constant pieces: its number of requests is exact, its slope to 1/2000


def schedule(plan: LoadPlan, part: int = 0, parts: int = 1) -> NDArray[np.int64]:
    """Return the send time of each request in ns since the start: ascending, within duration and tail, shape (n,).

    n is random for random arrivals and may be 0 if rate x duration is small. With `parts`, only every `parts`-th
    request, from the `part`-th on: all parts together are the schedule.
    """
    plan = replace(plan, duration_s=plan.duration_s + plan.tail_s, tail_s=0.0)
    own, before = [np.zeros(0, np.int64)], 0
    for piece in _pieces(plan):
        own.append(piece[(part - before) % parts :: parts].copy())  # without the rest of the piece
        before += len(piece)
    return np.concatenate(own)


def _pieces(plan: LoadPlan) -> Iterator[NDArray[np.int64]]:
    """Yield the schedule in pieces of about `PIECE` times."""
    end_ns = round(plan.duration_s * _NS_PER_S)
    for times_s in _times_s(plan):
        ns = np.rint(times_s * _NS_PER_S).astype(np.int64)
        within: NDArray[np.int64] = ns[: np.searchsorted(ns, end_ns)]
        yield within
        if len(within) < len(ns):
            return


def _times_s(plan: LoadPlan) -> Iterator[NDArray[np.float64]]:
    """Return the times of a plan in pieces; some times may be after its end."""
    kind, rng = plan.arrivals.kind, np.random.default_rng(plan.seed)
    if kind == "constant":
        n = int(np.ceil(plan.rate_per_s * plan.duration_s))
        return (np.arange(at, min(at + PIECE, n)) / plan.rate_per_s for at in range(0, n, PIECE))
    if kind == "gamma":
        return _renewal_s(rng, plan.rate_per_s, plan.duration_s, plan.arrivals.cv)
    if kind == "trace":
        return _trace_s(plan)
    return _poisson_s(rng, *rate_profile(plan))


def recorded_duration_s(arrivals: Arrivals) -> float:
    """Return the recorded duration of the trace; the last gap counts as long as the mean one."""
    span_s = arrivals.times_s[-1] - arrivals.times_s[0]
    return span_s * len(arrivals.times_s) / (len(arrivals.times_s) - 1)


def recorded_rate_per_s(arrivals: Arrivals) -> float:
    """Return the mean rate of the trace as recorded."""
    if arrivals.kind == "rates":
        widths = np.diff(_rates_edges_s(arrivals))
        return float(np.average(arrivals.levels, weights=widths))
    return len(arrivals.times_s) / recorded_duration_s(arrivals)


def peak_rate_per_s(plan: LoadPlan) -> float:
    """Return the highest rate of the plan: its own, times the highest level if its shape has levels.

    For a trace it is the rate of the busiest second.
    """
    arrivals = plan.arrivals
    if arrivals.kind in ("ramp", "steps"):
        return plan.rate_per_s * max(arrivals.levels)
    if arrivals.kind == "spike":
        return plan.rate_per_s * max(1.0, arrivals.levels[0])
    if arrivals.kind == "rates":
        return plan.rate_per_s * max(arrivals.levels) / recorded_rate_per_s(arrivals)
    if arrivals.kind == "trace":
        turn_s = len(arrivals.times_s) / plan.rate_per_s
        due_ns = schedule(replace(plan, duration_s=min(plan.duration_s, 2 * turn_s + 1.0)))
        in_a_second = np.searchsorted(due_ns, due_ns + round(_NS_PER_S)) - np.arange(len(due_ns))
        return max(plan.rate_per_s, float(in_a_second.max(initial=0)))
    return plan.rate_per_s


def _poisson_s(
    rng: np.random.Generator, edges_s: NDArray[np.float64], rates_per_s: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    """Yield Poisson arrivals at a piecewise constant rate: a unit-rate process through its integral's inverse."""
    expected = np.concatenate(([0.0], np.cumsum(rates_per_s * np.diff(edges_s))))
    rising = bool((np.diff(expected) > 0).all())
    for unit in _renewal_s(rng, 1.0, float(expected[-1]), 1.0):
        # If the rate is 0, the integral is flat; time then jumps to the end of the flat piece.
        yield np.interp(unit, expected, edges_s) if rising else _inverse_with_gaps(unit, expected, edges_s)


def _inverse_with_gaps(
    unit: NDArray[np.float64], expected: NDArray[np.float64], edges_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    piece = np.clip(np.searchsorted(expected, unit, side="right") - 1, 0, len(expected) - 2)
    width = expected[piece + 1] - expected[piece]
    share = (unit - expected[piece]) / np.where(width > 0, width, 1.0)
    times: NDArray[np.float64] = edges_s[piece] + share * (edges_s[piece + 1] - edges_s[piece])
    return times


def _renewal_s(
    rng: np.random.Generator, rate_per_s: float, duration_s: float, cv: float
) -> Iterator[NDArray[np.float64]]:
    """Yield arrivals within [0, duration) whose gaps have mean 1/rate and this coefficient of variation.

    Bursty gaps need a start in the middle of the process: otherwise the first arrivals are too dense.
    """
    mean_s = 1.0 / rate_per_s
    shape = 1.0 / cv**2
    before_s = 0.0 if cv == 1.0 else 200.0 * mean_s * max(1.0, cv**2)
    end_s = before_s + duration_s
    reached_s = 0.0
    while reached_s < end_s:
        expected = (end_s - reached_s) * rate_per_s
        count = min(PIECE, int(expected + 4.0 * cv * np.sqrt(expected) + 16))
        gaps = rng.exponential(mean_s, count) if cv == 1.0 else rng.gamma(shape, mean_s / shape, count)
        times = reached_s + np.cumsum(gaps)
        reached_s = float(times[-1])
        times -= before_s
        yield times[(times >= 0) & (times < duration_s)]


def rate_profile(plan: LoadPlan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return edges (k + 1,) in s and the rate (k,) in each piece between them, of Poisson arrivals."""
    arrivals, duration_s = plan.arrivals, plan.duration_s
    if arrivals.kind == "poisson":
        edges, levels = np.array([0.0, 1.0]), np.array([1.0])
    elif arrivals.kind == "ramp":
        edges = np.linspace(0.0, 1.0, _RAMP_STEPS + 1)
        levels = np.interp((edges[1:] + edges[:-1]) / 2, [0.0, 1.0], arrivals.levels)
    elif arrivals.kind == "steps":
        edges, levels = np.linspace(0.0, 1.0, len(arrivals.levels) + 1), np.array(arrivals.levels)
    elif arrivals.kind == "spike":
        edges = np.array([0.0, arrivals.start, arrivals.end, 1.0])
        levels = np.array([1.0, arrivals.levels[0], 1.0])
    else:
        return _repeated_rates(plan)
    return edges * duration_s, levels * plan.rate_per_s


def _rates_edges_s(arrivals: Arrivals) -> NDArray[np.float64]:
    """Return the start of each rate of a trace of rates, and the end: the last lasts as long as the one before."""
    times = np.asarray(arrivals.times_s) - arrivals.times_s[0]
    return np.append(times, 2 * times[-1] - times[-2])


def _repeated_rates(plan: LoadPlan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    edges = _rates_edges_s(plan.arrivals)
    shape = np.array(plan.arrivals.levels) / max(plan.arrivals.levels)
    rates = shape * (plan.rate_per_s / np.average(shape, weights=np.diff(edges)))
    times = max(1, int(np.ceil(plan.duration_s / edges[-1])))
    starts = np.concatenate([edges[:-1] + turn * edges[-1] for turn in range(times)])
    return np.append(starts, times * edges[-1]), np.tile(rates, times)


def _trace_s(plan: LoadPlan) -> Iterator[NDArray[np.float64]]:
    """Yield the recorded times from 0 on, scaled to the plan's rate and repeated to fill its duration."""
    speed = plan.rate_per_s / recorded_rate_per_s(plan.arrivals)
    length_s = recorded_duration_s(plan.arrivals) / speed
    once = (np.asarray(plan.arrivals.times_s) - plan.arrivals.times_s[0]) / speed - plan.arrivals.start * length_s
    passed = int(np.searchsorted(once, 0.0))  # before the plan's start: these times come at the end of a turn
    once = np.concatenate([once[passed:], once[:passed] + length_s])
    turns = max(1, int(np.ceil(plan.duration_s / length_s)))
    at_once = max(1, PIECE // len(once))
    for turn in range(0, turns, at_once):
        starts = np.arange(turn, min(turn + at_once, turns)) * length_s
        yield (starts[:, None] + once).ravel()
