"""How long executions take, by batch size and by how many instances are busy: measured in a few seconds.

Closed loops keep an instance group busy; Triton's own table of executed batch sizes says what each took. What is
measured so includes what the front end and the senders take of the same machine at that speed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from search.simulator import NO_NOISE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from loadgen.measurement import RequestLog
    from loadgen.server_stats import BatchTimings

    Floats = NDArray[np.float64]

LEVEL_S = 0.4
"""How long each closed loop runs, at the least; slow models take as long as a few executions."""

LEVEL_EXECUTIONS = 12
LEVEL_AT_MOST_S = 2.0
LONE_S = 0.6
GROWTH = 3
"""From one number of requests in flight to the next."""

NOISE_POINTS = 48
LEAST_ANSWERS = 16
_MOSTLY_SINGLE = 0.9
_BIN_OCTAVES = 0.5
_NS_PER_S = 1e9


class NotMeasured(Exception):
    """The server keeps no table of batch sizes, or answered nothing; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedLoop:
    """One run of `concurrency` users who each wait for their answer, and what the server executed meanwhile."""

    concurrency: int
    log: RequestLog
    batches: tuple[BatchTimings, ...]


class Saturate(Protocol):
    """Sends a closed loop to what is being served."""

    def __call__(self, concurrency: int, duration_s: float, seed: int) -> ClosedLoop:
        """The run, all answers in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCurve:
    """What executions take while `busy` instances are at work.

    `sizes` ascend, `seconds` are how long executions of each take; both hold what was measured, pooled over
    neighbouring sizes, never decreasing. `fit_error` is the relative rms distance of what was measured from the
    curve. `handover_s` is what passes between two executions of an instance that always has work; None where it
    was not measured, as with several instances, whose batches cannot be told apart. `overhead_s` is what a request
    to an idle server takes besides its execution. `noise` are factors with mean 1 by which single executions
    differ.

    Where requests differ in shape, this is the curve of the smallest, and `larger` those of the larger ones that
    were profiled, ascending.
    """

    busy: int
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    handover_s: float | None
    fit_error: float
    overhead_s: float
    noise: tuple[float, ...]
    larger: tuple[ServiceCurve, ...] = ()

    def at(self, sizes: Floats) -> Floats:
        """Seconds for these batch sizes: straight lines between what was measured, and on beyond it."""
        known, seconds = np.array(self.sizes), np.array(self.seconds)
        found = np.interp(sizes, known, seconds)
        if len(known) > 1:
            slope = (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
            found = np.where(sizes > known[-1], seconds[-1] + slope * (sizes - known[-1]), found)
            first = (seconds[1] - seconds[0]) / (known[1] - known[0])
            below = np.maximum(seconds[0] - first * (known[0] - sizes), 0.5 * seconds[0])
            found = np.where(sizes < known[0], below, found)
        return found

    def slowed(self, factor: float) -> ServiceCurve:
        """The curve of a machine whose executions take so many times as long."""
        return replace(
            self,
            seconds=tuple(factor * taken for taken in self.seconds),
            larger=tuple(one.slowed(factor) for one in self.larger),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """S(b, k) of one engine with one number of threads: a curve for each k that was measured, ascending."""

    curves: tuple[ServiceCurve, ...]

    def __post_init__(self) -> None:
        busy = [curve.busy for curve in self.curves]
        if not busy or busy != sorted(set(busy)):
            raise ValueError(f"curves for {busy} busy instances: one or more are needed, ascending")

    def table(self, max_batch_size: int, instance_count: int) -> Floats:
        """`SimulatedServer.service_s`; between measured k straight lines, below and beyond them the nearest."""
        sizes = np.arange(max_batch_size + 1, dtype=float)
        sizes[0] = 1.0
        known = np.array([curve.busy for curve in self.curves], dtype=float)
        seconds = np.stack([curve.at(sizes) for curve in self.curves])
        wanted = np.arange(instance_count + 1, dtype=float)
        table = np.stack([np.interp(wanted, known, seconds[:, size]) for size in range(len(sizes))])
        return table + self.handover_s

    @property
    def overhead_s(self) -> float:
        """What a lone request takes besides its execution, at the fewest busy instances that were measured."""
        return self.curves[0].overhead_s

    @property
    def handover_s(self) -> float:
        """What passes between two executions of an instance, of the first curve that tells."""
        return next((curve.handover_s for curve in self.curves if curve.handover_s is not None), 0.0)

    @property
    def noise(self) -> tuple[float, ...]:
        """Factors by which executions differ, of the fewest busy instances that were measured."""
        return self.curves[0].noise


def measure_curve(
    saturate: Saturate,
    *,
    instances: int,
    max_batch_size: int,
    limit_s: float,
    seed: int,
    executed_sizes: Sequence[int] = (),
    alone: ServiceCurve | None = None,
) -> ServiceCurve:
    """The curve of what is being served, with so many instances, up to the batch size that takes the limit itself.

    Serve it with the largest batch size of interest and without queue delay. `executed_sizes`, ascending, are
    those that batches are padded to; none: they are executed as they are. `alone`: the curve of one instance, if
    it is known. Raises NotMeasured.
    """
    lone = saturate(1, LONE_S, seed)
    loops = [lone]
    for concurrency in _crowds(instances, max_batch_size):
        loops.append(saturate(concurrency, _level_s(loops), seed + len(loops)))
        slowest_s = max((_execution_s(row) for row in loops[-1].batches), default=math.inf)
        if slowest_s > limit_s:
            break
    return curve_from_loops(loops, instances=instances, executed_sizes=executed_sizes, alone=alone)


def curve_from_loops(
    loops: Sequence[ClosedLoop],
    *,
    instances: int,
    executed_sizes: Sequence[int] = (),
    alone: ServiceCurve | None = None,
) -> ServiceCurve:
    """The curve that these runs amount to: the first is of one user, the second of as few as keep the
    instances busy.

    Executions of the first do not count: an idle machine is slow to wake. Nor do batches of so many of a run's
    users that too few were left for the other instances to be busy, such as the one with which a run begins.
    """
    lone, crowded = loops[0], loops[1]
    busy = [
        row for loop in loops[1:] for row in loop.batches if row.batch_size <= loop.concurrency - (instances - 1)
    ]
    rows = _pooled(busy, executed_sizes)
    if not rows:
        raise NotMeasured("the server answered nothing, or keeps no table of the batch sizes that it executes")
    sizes, counts, seconds = (np.array(column) for column in zip(*rows, strict=True))
    if alone is None or instances == 1:
        knots, means = _monotone(*_binned(sizes, counts, seconds))
    else:
        knots, means = _hindered(alone, sizes, counts, seconds)
    handover_s, noise = _one_by_one(crowded) if instances == 1 else (None, NO_NOISE)
    curve = ServiceCurve(
        busy=instances,
        sizes=tuple(knots),
        seconds=tuple(means),
        handover_s=handover_s,
        fit_error=0.0,
        overhead_s=_overhead_s(lone),
        noise=noise,
    )
    off = seconds / curve.at(sizes) - 1
    return replace(curve, fit_error=float(np.sqrt(np.average(off**2, weights=counts))))


def _crowds(instances: int, max_batch_size: int) -> Iterator[int]:
    """Numbers of users, ascending: the first keep all instances busy, nearly always with one request each."""
    most = (max_batch_size + 1) * instances + max_batch_size
    if instances > 1:
        yield instances + 1
    concurrency = 2 * instances
    while concurrency < most:
        yield concurrency
        concurrency *= GROWTH
    yield most


def _level_s(loops: Sequence[ClosedLoop]) -> float:
    slowest_s = max((_execution_s(row) for row in loops[-1].batches), default=0.0)
    return min(max(LEVEL_S, LEVEL_EXECUTIONS * slowest_s), LEVEL_AT_MOST_S)


def _execution_s(row: BatchTimings) -> float:
    return (row.input_ms + row.infer_ms + row.output_ms) / 1e3


def _pooled(rows: Iterable[BatchTimings], executed_sizes: Sequence[int]) -> list[tuple[float, float, float]]:
    """Executed batch size, executions and mean seconds of each size, ascending."""
    counts: dict[int, int] = defaultdict(int)
    total_s: dict[int, float] = defaultdict(float)
    for row in rows:
        size = next((size for size in executed_sizes if size >= row.batch_size), row.batch_size)
        counts[size] += row.executions
        total_s[size] += row.executions * _execution_s(row)
    return [(float(size), float(counts[size]), total_s[size] / counts[size]) for size in sorted(counts)]


def _binned(sizes: Floats, counts: Floats, seconds: Floats) -> tuple[Floats, Floats, Floats]:
    """Means over half octaves of the batch size: few executions of one size say little."""
    bins = np.round(np.log2(sizes) / _BIN_OCTAVES).astype(int)
    each = [bins == found for found in np.unique(bins)]
    return (
        np.array([np.average(sizes[mine], weights=counts[mine]) for mine in each]),
        np.array([counts[mine].sum() for mine in each]),
        np.array([np.average(seconds[mine], weights=counts[mine]) for mine in each]),
    )


def _monotone(sizes: Floats, counts: Floats, seconds: Floats) -> tuple[list[float], list[float]]:
    """Neighbours that decrease become one, their weighted mean (pool adjacent violators)."""
    pools: list[tuple[float, float, float]] = []
    for size, count, value in zip(sizes, counts, seconds, strict=True):
        pools.append((float(size), float(count), float(value)))
        while len(pools) > 1 and pools[-2][2] > pools[-1][2]:
            (a, n, s), (b, m, t) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m, (s * n + t * m) / (n + m))]
    return [pool[0] for pool in pools], [pool[2] for pool in pools]


def _hindered(
    alone: ServiceCurve, sizes: Floats, counts: Floats, seconds: Floats
) -> tuple[list[float], list[float]]:
    """The curve of one instance times the factor by which several hinder each other, which does not fall with the
    batch size: a larger batch leaves the others less of what they share.

    Long executions are few in a short run, and some of them met instances that had just ended. The factor is the
    same for many sizes, so the many short ones tell it of the long ones too.
    """
    known, factors = _monotone(*_binned(sizes, counts, seconds / alone.at(sizes)))
    knots = np.union1d(alone.sizes, known)
    return knots.tolist(), (alone.at(knots) * np.interp(knots, known, factors)).tolist()


def _overhead_s(lone: ClosedLoop) -> float:
    """What the requests of one user took besides their executions, in the mean."""
    latency_s = lone.log.service_ns[~lone.log.failed] / _NS_PER_S
    if not len(latency_s):
        raise NotMeasured("the server answered nothing")
    execution_s = max((_execution_s(row) for row in lone.batches), default=0.0)
    return max(0.0, float(np.mean(latency_s)) - execution_s)


def _one_by_one(loop: ClosedLoop) -> tuple[float, tuple[float, ...]]:
    """Handover and noise, from two users of one instance: it always has one request to go on with, and no more.

    So the time between two answers is that of one execution and the handover. Where batches were formed
    nevertheless (the users were slower than the server) there is nothing to be told: no handover, no noise.
    """
    executions = sum(row.executions for row in loop.batches)
    between_s = np.diff(np.sort(loop.log.done_ns)) / _NS_PER_S
    between_s = between_s[len(between_s) // 10 :]
    if len(between_s) < LEAST_ANSWERS or executions < _MOSTLY_SINGLE * len(loop.log):
        return 0.0, NO_NOISE
    single_s = max(_execution_s(row) for row in loop.batches if row.batch_size == 1)
    ranks = (np.arange(NOISE_POINTS) + 0.5) / NOISE_POINTS
    factors = np.quantile(between_s, ranks)
    shuffled = np.random.default_rng(0).permutation(factors / factors.mean())
    return max(0.0, float(np.mean(between_s)) - single_s), tuple(float(factor) for factor in shuffled)
