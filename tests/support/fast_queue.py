"""Compute `plain_queue` in machine code, for hundreds of simulated servers. No code of `search` takes part."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def _begin(free: NDArray[np.float64], not_before_s: Any) -> tuple[int, Any]:
    """Return the instance that is free first, its start time, and the number of busy instances then."""
    number = 0
    for other in range(1, len(free)):
        if free[other] < free[number]:
            number = other
    start = max(free[number], not_before_s)
    return number, start


@numba.njit(cache=True, nogil=True)
def _busy(free: NDArray[np.float64], number: Any, start: Any) -> int:
    busy = 1
    for other in range(len(free)):
        if other != number and free[other] > start:
            busy += 1
    return busy


@numba.njit(cache=True, nogil=True)
def _pull(
    arrivals_s: NDArray[Any],
    service_s: NDArray[Any],
    noise: NDArray[np.float64] | NDArray[Any],
    delay_s: float,
    done: NDArray[Any],
    counted_from: int,
    late_after_s: float,
    at_most: int,
) -> int:
    """Fill `done`; stop if more than `at_most` from `counted_from` on are late. Returns the number of them."""
    max_batch_size, free = service_s.shape[0] - 1, np.zeros(service_s.shape[1] - 1)
    first, n, executions, late = 0, len(arrivals_s), 0, 0
    while first < n and late <= at_most:
        number, start = _begin(free, arrivals_s[first])
        if delay_s > 0:
            full_at = arrivals_s[first + max_batch_size - 1] if first + max_batch_size <= n else np.inf
            start = max(start, min(full_at, arrivals_s[first] + delay_s))
        size = 1
        while size < max_batch_size and first + size < n and arrivals_s[first + size] <= start:
            size += 1
        taken_s = service_s[size, _busy(free, number, start)] * noise[executions % len(noise)]
        free[number] = start + taken_s
        for request in range(first, first + size):
            done[request] = start + taken_s
            if request >= counted_from and done[request] - arrivals_s[request] > late_after_s:
                late += 1
        first += size
        executions += 1
    return late


@numba.njit(cache=True, nogil=True)
def _loop(
    users: int,
    duration_s: float,
    service_s: NDArray[Any],
    noise: NDArray[np.float64] | NDArray[Any],
    pauses_s: NDArray[Any],
    sent: NDArray[np.float64],
    done: NDArray[np.float64],
    sizes: NDArray[np.int64],
    taken: NDArray[np.float64],
) -> tuple[int, int]:
    """Fill the arrays; returns the numbers of requests and executions."""
    max_batch_size, free = service_s.shape[0] - 1, np.zeros(service_s.shape[1] - 1)
    waiting = np.empty(users)  # ascending
    for user in range(users):
        waiting[user] = pauses_s[user % len(pauses_s)]
    waiting.sort()
    requests, executions = 0, 0
    while waiting[0] < duration_s:
        number, start = _begin(free, waiting[0])
        size = 1
        while size < min(max_batch_size, users) and waiting[size] <= start:
            size += 1
        taken_s = service_s[size, _busy(free, number, start)] * noise[executions % len(noise)]
        finish = start + taken_s
        free[number] = finish
        sizes[executions], taken[executions] = size, taken_s
        for user in range(size):
            sent[requests + user], done[requests + user] = waiting[user], finish
        waiting[: users - size] = waiting[size:].copy()
        for user in range(size):
            due, place = finish + pauses_s[(users + requests + user) % len(pauses_s)], users - size + user
            while place > 0 and waiting[place - 1] > due:
                waiting[place] = waiting[place - 1]
                place -= 1
            waiting[place] = due
        requests, executions = requests + size, executions + 1
    return requests, executions


def batched_queue(
    arrivals_s: NDArray[Any], *, service_s: NDArray[Any], noise: NDArray[Any] | None = None, delay_s: float = 0.0
) -> NDArray[Any]:
    """Do the same as `plain_queue.batched_queue`."""
    done = np.empty_like(arrivals_s)
    _pull(arrivals_s, service_s, np.ones(1) if noise is None else noise, delay_s, done, 0, np.inf, len(done))
    return done


def late_requests(
    arrivals_s: NDArray[Any],
    *,
    service_s: NDArray[Any],
    noise: NDArray[Any],
    delay_s: float,
    limit_s: float,
    counted_from: int,
    at_most: int,
) -> int:
    """Count requests from `counted_from` on that take over the limit; above `at_most` it may be any number."""
    done = np.empty_like(arrivals_s)
    return _pull(arrivals_s, service_s, noise, delay_s, done, counted_from, limit_s, at_most)


def closed_loop(
    users: int,
    duration_s: float,
    *,
    service_s: NDArray[Any],
    pauses_s: NDArray[Any],
    noise: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[Any], list[tuple[int, float]]]:
    """Do the same as `plain_queue.closed_loop`."""
    factors = np.ones(1) if noise is None else noise
    shortest_s = float(service_s[1:, 1:].min() * factors.min())
    instances = service_s.shape[1] - 1
    most = math.ceil(duration_s / shortest_s + 2) * instances + users  # who wait at the end are served, too
    largest = min(service_s.shape[0] - 1, users)
    sent, done = np.empty(most * largest), np.empty(most * largest)
    sizes, taken = np.empty(most, np.int64), np.empty(most)
    requests, executions = _loop(users, duration_s, service_s, factors, pauses_s, sent, done, sizes, taken)
    order = np.argsort(sent[:requests], kind="stable")
    each = list(zip(sizes[:executions].tolist(), taken[:executions].tolist(), strict=True))
    return sent[:requests][order], done[:requests][order], each
