"""An ensemble in virtual time: a batcher for each step, whose arrivals are what the steps before it have done."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from search.arrays import Floats
from search.simulator.server import SimulatedServer


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
        """Fill `done_s` with the completions; see `Simulated`. It may end early after any step."""
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
