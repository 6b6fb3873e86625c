"""Measure how long executions take, by batch size and number of busy instances, in a few seconds.

Closed loops keep an instance group busy; Triton's own table of executed batch sizes has the time of each. These
times include the effect of the front end and the senders, which share the machine, at that rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.server_stats import BatchTimings
from search.arrays import Floats
from search.simulator.pooling import Points, execution_s, never_falling, pooled, pooled_sizes
from search.simulator.server import NO_NOISE

LEVEL_S = 0.2
"""Each closed loop runs for at least 0.2 s; with slow models as long as 12 executions, but at most 2 s."""

LEVEL_EXECUTIONS = 12
LEVEL_MAX_S = 2.0
LONE_S = 0.3
GROWTH = 3
"""Factor from one number of requests in flight to the next."""

NOISE_POINTS = 48
MIN_ANSWERS = 16
_MOSTLY_SINGLE = 0.9
_NS_PER_S = 1e9


class NotMeasured(Exception):
    """The server keeps no table of batch sizes, or answered nothing; the message names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedLoop:
    """One run of `concurrency` users who each wait for their response, and the batches executed meanwhile.

    `members` are the batches of models that the loaded one calls, by their names.
    """

    concurrency: int
    log: RequestLog
    batches: tuple[BatchTimings, ...]
    members: Mapping[str, tuple[BatchTimings, ...]] = field(default_factory=dict)

    @property
    def executed(self) -> tuple[BatchTimings, ...]:
        """The batches of all models."""
        return (*self.batches, *chain.from_iterable(self.members.values()))


Saturate = Callable[[int, float, int], ClosedLoop]
"""Sends a closed loop of so many users for so many seconds, with a seed; returns it after its last response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCurve:
    """The execution times while `busy` instances are at work.

    `sizes` ascend, and `seconds` are their measured execution times, pooled over adjacent sizes so that they never
    decrease. `handover_s` is the time between two executions of an instance that always has work; None if it was
    not measured, as with several instances, whose batches cannot be distinguished. `overhead_s` is the time of a
    request to an idle server without its execution. `noise` are factors with mean 1 by which single executions
    differ. `let_through_per_s` is the highest rate at which closed loops were answered: what front end and network
    let through, too; infinite if not known.

    If requests differ in shape, this is the curve of the smallest, and `larger` those of the larger ones that
    were profiled, ascending.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"ser_json_inf_nan": "strings"}  # an infinite rate

    busy: int
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    handover_s: float | None
    overhead_s: float
    noise: tuple[float, ...]
    let_through_per_s: float = math.inf
    larger: tuple[ServiceCurve, ...] = ()

    def at(self, sizes: Floats) -> Floats:
        """Return seconds for these batch sizes: straight lines between the measured ones, extended beyond them."""
        known, seconds = np.array(self.sizes), np.array(self.seconds)
        found = np.interp(sizes, known, seconds)
        if len(known) > 1:
            slope = (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
            found = np.where(sizes > known[-1], seconds[-1] + slope * (sizes - known[-1]), found)
            first = (seconds[1] - seconds[0]) / (known[1] - known[0])
            below = np.maximum(seconds[0] - first * (known[0] - sizes), 0.5 * seconds[0])
            found = np.where(sizes < known[0], below, found)
        return found

    def fastest(self, other: ServiceCurve) -> ServiceCurve:
        """Return the shorter of the times of two profiles: a slow phase of the machine only makes them longer."""
        sizes = np.union1d(self.sizes, other.sizes)
        return replace(
            self,
            sizes=tuple(sizes.tolist()),
            seconds=tuple(np.maximum.accumulate(np.minimum(self.at(sizes), other.at(sizes))).tolist()),
            overhead_s=min(self.overhead_s, other.overhead_s),
            let_through_per_s=max(self.let_through_per_s, other.let_through_per_s),
            larger=tuple(one.fastest(two) for one, two in zip(self.larger, other.larger, strict=True)),
        )

    def slowed(self, factor: float) -> ServiceCurve:
        """Return the curve of a machine whose executions take `factor` times as long."""
        return replace(
            self,
            seconds=tuple(factor * taken for taken in self.seconds),
            larger=tuple(one.slowed(factor) for one in self.larger),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """S(b, k) of one engine with one number of threads: a curve for each measured k, ascending."""

    curves: tuple[ServiceCurve, ...]

    def __post_init__(self) -> None:
        busy = [curve.busy for curve in self.curves]
        if not busy or busy != sorted(set(busy)):
            raise ValueError(f"curves for {busy} busy instances: one or more are needed, ascending")

    def table(self, max_batch_size: int, instance_count: int) -> Floats:
        """Return `SimulatedServer.service_s`: straight lines between measured k, the nearest curve beyond them."""
        sizes = np.arange(max_batch_size + 1, dtype=float)
        sizes[0] = 1.0
        known = np.array([curve.busy for curve in self.curves], dtype=float)
        seconds = np.stack([curve.at(sizes) for curve in self.curves])
        wanted = np.arange(instance_count + 1, dtype=float)
        table = np.stack([np.interp(wanted, known, seconds[:, size]) for size in range(len(sizes))])
        return table + self.handover_s

    @property
    def overhead_s(self) -> float:
        """Time of a lone request without its execution, at the fewest busy instances that were measured."""
        return self.curves[0].overhead_s

    @property
    def handover_s(self) -> float:
        """Time between two executions of an instance, by the first curve that has it; 0 if none has."""
        return next((curve.handover_s for curve in self.curves if curve.handover_s is not None), 0.0)

    @property
    def noise(self) -> tuple[float, ...]:
        """Factors by which executions differ, at the fewest busy instances that were measured."""
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
    """Return the curve of the loaded configuration, up to the batch size that takes the limit itself.

    It has to be loaded with the largest batch size of interest and without queue delay. Batches are padded to
    `executed_sizes`, ascending; if empty, they are not padded. `alone` is the curve of one instance, if known:
    a lone request to several instances only repeats it, so it is not sent.
    Raises NotMeasured.
    """
    lone_s = None if alone is None or instances == 1 else float(alone.at(np.ones(1))[0])
    loops = run_loops(
        saturate, instances=instances, max_batch_size=max_batch_size, limit_s=limit_s, seed=seed, lone_s=lone_s
    )
    return curve_from_loops(loops, instances=instances, executed_sizes=executed_sizes, alone=alone)


def run_loops(
    saturate: Saturate,
    *,
    instances: int,
    max_batch_size: int,
    limit_s: float,
    seed: int,
    lone_s: float | None = None,
) -> list[ClosedLoop]:
    """Return closed loops of ever more users, until executions take the limit itself.

    The first is of one user, unless the time of a lone execution is known.
    """
    loops = [saturate(1, LONE_S, seed)] if lone_s is None else []
    slowest_s = _slowest_s(loops[0]) if lone_s is None else lone_s
    for level, concurrency in enumerate(_crowds(instances, max_batch_size), start=1):
        level_s = min(max(LEVEL_S, LEVEL_EXECUTIONS * slowest_s), LEVEL_MAX_S)
        loops.append(saturate(concurrency, level_s, seed + level))
        slowest_s = _slowest_s(loops[-1])
        if slowest_s > limit_s or not loops[-1].executed:
            break
    return loops


def curve_from_loops(
    loops: Sequence[ClosedLoop],
    *,
    instances: int,
    executed_sizes: Sequence[int] = (),
    alone: ServiceCurve | None = None,
) -> ServiceCurve:
    """Return the curve from runs: the first of one user, the second of as few as keep all instances busy.

    If several instances are measured and `alone`, the curve of one, is known, there is no run of one user.
    Executions of the first do not count: an idle machine is slow to wake. Nor do batches of so many of a run's
    users that too few were left to keep the other instances busy, such as the first batch of a run. If `alone` is
    known, only batches count for which the run has as many users on each instance: it has the times of the others.
    Raises NotMeasured.
    """
    of_one = alone if instances > 1 else None
    crowds = loops[1:] if of_one is None else loops

    def has_users(row: BatchTimings, users: int) -> bool:
        needed = row.batch_size + instances - 1 if of_one is None else instances * row.batch_size
        return needed <= users

    busy = [row for loop in crowds for row in loop.batches if has_users(row, loop.concurrency)]
    rows = pooled(busy, executed_sizes)
    if not rows:
        raise NotMeasured("the server answered nothing, or has no table of the batch sizes that it executes")
    sizes, counts, seconds = (np.array(column) for column in zip(*rows, strict=True))
    handover_s, noise = _one_by_one(crowds[0]) if instances == 1 else (None, NO_NOISE)
    if of_one is None:
        knots, means = never_falling(sizes, counts, seconds)
        overhead_s = max(0.0, lone_latency_s(loops[0]) - _slowest_s(loops[0]))
    else:
        knots, means = _hindered(of_one, sizes, counts, seconds)
        overhead_s = of_one.overhead_s
    return ServiceCurve(
        busy=instances,
        sizes=knots,
        seconds=means,
        handover_s=handover_s,
        overhead_s=overhead_s,
        noise=noise,
        let_through_per_s=max(answered_per_s(crowd.log) for crowd in crowds) or math.inf,
    )


def _crowds(instances: int, max_batch_size: int) -> Iterator[int]:
    """Yield numbers of users, ascending: the first keep all instances busy, mostly with one request each."""
    most = (max_batch_size + 1) * instances + max_batch_size
    if instances > 1:
        yield instances + 1
    concurrency = 2 * instances
    while concurrency < most:
        yield concurrency
        concurrency *= GROWTH
    yield most


def _slowest_s(loop: ClosedLoop) -> float:
    return max((execution_s(row) for row in loop.executed), default=0.0)


def _hindered(alone: ServiceCurve, sizes: Floats, counts: Floats, seconds: Floats) -> Points:
    """Return the curve of one instance times the factor by which several instances slow each other down.

    The factor may rise with the batch size, if cores are shared, or fall, if instances take turns on a GPU for
    less of their time. Sizes that were executed too few times to tell it have that of the next smaller ones.
    Several instances are not faster than one: if their times are shorter, one was measured in a slow phase of the
    machine, and all its times were longer by as much.
    """
    factor = seconds / alone.at(sizes)
    slow = min(1.0, float(np.average(factor, weights=counts * seconds)))
    known, factors = pooled_sizes(
        sizes, counts, factor, join=lambda one, two: min(one[1], two[1]) < LEVEL_EXECUTIONS
    )
    knots = np.union1d(alone.sizes, known)
    hindered = alone.at(knots) * np.interp(knots, known, np.maximum(factors, slow))
    return tuple(knots.tolist()), tuple(np.maximum.accumulate(hindered).tolist())


def answered_per_s(log: RequestLog) -> float:
    """Return the rate of the answers from the first one until the last request was sent; 0 if none was.

    Before and after, not all users of a closed loop wait for answers.
    """
    done_ns, sent_ns = np.sort(log.done_ns[~log.failed]), log.sent_ns
    if not len(done_ns):
        return 0.0
    full = done_ns[(done_ns > done_ns[0]) & (done_ns <= sent_ns.max())]
    took_ns = sent_ns.max() - done_ns[0] if len(full) else done_ns[-1] - sent_ns.min()
    return _NS_PER_S * len(full if len(full) else done_ns) / max(1, int(took_ns))


def lone_latency_s(lone: ClosedLoop) -> float:
    """Return the mean latency of a run of one user. Raises NotMeasured."""
    latency_s = lone.log.service_ns[~lone.log.failed] / _NS_PER_S
    if not len(latency_s):
        raise NotMeasured("the server answered nothing")
    return float(np.mean(latency_s))


def _one_by_one(loop: ClosedLoop) -> tuple[float, tuple[float, ...]]:
    """Return handover and noise from two users of one instance, which always has one waiting request, and no more.

    So the time between two responses is that of one execution and the handover. If batches were formed
    nevertheless (the users were slower than the server), neither is known: 0 and no noise.
    """
    executions = sum(row.executions for row in loop.batches)
    between_s = np.diff(np.sort(loop.log.done_ns)) / _NS_PER_S
    between_s = between_s[len(between_s) // 10 :]
    if len(between_s) < MIN_ANSWERS or executions < _MOSTLY_SINGLE * len(loop.log):
        return 0.0, NO_NOISE
    single_s = max(execution_s(row) for row in loop.batches if row.batch_size == 1)
    ranks = (np.arange(NOISE_POINTS) + 0.5) / NOISE_POINTS
    factors = np.quantile(between_s, ranks)
    shuffled = np.random.default_rng(0).permutation(factors / factors.mean())
    return max(0.0, float(np.mean(between_s)) - single_s), tuple(float(factor) for factor in shuffled)
