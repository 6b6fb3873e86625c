"""Traffic that is not Poisson."""

import numpy as np

from loadgen.spec.plan import Arrivals
from search.workload import Workload

BURSTS = Workload(arrivals=Arrivals(kind="gamma", cv=3.0))


def recorded(requests: int = 12_000) -> Workload:
    """A trace in which every other second is three times as busy."""
    rng = np.random.default_rng(5)
    gaps, now = [], 0.0
    for _ in range(requests):
        gap = rng.exponential(1 / 300 if int(now) % 2 else 1 / 100)
        now += gap
        gaps.append(gap)
    return Workload(arrivals=Arrivals(kind="trace", times_s=tuple(np.cumsum(gaps).tolist())))
