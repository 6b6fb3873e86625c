"""A replica behind a gateway that limits requests in flight, event by event."""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np

from search.arrays import Floats
from search.simulator.server import SimulatedServer


def admitted(server: SimulatedServer, arrivals_s: Floats, most: float) -> tuple[Floats, int]:
    """Return the latencies of what is let in while fewer than `most` are in flight, and how many are refused.

    An idle instance takes all that wait, as Triton without a queue delay; an execution keeps the speed with which
    it began.
    """
    latencies: list[float] = []
    waiting: deque[float] = deque()
    running: list[tuple[float, int]] = []  # when each busy instance ends, and its batch
    refused = executions = in_flight = 0

    def begin(now_s: float) -> None:
        nonlocal executions
        size = min(len(waiting), server.max_batch_size)
        took_s = server.service_s[size, len(running) + 1] * server.noise[executions % len(server.noise)]
        executions += 1
        heapq.heappush(running, (now_s + took_s, size))
        latencies.extend(now_s + took_s - waiting.popleft() + server.overhead_s for _ in range(size))

    def end_until(now_s: float) -> None:
        nonlocal in_flight
        while running and running[0][0] <= now_s:
            ended_s, size = heapq.heappop(running)
            in_flight -= size
            if waiting:
                begin(ended_s)

    for arrival_s in arrivals_s.tolist():
        end_until(arrival_s)
        if in_flight >= most:
            refused += 1
            continue
        in_flight += 1
        waiting.append(arrival_s)
        if len(running) < server.instance_count:
            begin(arrival_s)
    end_until(math.inf)
    return np.array(latencies), refused
