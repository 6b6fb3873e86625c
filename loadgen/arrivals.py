"""Send times of a plan: pure, seeded, absolute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loadgen.plan import Arrivals, LoadPlan

_NS_PER_S = 1e9
_RAMP_STEPS = 2000  # a ramp is so many constant pieces: its count is exact, its slope to 1/2000


def schedule(plan: LoadPlan) -> NDArray[np.int64]:
    """When each request is due, in ns since the start: ascending, within [0, duration), shape (n,).

    n is random for random arrivals and may be 0 when rate x duration is small.
    """
    rng = np.random.default_rng(plan.seed)
    kind = plan.arrivals.kind
    if kind == "constant":
        times_s = np.arange(int(np.ceil(plan.rate_per_s * plan.duration_s))) / plan.rate_per_s
    elif kind == "gamma":
        times_s = _renewal_s(rng, plan.rate_per_s, plan.duration_s, plan.arrivals.cv)
    elif kind == "trace":
        times_s = _trace_s(plan)
    else:
        edges_s, rates_per_s = _rate_profile(plan)
        times_s = _poisson_s(rng, edges_s, rates_per_s)
    ns = np.rint(times_s * _NS_PER_S).astype(np.int64)
    within: NDArray[np.int64] = ns[: np.searchsorted(ns, round(plan.duration_s * _NS_PER_S))]
    return within


def split(schedule_ns: NDArray[np.int64], part: int, parts: int) -> NDArray[np.int64]:
    """Every `parts`-th arrival, from the `part`-th on: a view. The union of all parts is the schedule itself."""
    return schedule_ns[part::parts]


def recorded_duration_s(arrivals: Arrivals) -> float:
    """How long the trace lasted when it was recorded, the last gap counted as long as the mean one."""
    span_s = arrivals.times_s[-1] - arrivals.times_s[0]
    return span_s * len(arrivals.times_s) / (len(arrivals.times_s) - 1)


def recorded_rate_per_s(arrivals: Arrivals) -> float:
    """The mean rate of the trace when it was recorded."""
    if arrivals.kind == "rates":
        widths = np.diff(_rates_edges_s(arrivals))
        return float(np.average(arrivals.levels, weights=widths))
    return len(arrivals.times_s) / recorded_duration_s(arrivals)


def peak_rate_per_s(plan: LoadPlan) -> float:
    """The highest rate that the plan goes through: its own, times the highest level of a shape that has levels.

    Of a trace it is that of its busiest second.
    """
    arrivals = plan.arrivals
    if arrivals.kind in ("ramp", "steps"):
        return plan.rate_per_s * max(arrivals.levels)
    if arrivals.kind == "spike":
        return plan.rate_per_s * max(1.0, arrivals.levels[0])
    if arrivals.kind == "rates":
        return plan.rate_per_s * max(arrivals.levels) / recorded_rate_per_s(arrivals)
    if arrivals.kind == "trace":
        due_ns = schedule(plan)
        in_a_second = np.searchsorted(due_ns, due_ns + round(_NS_PER_S)) - np.arange(len(due_ns))
        return max(plan.rate_per_s, float(in_a_second.max(initial=0)))
    return plan.rate_per_s


def _poisson_s(
    rng: np.random.Generator, edges_s: NDArray[np.float64], rates_per_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Poisson arrivals at a piecewise constant rate: a unit-rate process through its integral's inverse."""
    expected = np.concatenate(([0.0], np.cumsum(rates_per_s * np.diff(edges_s))))
    unit = _renewal_s(rng, 1.0, float(expected[-1]), 1.0)
    rising = np.concatenate(([True], np.diff(expected) > 0))
    # Where the rate is 0 the integral is flat; keep the flat piece's end as the point that time jumps to.
    if not rising.all():
        return _inverse_with_gaps(unit, expected, edges_s)
    return np.interp(unit, expected, edges_s)


def _inverse_with_gaps(
    unit: NDArray[np.float64], expected: NDArray[np.float64], edges_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    piece = np.clip(np.searchsorted(expected, unit, side="right") - 1, 0, len(expected) - 2)
    width = expected[piece + 1] - expected[piece]
    share = (unit - expected[piece]) / np.where(width > 0, width, 1.0)
    times: NDArray[np.float64] = edges_s[piece] + share * (edges_s[piece + 1] - edges_s[piece])
    return times


def _renewal_s(rng: np.random.Generator, rate_per_s: float, duration_s: float, cv: float) -> NDArray[np.float64]:
    """Arrivals whose gaps have mean 1/rate and the given coefficient of variation, within [0, duration).

    Bursty gaps need a start in the middle of the process, or the first arrivals come too thick.
    """
    mean_s = 1.0 / rate_per_s
    shape = 1.0 / cv**2
    before_s = 0.0 if cv == 1.0 else 200.0 * mean_s * max(1.0, cv**2)
    end_s = before_s + duration_s
    pieces: list[NDArray[np.float64]] = []
    reached_s = 0.0
    while reached_s < end_s:
        expected = (end_s - reached_s) * rate_per_s
        count = int(expected + 4.0 * cv * np.sqrt(expected) + 16)
        gaps = rng.exponential(mean_s, count) if cv == 1.0 else rng.gamma(shape, mean_s / shape, count)
        times = reached_s + np.cumsum(gaps)
        reached_s = float(times[-1])
        pieces.append(times)
    times = np.concatenate(pieces) - before_s
    return times[(times >= 0) & (times < duration_s)]


def _rate_profile(plan: LoadPlan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges (k + 1,) in s and the rate (k,) in each piece between them."""
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
    """Where each rate of a rate-over-time trace begins, and the end: the last lasts as long as the one before."""
    times = np.asarray(arrivals.times_s) - arrivals.times_s[0]
    return np.append(times, 2 * times[-1] - times[-2])


def _repeated_rates(plan: LoadPlan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    edges = _rates_edges_s(plan.arrivals)
    shape = np.array(plan.arrivals.levels) / max(plan.arrivals.levels)
    rates = shape * (plan.rate_per_s / np.average(shape, weights=np.diff(edges)))
    times = max(1, int(np.ceil(plan.duration_s / edges[-1])))
    starts = np.concatenate([edges[:-1] + turn * edges[-1] for turn in range(times)])
    return np.append(starts, times * edges[-1]), np.tile(rates, times)


def _trace_s(plan: LoadPlan) -> NDArray[np.float64]:
    """The recorded times from 0 on, faster or slower to meet the plan's rate, repeated to fill its duration."""
    speed = plan.rate_per_s / recorded_rate_per_s(plan.arrivals)
    once = (np.asarray(plan.arrivals.times_s) - plan.arrivals.times_s[0]) / speed
    length_s = recorded_duration_s(plan.arrivals) / speed
    turns = max(1, int(np.ceil(plan.duration_s / length_s)))
    return np.concatenate([once + turn * length_s for turn in range(turns)])
