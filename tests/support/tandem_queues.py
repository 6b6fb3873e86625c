"""Ensembles of plain queues in virtual time: event by event for closed loops, and fast for long runs."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fast_queue import batched_queue
from numpy.typing import NDArray


@dataclass(frozen=True)
class PlainStep:
    """A batcher and the steps that it follows; a batch of b takes `service_s[b]`, shape (maximum + 1,)."""

    service_s: NDArray[Any]
    instances: int = 1
    after: tuple[int, ...] = ()


Executed = list[tuple[int, float]]
"""Batch size and seconds of each execution."""


@dataclass
class Tandem:
    """An ensemble, event by event. What comes at one moment comes one after the other, in the order of arrival.

    `again(done_s)` returns when the user of a request that is done sends another one, or None. `sent` and `done`
    grow with the requests, `executed` is of each step.
    """

    steps: Sequence[PlainStep]
    sent: list[float]
    again: Callable[[float], float | None] = lambda _done_s: None
    done: dict[int, float] = field(default_factory=dict)
    executed: list[Executed] = field(default_factory=list)

    def run(self) -> Tandem:
        self.executed = [[] for _ in self.steps]
        self._idle = [step.instances for step in self.steps]
        self._waiting: list[list[int]] = [[] for _ in self.steps]
        self._passed: dict[int, set[int]] = {}
        self._events: list[tuple[float, int, int, list[int]]] = []  # time, ticket, step (-1: all begins), requests
        self._tickets = itertools.count()
        for request, time_s in enumerate(self.sent):
            self._at(time_s, -1, [request])
        while self._events:
            now, _, number, requests = heapq.heappop(self._events)
            if number >= 0:
                self._idle[number] += 1
                self._take(number, now)
            for request in sorted(requests):
                self._pass(request, number, now)
        return self

    def _at(self, time_s: float, number: int, requests: list[int]) -> None:
        heapq.heappush(self._events, (time_s, next(self._tickets), number, requests))

    def _pass(self, request: int, number: int, now: float) -> None:
        passed = self._passed.setdefault(request, set()) | {number}
        self._passed[request] = passed
        for other, step in enumerate(self.steps):
            if number in (step.after or (-1,)) and passed.issuperset(step.after):
                self._waiting[other].append(request)
                self._take(other, now)
        if len(passed) > len(self.steps):
            self.done[request] = now
            next_s = self.again(now)
            if next_s is not None:
                self._at(next_s, -1, [len(self.sent)])
                self.sent.append(next_s)

    def _take(self, number: int, now: float) -> None:
        largest = len(self.steps[number].service_s) - 1
        batch, rest = self._waiting[number][:largest], self._waiting[number][largest:]
        if batch and self._idle[number]:
            self._waiting[number] = rest
            self._idle[number] -= 1
            taken_s = float(self.steps[number].service_s[len(batch)])
            self.executed[number].append((len(batch), taken_s))
            self._at(now + taken_s, number, batch)


def completions(steps: Sequence[PlainStep], arrivals_s: NDArray[Any], delays_s: Sequence[float]) -> NDArray[Any]:
    """Return when each of the requests is done, one step after the other, each with a queue delay.

    An idle instance takes all that comes at one moment.
    """
    done: list[NDArray[Any]] = []
    for step, delay_s in zip(steps, delays_s, strict=True):
        came = np.max([done[other] for other in step.after], axis=0) if step.after else arrivals_s
        order = np.argsort(came, kind="stable")
        mine = np.empty_like(came)
        table = np.repeat(step.service_s[:, None], step.instances + 1, axis=1)
        mine[order] = batched_queue(came[order], service_s=table, delay_s=delay_s)
        done.append(mine)
    return np.max(done, axis=0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Served:
    """One configuration: its steps, and the queue delay of each."""

    steps: Sequence[PlainStep]
    delays_s: Sequence[float]

    def keeps(self, rate_per_s: float, *, limit_s: float, requests: int) -> bool:
        """True if 99 % of so many requests at this rate keep the limit, after a twentieth as many."""
        warmup = requests // 20
        arrivals = np.cumsum(np.random.default_rng(99).exponential(1.0, requests + warmup)) / rate_per_s
        late = completions(self.steps, arrivals, self.delays_s) - arrivals > limit_s
        return float(late[warmup:].mean()) <= 0.01

    def capacity(self, *, limit_s: float, requests: int, resolution: float = 0.003) -> float:
        """Return the highest such rate, by bisection; 0 if there is none."""
        low = high = min(
            step.instances * max(size / step.service_s[size] for size in range(1, len(step.service_s)))
            for step in self.steps
        )
        while not self.keeps(low, limit_s=limit_s, requests=requests):
            high, low = low, 0.8 * low
            if low < 1e-2 / limit_s:
                return 0.0
        while math.log(high / low) > resolution:
            middle = math.sqrt(low * high)
            kept = self.keeps(middle, limit_s=limit_s, requests=requests)
            low, high = (middle, high) if kept else (low, middle)
        return float(low)
