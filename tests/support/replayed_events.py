"""The requests of a day one by one, on the replicas that a replay has had: an independent count of late ones."""

import numpy as np

from deploy.day import STEP_S, Day
from loadgen.spec.limits import LatencyLimit
from search.simulator.server import Simulated, count_late


def late_share_of_events(day: Day, server: Simulated, limit: LatencyLimit, *, seed: int) -> float:
    """Poisson arrivals, each to one of the ready replicas at random; each replica is the simulated server."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(day.due_per_s * STEP_S)
    at_s = np.sort((np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum())) * STEP_S)
    second = (at_s / STEP_S).astype(int)
    chosen = np.floor(rng.random(len(at_s)) * day.ready[second]).astype(int)
    late = 0
    for number in range(day.ready.max()):
        up = day.ready > number
        life = np.cumsum(np.append(up[0], np.diff(up.astype(int)) == 1))[second]
        for one in np.unique(life[chosen == number]):
            mine = at_s[(chosen == number) & (life == one)]
            late += count_late(server, mine - mine[0], limit_s=limit.limit_s)
    return late / len(at_s)
