"""The batcher without queue delay, batch by batch instead of event by event: the same times in less time.

Without a delay a formed batch goes on growing until an instance takes it, so an instance that becomes idle takes
min(waiting, maximum) requests at once, and a request that arrives at a busy server is no event.
`batcher` comes to the same times (tests/property/test_simulator_properties.py). Like that module, this one imports
numba, which is slow: import it only in functions that simulate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from search.arrays import Floats
from search.simulator.batcher import Shapes, compiled, row_of, shape_of


@compiled
def _next_to_finish(
    first: Any, end: Any, row: Any, left: Floats, factor: Floats, service_s: Floats, busy: int
) -> tuple[float, int]:
    """Return the seconds until an instance finishes, and its number, if nothing changes until then."""
    soonest_s, finishes = np.inf, -1
    for number in range(len(left)):
        if end[number] > first[number]:
            left_s = left[number] * service_s[row[number], busy] * factor[number]
            if left_s < soonest_s:
                soonest_s, finishes = left_s, number
    return soonest_s, finishes


@compiled
def _first_idle(first: Any, end: Any) -> int:
    number = 0
    while end[number] > first[number]:
        number += 1
    return number


@compiled
def _in_time(
    passed_s: float, first: Any, end: Any, row: Any, left: Floats, factor: Floats, service_s: Floats, busy: int
) -> None:
    """Account for the work of `passed_s`, at the speed with so many busy instances."""
    for number in range(len(left)):
        if end[number] > first[number]:
            left[number] -= passed_s / (service_s[row[number], busy] * factor[number])


@compiled
def _answer(
    now_s: float, begin: int, end: int, arrivals_s: Floats, done_s: Floats, counted_from: int, late_after_s: float
) -> int:
    """Write the completion times of these requests; return how many were late."""
    late = 0
    for request in range(begin, end):
        done_s[request] = now_s
        if request >= counted_from and now_s - arrivals_s[request] > late_after_s:
            late += 1
    return late


@compiled
def _waiting(now_s: float, queued_from: int, max_batch: int, arrivals_s: Floats, shapes: Shapes) -> int:
    """Return the size of the next batch: it ends before a request that has not come yet or has another shape."""
    size, n = 0, len(arrivals_s)
    while size < max_batch and queued_from + size < n and arrivals_s[queued_from + size] <= now_s:
        if shape_of(shapes, queued_from + size) != shape_of(shapes, queued_from):
            break
        size += 1
    return size


@compiled
def simulate_undelayed(
    arrivals_s: Floats,
    shapes: Shapes,
    service_s: Floats,
    noise: Floats,
    max_batch: int,
    done_s: Floats,
    counted_from: int,
    late_after_s: float,
    late_at_most: int,
) -> tuple[int, int]:
    """Do the same as `batcher.simulate`, without delay and smaller preferred sizes."""
    n, instances = len(arrivals_s), service_s.shape[1] - 1
    first = np.zeros(instances, np.int64)  # the requests that each instance works on, ...
    end = np.zeros(instances, np.int64)  # ... this one not among them; the same as `first`: it is idle
    row = np.zeros(instances, np.int64)  # row of the service times for them
    left = np.zeros(instances)  # the share of the work that is left
    factor = np.ones(instances)  # how much longer than usual this execution takes
    queued_from, busy, executions, finished, late = 0, 0, 0, 0, 0
    now_s = 0.0
    while finished < n and late <= late_at_most:
        passed_s, number = _next_to_finish(first, end, row, left, factor, service_s, busy)
        meets_idle = busy < instances and queued_from < n and arrivals_s[queued_from] <= now_s + passed_s
        next_s = arrivals_s[queued_from] if meets_idle else now_s + passed_s
        _in_time(next_s - now_s, first, end, row, left, factor, service_s, busy)
        now_s = next_s
        if meets_idle:
            number, size = _first_idle(first, end), 1
        else:
            late += _answer(now_s, first[number], end[number], arrivals_s, done_s, counted_from, late_after_s)
            finished += end[number] - first[number]
            busy -= 1
            size = _waiting(now_s, queued_from, max_batch, arrivals_s, shapes)
        first[number], end[number] = queued_from, queued_from + size
        if size > 0:
            row[number] = row_of(shapes, queued_from, size, max_batch)
            left[number], factor[number] = 1.0, noise[executions % len(noise)]
            executions += 1
            busy += 1
            queued_from += size
    return executions, late
