"""The traffic of a run: arrivals, batch items per request, and the shapes of requests if they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.statistics.probe import Watch
from loadgen.traffic.arrivals import schedule
from search.arrays import Floats
from search.records.slo import WorkloadRecord

REQUESTS = 30_000
"""Arrivals that determine a rate. Its error, sqrt(VIF / (0.01 x 30,000)) / elasticity, is 1 to 3 % if the
elasticity is high."""

_PROBE_RATE_PER_S = 1000.0  # arrivals are drawn at this rate, and scaled to others


def unit_arrivals(seed: int, *, requests: int = REQUESTS, arrivals: Arrivals | None = None) -> Floats:
    """Return arrival times at one request per second, of any kind: divided by a rate, they have that rate."""
    duration_s = requests / _PROBE_RATE_PER_S
    plan = LoadPlan(
        rate_per_s=_PROBE_RATE_PER_S, duration_s=duration_s, seed=seed, arrivals=arrivals or Arrivals()
    )
    return schedule(plan) * (1e-9 * _PROBE_RATE_PER_S)


Shape = Sequence[tuple[str, tuple[int, ...]]]

MAX_PROFILED = 4
"""The service times of at most 4 shapes are measured; others are interpolated by their length."""

MAX_TABLES = 32
"""At most 32 lengths have service times of their own; with more, adjacent lengths share their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShapes:
    """The shapes of the requests, in turn.

    `turns`: for each request of a turn the number of its shape, from 0. `sizes`: the size of each shape,
    ascending, on which its service times depend; shapes that are not profiled are interpolated linearly.
    """

    turns: tuple[int, ...]
    sizes: tuple[int, ...] = field(repr=False)

    @property
    def profiled(self) -> tuple[int, ...]:
        """The shapes whose service times are measured, ascending.

        All if they are few; else the smallest, the largest, and those between them that divide the sum of all
        sizes equally: straight lines have to be accurate for the shapes that take most of the time.
        """
        last = len(self.sizes) - 1
        if last < MAX_PROFILED:
            return tuple(range(len(self.sizes)))
        work = np.cumsum(np.bincount(self.turns) * np.array(self.sizes))
        parts = np.searchsorted(work, work[-1] * np.arange(1, MAX_PROFILED - 1) / (MAX_PROFILED - 1))
        return tuple(sorted({0, *parts.tolist(), last}))

    @property
    def longest_run(self) -> int:
        """The most consecutive requests of one shape, as turns are repeated: no larger batch can be formed."""
        changes = np.flatnonzero(np.diff(np.array(self.turns * 2)))
        return int(np.diff(changes).max())

    def requests_of(self, shape: int) -> tuple[int, ...]:
        """Return the places in a turn that have the shape."""
        return tuple(np.flatnonzero(np.array(self.turns) == shape).tolist())

    def numbered(self) -> NDArray[np.int64]:
        """Return `search.simulator.server.SimulatedServer.turns` for the result of `tables`."""
        shapes = np.array(self.turns, dtype=np.int64)
        return np.stack([shapes, self._groups()[shapes]])

    def tables(self, profiled: Sequence[Floats]) -> Floats:
        """Return service times by size, from arrays of one form for the profiled shapes; shape (tables, ...)."""
        measured = np.stack(profiled)
        groups, sizes = self._groups(), np.array(self.sizes, dtype=float)
        if len(measured) == len(sizes):
            return measured
        often = np.bincount(self.turns, minlength=len(sizes)).astype(float)
        wanted = np.bincount(groups, often * sizes) / np.bincount(groups, often)
        known = sizes[list(self.profiled)]
        above = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
        share = (wanted - known[above - 1]) / (known[above] - known[above - 1])
        share = share.reshape(-1, *[1] * (measured.ndim - 1))
        found: Floats = (1 - share) * measured[above - 1] + share * measured[above]
        return found

    def mean(self, profiled: Sequence[float]) -> float:
        """Return the mean over all requests of a figure that was measured for each profiled shape."""
        return float(self.tables([np.array(one) for one in profiled])[self.numbered()[1]].mean())

    def _groups(self) -> NDArray[np.int64]:
        """Return the table of each shape: its own, or one of 32 that are used by about as many requests each."""
        if len(self.sizes) <= MAX_TABLES:
            return np.arange(len(self.sizes), dtype=np.int64)
        often = np.bincount(self.turns, minlength=len(self.sizes))
        before = np.cumsum(often) - often
        groups: NDArray[np.int64] = np.unique(before * MAX_TABLES // len(self.turns), return_inverse=True)[1]
        return groups


def request_shapes(each: Sequence[Shape]) -> RequestShapes | None:
    """Return the shapes of these requests, each given by the shapes of its inputs.

    None if they cannot be predicted: more than `MAX_PROFILED`, which differ in more than one length.
    """
    sizes = _lengths(each)
    if sizes is None and len(set(each)) > MAX_PROFILED:
        return None
    of_request = sizes or [sum(int(np.prod(shape)) for _, shape in one) for one in each]
    ordered = sorted({(size, tuple(one)) for size, one in zip(of_request, each, strict=True)})
    numbers = {one: number for number, (_, one) in enumerate(ordered)}
    return RequestShapes(
        turns=tuple(numbers[tuple(one)] for one in each), sizes=tuple(size for size, _ in ordered)
    )


def _lengths(each: Sequence[Shape]) -> list[int] | None:
    """Return each request's length, the one size of all axes that differ; None if these have several sizes."""
    if len({tuple((name, len(shape)) for name, shape in one) for one in each}) > 1:
        return None
    dims = np.array([[size for _, shape in one for size in shape] for one in each])
    varying = dims[:, (dims != dims[0]).any(axis=0)]
    if not varying.shape[1] or (varying != varying[:, :1]).any():
        return None
    return [int(size) for size in varying[:, 0]]


MAX_TURN = 120_000
"""At most 120,000 arrivals of a long trace are simulated: a part that begins at a random place in it."""

NEARLY_ALL = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Traffic of any rate: `arrivals` gives it its shape. Batch sizes that the simulator sees count requests.

    `shapes`: those of the requests if they differ; None if all have the same. `predictable`: False if they differ
    in more ways than can be profiled. `record`: the same for files.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    rows_per_request: int = 1
    shapes: RequestShapes | None = None
    predictable: bool = True
    record: WorkloadRecord = field(default_factory=WorkloadRecord)

    @property
    def turn(self) -> int:
        """The number of requests after which a trace begins again; 0 if the arrivals are random."""
        return len(self.arrivals.times_s) if self.arrivals.kind == "trace" else 0

    def drawn(self, seed: int) -> Arrivals:
        """Return the arrivals of one run: a trace begins at a random place, so that seeds give fresh arrivals."""
        if not self.turn:
            return self.arrivals
        return replace(self.arrivals, start=Random(seed).random())  # noqa: S311 - no secret

    def unit(self, seed: int, *, requests: int) -> Floats:
        """Return arrival times at one request per second for the simulator: `requests`, or all of a trace."""
        enough = max(requests, min(self.turn, MAX_TURN))
        return unit_arrivals(seed, requests=enough, arrivals=self.drawn(seed))

    def to_the_end(self, watch: Watch | None, rate_per_s: float, duration_s: float) -> Watch | None:
        """Return the watch; if there is time to play a trace once, it does not end a run before that."""
        turn_s = self.turn / rate_per_s
        if watch is None or not self.turn or turn_s > duration_s:
            return watch
        return lambda log: log.until_s >= NEARLY_ALL * turn_s and watch(log)

    def caveat(self, requests: float) -> str | None:
        """Return the caveat if a confirmation of so many requests does not cover the trace; None if it does."""
        if requests >= NEARLY_ALL * self.turn:
            return None
        return f"each run had about {requests:,.0f} of the trace's {self.turn:,} arrivals"
