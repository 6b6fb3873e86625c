"""Simulate Triton's dynamic batcher in plain Python: slow, but short enough to trust; it checks fast_queue."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shaped_queue(
    arrivals_s: NDArray[Any], *, shapes: Sequence[int], service_s: NDArray[Any], instances: int = 1
) -> NDArray[Any]:
    """Return completion times if requests have these shapes in turn: idle instances pull the oldest and those
    directly after it with its shape.

    `service_s[s, b]` is the time of a batch of b of shape s, with any number of busy instances.
    """
    done: list[float] = []
    free, n = [0.0] * instances, len(arrivals_s)
    while len(done) < n:
        first, size = len(done), 1
        start, shape = max(heapq.heappop(free), arrivals_s[first]), shapes[first % len(shapes)]
        while size < service_s.shape[1] - 1 and first + size < n and arrivals_s[first + size] <= start:
            if shapes[(first + size) % len(shapes)] != shape:
                break
            size += 1
        heapq.heappush(free, start + service_s[shape, size])
        done += [start + service_s[shape, size]] * size
    return np.array(done)


def batched_queue(
    arrivals_s: NDArray[Any], *, service_s: NDArray[Any], noise: NDArray[Any] | None = None, delay_s: float = 0.0
) -> NDArray[Any]:
    """Return completion times: idle instances pull min(waiting, maximum) requests, first come first served.

    `service_s[b, k]` is the time of a batch of b that starts as the k-th busy instance, shape (maximum + 1,
    instances + 1); `noise` are factors on it, used in turn.
    """
    max_batch_size, instances = service_s.shape[0] - 1, service_s.shape[1] - 1
    factors = np.ones(1) if noise is None else noise
    done = np.empty_like(arrivals_s)
    free = [0.0] * instances
    heapq.heapify(free)
    first, n, executions = 0, len(arrivals_s), 0
    while first < n:
        start = max(heapq.heappop(free), arrivals_s[first])
        full_at = arrivals_s[first + max_batch_size - 1] if first + max_batch_size <= n else np.inf
        if delay_s > 0:
            start = max(start, min(full_at, arrivals_s[first] + delay_s))
        end = int(np.searchsorted(arrivals_s[first : first + max_batch_size], start, side="right"))
        size, busy = max(end, 1), 1 + sum(until > start for until in free)
        finish = start + service_s[size, busy] * factors[executions % len(factors)]
        done[first : first + size] = finish
        heapq.heappush(free, finish)
        first += size
        executions += 1
    return done


def closed_loop(
    users: int,
    duration_s: float,
    *,
    service_s: NDArray[Any],
    pauses_s: NDArray[Any],
    noise: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[Any], list[tuple[int, float]]]:
    """Return send times, completion times, and each execution's batch size and seconds, if users send again
    shortly after each response.

    The pauses before each request are `pauses_s`, used in turn. Without them all users would send at once, and an
    idle instance would take all in one batch, but a real one begins with the first request.
    """
    max_batch_size, instances = service_s.shape[0] - 1, service_s.shape[1] - 1
    factors = np.ones(1) if noise is None else noise
    free = [0.0] * instances
    waiting = sorted(float(pauses_s[user % len(pauses_s)]) for user in range(users))
    asked = users
    sent: list[float] = []
    done: list[float] = []
    executions: list[tuple[int, float]] = []
    while waiting[0] < duration_s:
        start = max(heapq.heappop(free), waiting[0])
        size = min(sum(due <= start for due in waiting), max_batch_size)
        busy = 1 + sum(until > start for until in free)
        taken_s = float(service_s[size, busy] * factors[len(executions) % len(factors)])
        heapq.heappush(free, start + taken_s)
        executions.append((size, taken_s))
        sent += waiting[:size]
        done += [start + taken_s] * size
        again = [start + taken_s + float(pauses_s[(asked + user) % len(pauses_s)]) for user in range(size)]
        waiting, asked = sorted(waiting[size:] + again), asked + size
    order = np.argsort(sent, kind="stable")
    return np.array(sent)[order], np.array(done)[order], executions
