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


@dataclass
class _Busy:
    """The waiting requests and the idle instances of a step, and the batches that it has executed."""

    idle: int
    waiting: list[int] = field(default_factory=list)
    executed: list[tuple[int, float]] = field(default_factory=list)


def tandem(
    steps: Sequence[PlainStep], arrivals_s: Sequence[float], *, again: Callable[[int, float], float | None]
) -> tuple[list[float], list[float], list[list[tuple[int, float]]]]:
    """Return arrival and completion of each request, and each step's executions: batch size and seconds.

    `again(request, done_s)` returns when its user sends another one, or None. All that happens at one moment has
    happened before an idle instance takes what waits.
    """
    sent, done = list(arrivals_s), [math.nan] * len(arrivals_s)
    left = [[len(step.after) for step in steps] for _ in sent]  # inputs that are missing
    steps_left = [len(steps)] * len(sent)
    state, ticket = [_Busy(step.instances) for step in steps], itertools.count()
    events: list[tuple[float, int, int, list[int]]] = []  # time, ticket, step (-1: an arrival), requests
    for request, time_s in enumerate(sent):
        heapq.heappush(events, (time_s, next(ticket), -1, [request]))
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, number, requests = heapq.heappop(events)
            state[number].idle += number >= 0
            for request in requests:
                for other, step in enumerate(steps):
                    if number in step.after:
                        left[request][other] -= 1
                    first = number < 0 and not step.after
                    if first or (number in step.after and left[request][other] == 0):
                        state[other].waiting.append(request)
                steps_left[request] -= number >= 0
                if steps_left[request] == 0:
                    done[request] = now
                    next_s = again(request, now)
                    if next_s is not None:
                        heapq.heappush(events, (next_s, next(ticket), -1, [len(sent)]))
                        sent.append(next_s)
                        done.append(math.nan)
                        left.append([len(step.after) for step in steps])
                        steps_left.append(len(steps))
        for number, (step, at) in enumerate(zip(steps, state, strict=True)):
            while at.idle and at.waiting:
                batch, at.waiting = at.waiting[: len(step.service_s) - 1], at.waiting[len(step.service_s) - 1 :]
                at.idle -= 1
                taken_s = float(step.service_s[len(batch)])
                at.executed.append((len(batch), taken_s))
                heapq.heappush(events, (now + taken_s, next(ticket), number, batch))
    return sent, done, [at.executed for at in state]


def completions(steps: Sequence[PlainStep], arrivals_s: NDArray[Any], delays_s: Sequence[float]) -> NDArray[Any]:
    """Return when each of the requests is done, one step after the other, each with a queue delay."""
    done: list[NDArray[Any]] = []
    for step, delay_s in zip(steps, delays_s, strict=True):
        came = np.max([done[other] for other in step.after], axis=0) if step.after else arrivals_s
        order = np.argsort(came, kind="stable")
        mine = np.empty_like(came)
        table = np.repeat(step.service_s[:, None], step.instances + 1, axis=1)
        mine[order] = batched_queue(came[order], service_s=table, delay_s=delay_s)
        done.append(mine)
    return np.max(done, axis=0)  # type: ignore[no-any-return]


def tandem_capacity(
    steps: Sequence[PlainStep],
    delays_s: Sequence[float],
    *,
    limit_s: float,
    requests: int,
    resolution: float = 0.003,
) -> float:
    """Return the highest rate at which 99 % of requests keep the limit, by bisection; 0 if there is none."""
    unit = np.cumsum(np.random.default_rng(99).exponential(1.0, requests + requests // 20))

    def met(rate_per_s: float) -> bool:
        late = completions(steps, unit / rate_per_s, delays_s) - unit / rate_per_s > limit_s
        return float(late[requests // 20 :].mean()) <= 0.01

    low = high = min(
        step.instances * max(size / step.service_s[size] for size in range(1, len(step.service_s)))
        for step in steps
    )
    while not met(low):
        high, low = low, 0.8 * low
        if low < high / 1e3 or low < 1e-3 / limit_s:
            return 0.0
    while math.log(high / low) > resolution:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return float(low)
