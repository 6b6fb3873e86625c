"""Triton's dynamic batcher in plain Python, short enough to be believed: slow, the measure of the fast one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def shaped_queue(
    arrivals_s: np.ndarray, *, shapes: Sequence[int], service_s: np.ndarray, instances: int = 1
) -> np.ndarray:
    """Completion times where requests have these shapes in turn: idle instances pull the oldest and those right
    behind it that have its shape.

    `service_s[s, b]` is how long a batch of b of shape s takes, however many instances are busy.
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
    arrivals_s: np.ndarray, *, service_s: np.ndarray, noise: np.ndarray | None = None, delay_s: float = 0.0
) -> np.ndarray:
    """Completion times: idle instances pull min(waiting, maximum) requests, first come first served.

    `service_s[b, k]` is how long a batch of b takes that is begun as the k-th busy instance, shape (maximum + 1,
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
    users: int, duration_s: float, *, service_s: np.ndarray, pauses_s: np.ndarray, noise: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, float]]]:
    """Send times, completion times, and each execution's batch size and seconds, when users ask again a moment
    after they are answered.

    The moments before each request are `pauses_s`, used in turn. Without them everybody would ask at once, and an
    idle instance would take all in one batch where in truth it begins with the first to come.
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
