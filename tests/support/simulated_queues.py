"""Queues in virtual time, whose share of slow requests is known by theory or by a far longer simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog

Times = NDArray[np.float64]
Completions = Callable[[np.random.Generator, Times], Times]
"""Completion times of requests that arrive at the given times; both of shape (runs, requests), in s."""


def _single_server(arrivals: Times, service: Times) -> Times:
    """Lindley's recursion, first come first served: the work so far plus all idle time so far."""
    work = np.cumsum(service, axis=1)
    return work + np.maximum.accumulate(arrivals - (work - service), axis=1)  # type: ignore[no-any-return]


def exponential_server(rng: np.random.Generator, arrivals: Times, *, service_s: float) -> Times:
    """M/M/1: one server, exponential service times."""
    return _single_server(arrivals, rng.exponential(service_s, arrivals.shape))


def constant_servers(rng: np.random.Generator, arrivals: Times, *, service_s: float, servers: int) -> Times:
    """M/D/c: with constant service times, every c-th request meets the same server."""
    done = np.empty_like(arrivals)
    for server in range(servers):
        mine = arrivals[:, server::servers]
        done[:, server::servers] = _single_server(mine, np.full(mine.shape, service_s))
    return done


def batching_server(
    rng: np.random.Generator, arrivals: Times, *, fixed_s: float, each_s: float, max_batch: int, instances: int = 1
) -> Times:
    """Triton's dynamic batcher without delay: an idle instance takes min(waiting, maximum) requests at once."""
    runs, n = arrivals.shape
    padded = np.concatenate([arrivals, np.full((runs, max_batch), np.inf)], axis=1)
    done = np.empty_like(padded)
    free = np.zeros((runs, instances))
    first = np.zeros(runs, int)
    offsets = np.arange(max_batch)
    active = np.arange(runs)
    while len(active):
        instance = free[active].argmin(axis=1)
        columns = first[active, None] + offsets
        rows = np.broadcast_to(active[:, None], columns.shape)
        waiting = padded[rows, columns]
        start = np.maximum(free[active, instance], waiting[:, 0])
        batch = (waiting <= start[:, None]).sum(axis=1)
        end = start + fixed_s + each_s * batch
        free[active, instance] = end
        taken = offsets < batch[:, None]
        done[rows[taken], columns[taken]] = np.broadcast_to(end[:, None], columns.shape)[taken]
        first[active] += batch
        active = active[first[active] < n]
    return done[:, :n]  # type: ignore[no-any-return]


def poisson_arrivals(rng: np.random.Generator, rate_per_s: float, duration_s: float, runs: int) -> Times:
    """Arrival times of independent runs, shape (runs, n), the last ones well beyond `duration_s`."""
    n = math.ceil(rate_per_s * duration_s + 8 * math.sqrt(rate_per_s * duration_s)) + 8
    times: Times = np.cumsum(rng.exponential(1 / rate_per_s, (runs, n)), axis=1)
    return times


def log_of(scheduled_s: Times, done_s: Times) -> RequestLog:
    """The log of requests that leave on time and are answered without failure; both of shape (n,)."""
    scheduled_ns = (scheduled_s * 1e9).astype(np.int64)
    return RequestLog(
        scheduled_ns=scheduled_ns,
        sent_ns=scheduled_ns,
        done_ns=(done_s * 1e9).astype(np.int64),
        outcome=np.zeros(len(scheduled_ns), np.uint8),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue, a latency limit, and the rate at which one request in a hundred takes longer."""

    name: str
    completions: Completions
    limit_ms: float
    rate_at_limit_per_s: float

    def logs(self, rate_per_s: float, duration_s: float, *, seed: int, runs: int) -> Iterator[RequestLog]:
        """Logs of independent runs that begin with an empty queue."""
        rng = np.random.default_rng(seed)
        arrivals = poisson_arrivals(rng, rate_per_s, duration_s, runs)
        done = self.completions(rng, arrivals)
        for scheduled_s, done_s in zip(arrivals, done, strict=True):
            due = int(np.searchsorted(scheduled_s, duration_s))
            yield log_of(scheduled_s[:due], done_s[:due])

    def share_over_limit(self, rate_per_s: float, *, seed: int, requests: float = 4e6, runs: int = 100) -> float:
        """The long-run share of requests over the limit, by simulation; without each run's first third."""
        rng = np.random.default_rng(seed)
        arrivals = poisson_arrivals(rng, rate_per_s, requests / runs / rate_per_s, runs)
        latency_s = (self.completions(rng, arrivals) - arrivals)[:, arrivals.shape[1] // 3 :]
        return float(np.mean(latency_s > self.limit_ms / 1e3))


def exponential_queue(name: str, *, service_s: float, limit_ms: float) -> Queue:
    """M/M/1: time in the system is exponential with rate mu - lambda, so that lambda = mu + ln(0.01) / limit."""
    return Queue(
        name=name,
        completions=partial(exponential_server, service_s=service_s),
        limit_ms=limit_ms,
        rate_at_limit_per_s=1 / service_s + math.log(0.01) / (limit_ms / 1e3),
    )


SLOW_EXPONENTIAL = exponential_queue("M/M/1, CPU", service_s=1 / 120, limit_ms=150)
FAST_EXPONENTIAL = exponential_queue("M/M/1, tight limit", service_s=1 / 2000, limit_ms=8)
LONG_BURSTS = exponential_queue("M/M/1, long bursts", service_s=1e-3, limit_ms=50)
CONSTANT = Queue(
    name="M/D/2",
    completions=partial(constant_servers, service_s=0.02, servers=2),
    limit_ms=150,
    rate_at_limit_per_s=84.0,
)
BATCHING_CPU = Queue(
    name="batching, 2 CPU instances",
    completions=partial(batching_server, fixed_s=0.02, each_s=0.008, max_batch=8, instances=2),
    limit_ms=150,
    rate_at_limit_per_s=153.0,
)
BATCHING_GPU = Queue(
    name="batching, GPU",
    completions=partial(batching_server, fixed_s=0.008, each_s=0.0008, max_batch=16),
    limit_ms=50,
    rate_at_limit_per_s=669.8,
)
QUEUES = (SLOW_EXPONENTIAL, FAST_EXPONENTIAL, LONG_BURSTS, CONSTANT, BATCHING_CPU, BATCHING_GPU)
