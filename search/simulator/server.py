"""Triton's dynamic batcher in virtual time: the latencies that a configuration would have under any arrivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from search.arrays import Floats

Turns = NDArray[np.int64]

NO_NOISE = (1.0,)
ALIKE = np.zeros((2, 1), np.int64)
"""The turns of requests that all have the same shape."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedServer:
    """A serving configuration and how long its executions take.

    `service_s[b, k]` is the time that an execution of batch size b keeps an instance while k of them are busy,
    shape (max_batch_size + 1, instance_count + 1); row and column 0 are not used. If requests differ in shape,
    there may be several such tables, shape (tables, max_batch_size + 1, instance_count + 1). `turns`, shape (2,
    n), then has the numbers of the requests' shapes, in turn, and below each that of its table: Triton only puts
    consecutive requests of one shape into a batch. `noise` are factors on the times, used in turn. `overhead_s`
    is the rest of a request's time: network, front end, waking threads; they let through `let_through_per_s`
    (infinite if not known), which is not simulated. `name` is that of a member of an ensemble. No preferred
    sizes mean the maximum alone, as in Triton. `variable_shapes`: inputs have dimensions that vary between
    requests, and the batcher looks at each.
    """

    service_s: Floats
    turns: Turns = field(default_factory=lambda: ALIKE)
    overhead_s: float = 0.0
    let_through_per_s: float = math.inf
    noise: tuple[float, ...] = NO_NOISE
    max_queue_delay_s: float = 0.0
    preferred_batch_sizes: tuple[int, ...] = ()
    variable_shapes: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.service_s.ndim not in (2, 3) or min(self.service_s.shape[-2:]) < 2:
            raise ValueError(f"service_s has shape {self.service_s.shape}, not (max batch + 1, instances + 1)")
        tables = self.turns[1] if self.turns.ndim == 2 and self.turns.size else np.array([-1])
        if not 0 <= tables.min() <= tables.max() < len(self.tables):
            raise ValueError(f"turns must number shapes and, from 0, {len(self.tables)} tables of service times")
        if not (self.service_s[..., 1:, 1:] > 0).all() or not min(self.noise) > 0:
            raise ValueError("service times and noise must be above 0")
        if any(not 1 <= size <= self.max_batch_size for size in self.preferred_batch_sizes):
            raise ValueError(f"preferred sizes {self.preferred_batch_sizes} exceed 1..{self.max_batch_size}")

    @property
    def max_batch_size(self) -> int:
        """The largest batch that is formed."""
        return self.service_s.shape[-2] - 1

    @property
    def instance_count(self) -> int:
        """The number of batches that are executed at the same time."""
        return self.service_s.shape[-1] - 1

    @property
    def tables(self) -> Floats:
        """The service times with a first axis for the tables, even if there is only one."""
        return self.service_s if self.service_s.ndim == 3 else self.service_s[None]

    @property
    def mean_service_s(self) -> Floats:
        """The mean table of service times over the requests."""
        shares = np.bincount(self.turns[1], minlength=len(self.tables)) / self.turns.shape[1]
        mean: Floats = np.tensordot(shares, self.tables, axes=1)
        return mean

    @property
    def saturation_per_s(self) -> float:
        """The highest throughput in requests per second, at any latency, if all batches had the best size."""
        sizes = np.arange(1, self.max_batch_size + 1)
        each_s = (self.tables[:, 1:, self.instance_count] / sizes).min(axis=1)
        mean_s = float(np.mean(each_s[self.turns[1]])) * float(np.mean(self.noise))
        return self.instance_count / mean_s

    @property
    def longest_s(self) -> float:
        """The longest time of an execution."""
        return float(self.tables[:, 1:, 1:].max())

    @property
    def lone_s(self) -> float:
        """The mean latency of a request to an idle server."""
        return float(self.mean_service_s[1, 1]) + self.overhead_s

    @property
    def slowest(self) -> SimulatedServer:
        """The server itself."""
        return self

    @property
    def is_plain(self) -> bool:
        """True if idle instances take all waiting requests: no delay, smaller preferred size."""
        only_the_largest = all(size == self.max_batch_size for size in self.preferred_batch_sizes)
        return self.max_queue_delay_s == 0 and only_the_largest

    def without_delay(self) -> Hashable:
        """Return a key that is equal for servers that differ only in their queue delay."""
        shapes = (self.service_s.shape, self.turns.tobytes())
        times = (self.service_s.tobytes(), self.overhead_s, self.noise)
        return (*shapes, *times, self.preferred_batch_sizes, self.variable_shapes)

    def after(self, requests: int) -> SimulatedServer:
        """Return the same server for what follows so many requests: their shapes go on in turn."""
        return self if self.turns.shape[1] == 1 else replace(self, turns=np.roll(self.turns, -requests, axis=1))

    def slowed(self, factor: float) -> SimulatedServer:
        """Return the same server with all executions taking `factor` times as long."""
        return replace(self, service_s=self.service_s * factor)

    def without_noise(self) -> SimulatedServer:
        """Return the same server with all executions of one size taking the same time."""
        return replace(self, noise=NO_NOISE)

    def run(
        self, arrivals_s: Floats, done_s: Floats, counted_from: int, late_after_s: float, late_at_most: int
    ) -> tuple[int, int]:
        """Fill `done_s`, shape (n,), with the completions of these arrivals, which ascend.

        Returns the number of executions, and of requests from `counted_from` on that take over `late_after_s`; it
        may end early with more than `late_at_most` of them.
        """
        from search.simulator import batcher, batcher_no_delay

        shapes, service_s = None, np.ascontiguousarray(np.concatenate(self.tables), dtype=float)
        if self.turns.shape[1] > 1:
            shapes = np.tile(self.turns, -(-len(arrivals_s) // self.turns.shape[1]))
        arrivals_s, noise = np.ascontiguousarray(arrivals_s, dtype=float), np.array(self.noise, dtype=float)
        late = done_s, counted_from, late_after_s, late_at_most
        if self.is_plain:
            return batcher_no_delay.simulate_undelayed(
                arrivals_s, shapes, service_s, noise, self.max_batch_size, *late
            )
        preferred = np.zeros(self.max_batch_size + 1, dtype=np.bool_)
        preferred[list(self.preferred_batch_sizes) or [self.max_batch_size]] = True
        waits = preferred, self.instance_count, self.max_queue_delay_s, self.variable_shapes
        return batcher.simulate(arrivals_s, shapes, service_s, noise, *waits, *late)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedStep:
    """A model of an ensemble, and the steps, by number from 0, whose outputs it takes; all come before it."""

    server: SimulatedServer
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedEnsemble:
    """Steps that every request passes through, each as soon as those that it follows are done.

    `overhead_s` is that of the whole; the steps' own is not used. Beyond `let_through_per_s` something outside of
    them saturates, which is not simulated: no rate above it counts as kept. Nothing flows back, so that all
    arrivals of a step are known before it is simulated: step after step gives what all at once would (ADR 23).
    Raises ValueError if a step follows itself or a later one.
    """

    steps: tuple[SimulatedStep, ...]
    overhead_s: float = 0.0
    let_through_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.steps or any(not 0 <= other < n for n, step in enumerate(self.steps) for other in step.after):
            raise ValueError(f"steps after {[step.after for step in self.steps]}: each must follow earlier ones")

    @property
    def max_queue_delay_s(self) -> float:
        """The sum of the steps' queue delays."""
        return sum(step.server.max_queue_delay_s for step in self.steps)

    @property
    def saturation_per_s(self) -> float:
        """The least of the steps', and what else bounds the whole."""
        return min(self.let_through_per_s, self.slowest.saturation_per_s)

    @property
    def longest_s(self) -> float:
        """The longest executions of all steps along the longest way through them."""
        return self.way_s(lambda step: step.server.longest_s)

    @property
    def lone_s(self) -> float:
        """The mean latency of a request to an idle server."""
        return self.overhead_s + self.way_s(lambda step: step.server.lone_s)

    @property
    def slowest(self) -> SimulatedServer:
        """The model that saturates first."""
        return min((step.server for step in self.steps), key=lambda server: server.saturation_per_s)

    def way_s(self, of_step: Callable[[SimulatedStep], float]) -> float:
        """Return the sum of the steps' seconds along the longest way through them."""
        return longest_way_s((of_step(step), step.after) for step in self.steps)

    def without_delay(self) -> Hashable:
        """Return a key that is equal for ensembles that differ only in their queue delays."""
        return self.overhead_s, *((step.after, step.server.without_delay()) for step in self.steps)

    def without_noise(self) -> SimulatedEnsemble:
        """Return the same ensemble with all executions of one size of a model taking the same time."""
        return self._changed(lambda server: server.without_noise())

    def after(self, requests: int) -> SimulatedEnsemble:
        """Return the same ensemble for what follows so many requests."""
        return self._changed(lambda server: server.after(requests))

    def slowed(self, factor: float) -> SimulatedEnsemble:
        """Return the same ensemble with all executions taking `factor` times as long."""
        return self._changed(lambda server: server.slowed(factor))

    def _changed(self, change: Callable[[SimulatedServer], SimulatedServer]) -> SimulatedEnsemble:
        return replace(self, steps=tuple(replace(step, server=change(step.server)) for step in self.steps))

    def run(
        self, arrivals_s: Floats, done_s: Floats, counted_from: int, late_after_s: float, late_at_most: int
    ) -> tuple[int, int]:
        """Fill `done_s` with the completions, as `SimulatedServer.run`. It may end early after any step."""
        executions, late, done_s[:] = 0, 0, arrivals_s
        steps_done_s: list[Floats] = []
        for step in self.steps:
            came_s = arrivals_s
            if step.after:
                came_s = np.max([steps_done_s[other] for other in step.after], axis=0)
            order = np.argsort(came_s, kind="stable")
            done_in_order_s = np.empty_like(came_s)
            executions += step.server.run(came_s[order], done_in_order_s, 0, math.inf, 0)[0]
            step_done_s = np.empty_like(came_s)
            step_done_s[order] = done_in_order_s
            steps_done_s.append(step_done_s)
            np.maximum(done_s, step_done_s, out=done_s)
            late = int(np.count_nonzero((done_s - arrivals_s)[counted_from:] > late_after_s))
            if late > late_at_most:
                break
        return executions, late


def longest_way_s(steps: Iterable[tuple[float, tuple[int, ...]]]) -> float:
    """Return the sum of seconds along the longest way through steps: the seconds of each, and which it follows."""
    until_s: list[float] = []
    for seconds, after in steps:
        until_s.append(max((until_s[other] for other in after), default=0.0) + seconds)
    return max(until_s)


Simulated = SimulatedServer | SimulatedEnsemble
"""What is simulated: one model, or an ensemble of several."""


def simulate(server: Simulated, arrivals_s: Floats) -> Floats:
    """Return the latencies of requests at these times, which ascend, to an idle server; both of shape (n,)."""
    done_s = np.empty(len(arrivals_s))
    server.run(arrivals_s, done_s, 0, math.inf, 0)
    return done_s - arrivals_s + server.overhead_s


def is_compiled() -> bool:
    """True if an earlier process kept the simulator's machine code on disk, or none can."""
    from search.simulator import batcher

    folder = cast("Any", batcher.simulate).stats.cache_path
    return folder is None or any(Path(folder).glob("batcher.simulate-*.nbi"))


def compile_simulator() -> None:
    """Compile the simulator, and keep it on disk if possible: 10 s, which its first use takes otherwise."""
    for delay_s in (0.0, 1e-3):
        simulate(SimulatedServer(service_s=np.ones((2, 2)), max_queue_delay_s=delay_s), np.zeros(1))


def count_late(
    server: Simulated,
    arrivals_s: Floats,
    *,
    limit_s: float,
    counted_from: int = 0,
    at_most: int | None = None,
) -> int:
    """Return how many requests take over the limit, not counting the first `counted_from`.

    The simulation ends early with more than `at_most` of them, which is faster.
    """
    most = len(arrivals_s) if at_most is None else at_most
    done_s = np.empty(len(arrivals_s))
    return server.run(arrivals_s, done_s, counted_from, limit_s - server.overhead_s, most)[1]


def padded(service_s: Floats, executed_sizes: Sequence[int]) -> Floats:
    """Return the service times if only these batch sizes are executed: others take as long as the next larger.

    Sizes beyond the largest of them stay as they are in `service_s`.
    """
    answer = service_s.copy()
    below = 1
    for size in sorted(set(executed_sizes)):
        if size >= len(service_s):
            break
        answer[below : size + 1] = service_s[size]
        below = size + 1
    return answer
