"""The shapes of a run's requests where they differ: which each has, and which are profiled for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Shape = Sequence[tuple[str, tuple[int, ...]]]

MOST_PROFILED = 4
"""So many shapes have their service times measured; those of others are told from these by their length."""

MOST_TABLES = 32
"""So many lengths have service times of their own; with more lengths, neighbours share their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShapes:
    """Which shape the requests have, in turn.

    `turns`: for each request of a turn the number of its shape, from 0. `sizes`: what the service times of each
    shape depend on, ascending; shapes that are not profiled have them on a straight line between their neighbours.
    """

    turns: tuple[int, ...]
    sizes: tuple[int, ...] = field(repr=False)

    @property
    def profiled(self) -> tuple[int, ...]:
        """The shapes whose service times are measured, ascending.

        All of a few; else the smallest, the largest, and between them those that part the sum of all sizes
        equally: where the time goes, straight lines have to be near the truth.
        """
        last = len(self.sizes) - 1
        if last < MOST_PROFILED:
            return tuple(range(len(self.sizes)))
        work = np.cumsum(np.bincount(self.turns) * np.array(self.sizes))
        parts = np.searchsorted(work, work[-1] * np.arange(1, MOST_PROFILED - 1) / (MOST_PROFILED - 1))
        return tuple(sorted({0, *parts.tolist(), last}))

    @property
    def longest_run(self) -> int:
        """The most neighbours of one shape, the turns following each other: no larger batch can be formed."""
        changes = np.flatnonzero(np.diff(np.array(self.turns * 2)))
        return int(np.diff(changes).max())

    def requests_of(self, shape: int) -> tuple[int, ...]:
        """The places in a turn that have the shape."""
        return tuple(np.flatnonzero(np.array(self.turns) == shape).tolist())

    def numbered(self) -> NDArray[np.int64]:
        """`search.simulator.SimulatedServer.turns`, for the tables of `tables`."""
        shapes = np.array(self.turns, dtype=np.int64)
        return np.stack([shapes, self._groups()[shapes]])

    def tables(self, profiled: Sequence[Floats]) -> Floats:
        """Service times by size, from those of the profiled shapes, all of one form; shape (tables, ...)."""
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
        """The mean over all requests of what was measured of the profiled shapes."""
        return float(self.tables([np.array(one) for one in profiled])[self.numbered()[1]].mean())

    def _groups(self) -> NDArray[np.int64]:
        """The table of each shape: its own, or one for about as many requests as any other."""
        if len(self.sizes) <= MOST_TABLES:
            return np.arange(len(self.sizes), dtype=np.int64)
        often = np.bincount(self.turns, minlength=len(self.sizes))
        before = np.cumsum(often) - often
        groups: NDArray[np.int64] = np.unique(before * MOST_TABLES // len(self.turns), return_inverse=True)[1]
        return groups


def request_shapes(each: Sequence[Shape]) -> RequestShapes | None:
    """The shapes of these requests, each given by the shapes of its inputs.

    None where they cannot be predicted: more than `MOST_PROFILED`, which differ in more than one length.
    """
    sizes = _lengths(each)
    if sizes is None and len(set(each)) > MOST_PROFILED:
        return None
    of_request = sizes or [sum(int(np.prod(shape)) for _, shape in one) for one in each]
    ordered = sorted({(size, tuple(one)) for size, one in zip(of_request, each, strict=True)})
    numbers = {one: number for number, (_, one) in enumerate(ordered)}
    return RequestShapes(
        turns=tuple(numbers[tuple(one)] for one in each), sizes=tuple(size for size, _ in ordered)
    )


def _lengths(each: Sequence[Shape]) -> list[int] | None:
    """The one size in which requests differ, the same for all their axes that do; None where there are several."""
    if len({tuple((name, len(shape)) for name, shape in one) for one in each}) > 1:
        return None
    dims = np.array([[size for _, shape in one for size in shape] for one in each])
    varying = dims[:, (dims != dims[0]).any(axis=0)]
    if not varying.shape[1] or (varying != varying[:, :1]).any():
        return None
    return [int(size) for size in varying[:, 0]]
