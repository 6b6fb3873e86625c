"""Triton's dynamic batcher and the instances it feeds, event by event, in machine code.

Compiled with numba, which is slow to import: import this module only in functions that simulate, as
`search.simulator.server` does. The rules are those of Triton's `dynamic_batch_scheduler.cc`, `rate_limiter.cc` and
`instance_queue.cc`; docs/adr/0003-how-triton-forms-batches.md describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from search.arrays import Floats

Sizes = NDArray[np.bool_]
Shapes = NDArray[np.int64] | None
Function = TypeVar("Function", bound=Callable[..., Any])

IDLE_WAIT_S = 0.5
"""After 0.5 s the batcher looks at its queue even if no request woke it."""

BATCHES_AHEAD = 2
"""At most two formed batches per instance wait for it; then the batcher forms no further one."""

_INF = np.inf
_TICK_S = 1e-9

_STATE = np.dtype(
    [
        ("now_s", "f8"),
        ("arrived", "i8"),  # requests so far
        ("queued_from", "i8"),  # the first of them that is in no batch yet
        ("formed_from", "i8"),  # the first of them that no instance has taken yet
        ("head", "i8"),  # the batches from here ...
        ("tail", "i8"),  # ... to here are formed and wait for an instance
        ("growing", "?"),  # the last of them still takes requests
        ("grows_from", "i8"),  # its first request
        ("sealed", "?"),  # the next request has another shape than the last batch
        ("wanted", "i8"),  # number of queued requests that wakes the batcher
        ("wakes_at_s", "f8"),  # the next time that it looks by itself
        ("busy", "i8"),  # instances
        ("seen_s", "f8"),  # the work of the instances is accounted for up to here
        ("finishes_at_s", "f8"),  # the next of them to finish, and its number
        ("finishes", "i8"),
        ("executions", "i8"),  # started so far
    ]
)

_BATCH = np.dtype([("end", "i8"), ("sealed", "?")])  # the first request after it; True if that has another shape

_INSTANCE = np.dtype(
    [
        ("first", "i8"),  # the requests it works on, ...
        ("end", "i8"),  # ... this one not among them; the same as `first`: it is idle
        ("row", "i8"),  # row of the service times for them
        ("left", "f8"),  # the share of the work that is left
        ("noise", "f8"),  # how much longer than usual this execution takes
    ]
)


def compiled(function: Function) -> Function:
    """Return the function in machine code, which lets other threads run; cached on disk if possible."""
    try:
        made = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no file can be written, next to the code or in the user's own cache
        made = numba.njit(nogil=True)(function)
    return cast("Function", made)


@compiled
def shape_of(shapes: Shapes, request: int) -> Any:
    """Return the number of a request's shape; 0 if all have the same."""
    if shapes is None:  # decided when it is compiled
        return 0
    return shapes[0, request]


@compiled
def row_of(shapes: Shapes, request: int, size: int, max_batch: int) -> Any:
    """Return the row of the service times for a batch that begins with this request."""
    if shapes is None:
        return size
    return shapes[1, request] * (max_batch + 1) + size


@compiled
def _in_time(state: Any, workers: Any, service_s: Floats) -> None:
    """Account for the work since the last change, at the speed with the present number of busy instances."""
    passed_s = state.now_s - state.seen_s
    state.seen_s = state.now_s
    if state.busy == 0 or passed_s == 0.0:
        return
    for number in range(len(workers)):
        worker = workers[number]
        if worker.end > worker.first:
            worker.left -= passed_s / (service_s[worker.row, state.busy] * worker.noise)


@compiled
def _look_ahead(state: Any, workers: Any, service_s: Floats) -> None:
    """Find which instance finishes next, if nothing changes until then."""
    state.finishes_at_s = _INF
    for number in range(len(workers)):
        worker = workers[number]
        if worker.end > worker.first:
            left_s = worker.left * service_s[worker.row, state.busy] * worker.noise
            if state.now_s + left_s < state.finishes_at_s:
                state.finishes_at_s = state.now_s + left_s
                state.finishes = number


@compiled
def _begin(state: Any, worker: Any, first: int, end: int, shapes: Shapes, noise: Floats, max_batch: int) -> None:
    worker.first, worker.end, worker.left = first, end, 1.0
    worker.row = row_of(shapes, first, end - first, max_batch)
    worker.noise = noise[state.executions % len(noise)]
    state.executions += 1
    state.busy += 1


@compiled
def _finish(state: Any, worker: Any) -> None:
    """End the batch of an instance."""
    worker.first = worker.end
    state.busy -= 1


@compiled
def _dequeued(state: Any, arrivals_s: Floats, shapes: Shapes, batches: Any, max_batch: int, delay_s: float) -> int:
    """Take the oldest formed batch, merged with the next ones that are overdue and fit; return its end.

    A batch that is known to be followed by another shape is not merged.
    """
    batch = batches[state.head % len(batches)]
    first, end = state.formed_from, batch.end
    merges = delay_s > 0.0 and max_batch > 1 and not (shapes is not None and batch.sealed)
    state.head += 1
    touched = state.head
    while merges and state.head < state.tail:
        batch = batches[state.head % len(batches)]
        if state.now_s - arrivals_s[end] <= delay_s or (shapes is not None and batch.sealed):
            break
        touched = state.head + 1  # it takes no more requests, even if it does not fit
        following = batch.end
        if following - first > max_batch or shape_of(shapes, end) != shape_of(shapes, first):
            break
        end = following
        state.head += 1
    if touched == state.tail:
        state.growing, state.wanted = False, 0
    state.formed_from = end
    return int(end)


@compiled
def _take(
    state: Any, workers: Any, arrivals_s: Floats, shapes: Shapes, batches: Any, noise: Floats,
    max_batch: int, delay_s: float,
) -> None:  # fmt: skip
    """Give formed batches to idle instances."""
    if state.head == state.tail:
        return
    for number in range(len(workers)):
        worker = workers[number]
        if state.head < state.tail and worker.end == worker.first:
            first = state.formed_from
            end = _dequeued(state, arrivals_s, shapes, batches, max_batch, delay_s)
            _begin(state, worker, first, end, shapes, noise, max_batch)


@compiled
def _choose(  # noqa: C901, PLR0912 - as branchy as its original
    state: Any,
    arrivals_s: Floats,
    shapes: Shapes,
    preferred: Sizes,
    max_batch: int,
    most_preferred: int,
    delay_s: float,
) -> tuple[int, bool, float]:
    """Return the number of queued requests to move into the batch, True if it is full then, and seconds to wait.

    Triton's `GetDynamicBatch`. Sets the number of queued requests that wakes the batcher earlier, and the flag
    that the next request is kept out by its shape.
    """
    size = state.queued_from - state.grows_from if state.growing else 0
    shape = shape_of(shapes, state.grows_from if state.growing else state.queued_from)
    if shapes is not None:
        state.sealed = False
    pending, best, full, send_now = 0, 0, False, False
    while state.queued_from + pending < state.arrived:
        if size + pending > 0:
            if size + pending + 1 > most_preferred and best == 0:
                best, full = pending, True
            if size + pending + 1 > max_batch:
                send_now = True
                break
            if shape_of(shapes, state.queued_from + pending) != shape:
                state.sealed = send_now = True
                break
        pending += 1
        if preferred[size + pending]:
            best = pending
    waited_s = state.now_s - arrivals_s[state.queued_from]
    overdue = delay_s > 0.0 and waited_s >= delay_s - _TICK_S
    if best != 0 and not overdue:
        return best, full or delay_s == 0.0, 0.0
    if pending == 0:
        return 0, full, 0.0
    if send_now or size + pending >= most_preferred:
        return pending, True, 0.0
    if overdue or delay_s == 0.0:
        return pending, full, 0.0
    wanted = size + pending + 1
    while not preferred[wanted]:
        wanted += 1
    state.wanted = wanted - size
    if size != 0 and not full and not preferred[size]:
        return pending, full, 0.0
    return 0, full, delay_s - waited_s


@compiled
def _form(
    state: Any, arrivals_s: Floats, shapes: Shapes, batches: Any, preferred: Sizes,
    max_batch: int, most_preferred: int, delay_s: float,
) -> bool:  # fmt: skip
    """Run one turn of the batcher's thread; False if it goes to sleep."""
    if state.queued_from == state.arrived:
        state.wakes_at_s = state.now_s + IDLE_WAIT_S
        return False
    if state.tail - state.head >= len(batches):
        state.wakes_at_s = _INF  # until an instance takes a batch
        return False
    moved, full, wait_s = _choose(state, arrivals_s, shapes, preferred, max_batch, most_preferred, delay_s)
    if wait_s > 0.0:
        state.wakes_at_s = state.now_s + wait_s
        return False
    if moved > 0:
        if not state.growing:
            state.growing, state.grows_from = True, state.queued_from
            state.tail += 1
        state.queued_from += moved
        batches[(state.tail - 1) % len(batches)].end = state.queued_from
    if shapes is not None:
        batches[(state.tail - 1) % len(batches)].sealed = state.sealed
    if full:
        state.growing, state.wanted = False, 0
    elif moved == 0:
        state.wakes_at_s = _INF  # until an instance takes the batch, which another shape is waiting behind
        return False
    return True


@compiled
def simulate(  # noqa: C901 - one loop over events of three kinds
    arrivals_s: Floats,
    shapes: Shapes,
    service_s: Floats,
    noise: Floats,
    preferred: Sizes,
    instances: int,
    delay_s: float,
    wake_always: bool,
    done_s: Floats,
    counted_from: int,
    late_after_s: float,
    late_at_most: int,
) -> tuple[int, int]:
    """Fill `done_s` with completion times; return the numbers of executed batches and of late requests.

    `arrivals_s` ascend, shape (n,). `service_s[b, k]` is the time of a batch of b while k instances are busy,
    shape (max_batch + 1, instances + 1); `noise` holds factors on it, used in turn. If requests differ in
    shape, `service_s` is several such tables below each other, and `shapes`, shape (2, n), numbers each request's
    shape and its table, from 0; else `shapes` is None. `preferred[b]`, shape (max_batch + 1,), is True for the
    sizes that are sent at once, one at least. `wake_always`: every request wakes the batcher, as in Triton if the
    shapes of inputs vary.

    A request is late if it took over `late_after_s`; those before `counted_from` are not counted, and with more
    than `late_at_most` late requests the simulation ends.
    """
    n, max_batch, finished, late = len(arrivals_s), len(preferred) - 1, 0, 0
    most_preferred = max_batch
    while not preferred[most_preferred]:
        most_preferred -= 1
    states = np.zeros(1, _STATE)
    state = states[0]
    state.wakes_at_s = state.finishes_at_s = _INF
    workers = np.zeros(instances, _INSTANCE)
    batches = np.zeros(BATCHES_AHEAD * instances, _BATCH)
    while finished < n and late <= late_at_most:
        arrival_s = arrivals_s[state.arrived] if state.arrived < n else _INF
        freed = False
        if arrival_s <= state.finishes_at_s and arrival_s <= state.wakes_at_s:
            state.now_s = arrival_s
            state.arrived += 1
            slots = state.tail - state.head < len(batches)
            if not slots or not (wake_always or state.arrived - state.queued_from >= state.wanted):
                continue
        elif state.finishes_at_s <= state.wakes_at_s:
            state.now_s, freed = state.finishes_at_s, True
            _in_time(state, workers, service_s)
            worker = workers[state.finishes]
            for request in range(worker.first, worker.end):
                done_s[request] = state.now_s
                if request >= counted_from and state.now_s - arrivals_s[request] > late_after_s:
                    late += 1
            finished += worker.end - worker.first
            _finish(state, worker)
            _take(state, workers, arrivals_s, shapes, batches, noise, max_batch, delay_s)
        else:
            state.now_s = state.wakes_at_s
        while _form(state, arrivals_s, shapes, batches, preferred, max_batch, most_preferred, delay_s):
            if state.head < state.tail and state.busy < instances:
                _in_time(state, workers, service_s)
                _take(state, workers, arrivals_s, shapes, batches, noise, max_batch, delay_s)
                freed = True
        if freed:
            _look_ahead(state, workers, service_s)
    return states[0].executions, late  # keeps the array alive, which `state` does not
