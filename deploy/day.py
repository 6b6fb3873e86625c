"""Replay a day of traffic on an autoscaled service: replicas, late requests and cost, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deploy.autoscaler import Autoscaler, Behavior
from deploy.scaling import HPA_SYNC_S, RATE_WINDOW_S, SCRAPE_INTERVAL_S
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.batcher import compiled
from search.simulator.capacity import rate_at_limit
from search.simulator.server import Simulated, simulate
from search.workload import unit_arrivals

STEP_S = 1.0
MINUTE_S = 60.0
CURVE_REQUESTS = 40_000
CURVE_LOADS = tuple(np.r_[0.05:0.8:10j, 0.82:0.998:16j])  # of what the replica can do at any latency


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """One replica under steady load, by simulation.

    At each of `loads_per_s` (n,), ascending, the share of its requests that are late, (n,), and the latency at the
    limit's quantile in ms, (n,). It answers at most `saturation_per_s`; a request that waits for longer than
    `room_s` behind others that it cannot keep up with is late. `capacity_per_s` is the most that meets the limit.
    """

    loads_per_s: Floats
    late: Floats
    latency_ms: Floats
    saturation_per_s: float
    room_s: float
    capacity_per_s: float


def replica_of(server: Simulated, limit: LatencyLimit, *, capacity_per_s: float, seed: int = 0) -> Replica:
    """Return the replica whose capacity is the measured one: the simulated rates are stretched to it.

    Raises ValueError if the simulated server does not meet the limit at any rate.
    """
    unit = unit_arrivals(seed, requests=CURVE_REQUESTS)
    simulated_per_s = rate_at_limit(server, (limit,), unit)
    if not simulated_per_s > 0:
        raise ValueError(f"{simulated_per_s=}")
    stretch = capacity_per_s / simulated_per_s
    saturation_per_s = min(server.saturation_per_s, server.let_through_per_s)
    latencies_s = [
        simulate(server, unit / (share * saturation_per_s))[CURVE_REQUESTS // 20 :] for share in CURVE_LOADS
    ]
    return Replica(
        loads_per_s=np.array(CURVE_LOADS) * saturation_per_s * stretch,
        late=np.maximum.accumulate([float(np.mean(one > limit.limit_s)) for one in latencies_s]),
        latency_ms=np.array([1e3 * float(np.quantile(one, limit.quantile)) for one in latencies_s]),
        saturation_per_s=saturation_per_s * stretch,
        room_s=max(0.0, limit.limit_s - server.longest_s - server.overhead_s),
        capacity_per_s=capacity_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Day:
    """What happened in each second, (n,): the rate due, replicas that exist and that are ready, and requests late.

    `waits_s` is how long a request waits behind those that the replicas could not keep up with, on average.
    """

    due_per_s: Floats
    replicas: NDArray[np.int64]
    ready: NDArray[np.int64]
    late: Floats
    waits_s: Floats

    @property
    def late_share(self) -> float:
        """The share of the day's requests that are late."""
        return float(self.late.sum() / (self.due_per_s.sum() * STEP_S))

    def minutes_over(self, allowed: float) -> int:
        """Return in how many minutes a larger share than allowed is late."""
        return int(np.count_nonzero(by_minute(self.late) > allowed * by_minute(self.due_per_s) * STEP_S))

    @property
    def replica_hours(self) -> float:
        """The time of all replicas, from their start on."""
        return float(self.replicas.sum()) * STEP_S / 3600


def by_minute(each_second: NDArray[np.generic]) -> Floats:
    """Return the sum over each minute; the last may be shorter."""
    starts = np.arange(0, len(each_second), round(MINUTE_S / STEP_S))
    return np.add.reduceat(each_second.astype(float), starts)


def fixed(due_per_s: Floats, replica: Replica, counts: NDArray[np.int64]) -> Day:
    """Return the day with so many replicas in each second, ready at once."""
    service = _Service(due_per_s, replica, most=int(counts.max()))
    edges = np.r_[0, np.flatnonzero(np.diff(counts)) + 1, len(counts)]
    for begin, end in pairwise(edges.tolist()):
        service.go_on(begin, end, int(counts[begin]), ready_s=0.0)
    return service.day()


def autoscaled(due_per_s: Floats, replica: Replica, behavior: Behavior, *, start_s: float) -> Day:
    """Return the day under an autoscaler, which begins with the replicas that the first second needs, all ready.

    Requests go to ready replicas evenly; a new one is ready `start_s` after it was asked for, and has no queue.
    The newest are removed first, which are those not ready, if any; what waits there is still answered. The metric
    counts answers, as the bundle's query does, over its window, and is one scrape old.
    """
    service = _Service(due_per_s, replica, most=behavior.max_replicas)
    scaler, sync = Autoscaler(behavior=behavior), round(HPA_SYNC_S / STEP_S)
    window, old = round(RATE_WINDOW_S / STEP_S), round(SCRAPE_INTERVAL_S / STEP_S)
    count = math.ceil(due_per_s[0] / behavior.target_per_s)
    count = min(max(count, behavior.min_replicas), behavior.max_replicas)
    ready_s = 0.0
    for begin in range(0, len(due_per_s), sync):
        seen = service.served_per_s[max(0, begin - old - window) : max(0, begin - old)]
        if len(seen):
            count = scaler.replicas(begin * STEP_S, count, float(seen.mean()))
            ready_s = begin * STEP_S + start_s
        service.go_on(begin, begin + sync, count, ready_s=ready_s)
    return service.day()


class _Service:
    """Replicas in the order of their start, each with the requests that it could not keep up with."""

    def __init__(self, due_per_s: Floats, replica: Replica, *, most: int) -> None:
        self.due_per_s, self.replica = due_per_s, replica
        self.served_per_s, self.late, self.waits_s = np.zeros((3, len(due_per_s)))
        self.counts, self.ready = np.zeros((2, len(due_per_s)), np.int64)
        self.ready_at_s, self.backlog = np.full(most, math.inf), np.zeros(most)

    def go_on(self, begin: int, end: int, count: int, *, ready_s: float) -> None:
        """Serve these seconds with `count` replicas; those that are new are ready at `ready_s`."""
        self.ready_at_s[count:], self.backlog[count:] = math.inf, 0.0
        self.ready_at_s[:count][np.isinf(self.ready_at_s[:count])] = ready_s
        known, part = self.replica, slice(begin, end)
        self.counts[part] = count
        at_s = np.arange(begin, begin + len(self.counts[part])) * STEP_S
        _answer(
            at_s, self.due_per_s[part], self.ready_at_s[:count], self.backlog[:count],
            known.loads_per_s, known.late, known.saturation_per_s, known.room_s,
            self.served_per_s[part], self.late[part], self.waits_s[part], self.ready[part],
        )  # fmt: skip

    def day(self) -> Day:
        """Return what has happened."""
        return Day(
            due_per_s=self.due_per_s, replicas=self.counts, ready=self.ready, late=self.late, waits_s=self.waits_s
        )


@compiled
def _answer(
    at_s: Floats,
    due_per_s: Floats,
    ready_at_s: Floats,
    backlog: Floats,
    loads_per_s: Floats,
    late_at: Floats,
    saturation_per_s: float,
    room_s: float,
    served_per_s: Floats,
    late: Floats,
    waits_s: Floats,
    ready: NDArray[np.int64],
) -> None:
    """Fill what is served, late, waited and ready in each step, and carry the backlog (replicas,) on.

    A fluid on top of the steady state: a replica with more than it can answer gathers a queue, in which requests
    wait; one that keeps up has the late requests of its load.
    """
    for step in range(len(due_per_s)):
        ready[step] = np.count_nonzero(ready_at_s <= at_s[step])
        due = due_per_s[step] / max(1, ready[step])
        steady = np.interp(due, loads_per_s, late_at)
        for one in range(ready[step]):
            after = max(0.0, backlog[one] + (due - saturation_per_s) * STEP_S)
            wait_s = (backlog[one] + after) / 2 / saturation_per_s
            late[step] += due * STEP_S * (1.0 if wait_s > room_s else steady)
            served_per_s[step] += due + (backlog[one] - after) / STEP_S
            waits_s[step] += wait_s / ready[step]
            backlog[one] = after


def candidates(certified_per_s: float, least: Iterable[int], most: int) -> list[Behavior]:
    """Return the settings that are compared: targets, minima and windows; the first has the most in reserve."""
    return [
        Behavior(
            target_per_s=share * certified_per_s, min_replicas=minimum, max_replicas=most, down_window_s=window_s
        )
        for share in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
        for minimum in sorted({max(1, min(one, most)) for one in least})
        for window_s in (120.0, 600.0, 1800.0)
    ]


def cheapest(
    due_per_s: Floats, replica: Replica, behaviors: Iterable[Behavior], *, start_s: float, allowed: float
) -> tuple[Behavior, Day]:
    """Return the settings with the fewest replica hours of those that keep the share, or with the least late."""
    tried = [(one, autoscaled(due_per_s, replica, one, start_s=start_s)) for one in behaviors]

    def rank(pair: tuple[Behavior, Day]) -> tuple[float, float]:
        late = max(0.0, pair[1].late_share - allowed)
        return late, pair[1].replica_hours

    return min(tried, key=rank)


def foreseen(due_per_s: Floats, replica: Replica) -> NDArray[np.int64]:
    """Return the fewest replicas for each second that keep the limit, as if they could be had at once."""
    counts: NDArray[np.int64] = np.maximum(1, np.ceil(due_per_s / replica.capacity_per_s - 1e-9)).astype(np.int64)
    return counts
