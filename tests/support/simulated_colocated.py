"""A simulated bench with another model, at a rate of its own, that the measured one's requests slow down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from fast_queue import batched_queue
from simulated_bench import SimulatedBench, log_at
from simulated_queues import log_of
from true_rates import true_rate

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import Colocated, LatencyLimit
from loadgen.statistics.probe import Probe
from model_repo.spec import ServingConfig

ALONE_S = 0.004
OTHER = LatencyLimit(limit_ms=20.0, colocated=Colocated(model="other", rate_per_s=60.0))


@dataclass
class ColocatedBench(SimulatedBench):
    """The other model takes 4 ms alone, and twice that when the measured one gets `doubled_at_per_s`."""

    other: LatencyLimit = OTHER
    doubled_at_per_s: float = 1000.0

    def measure(
        self, rate_per_s: Any, duration_s: Any, seed: int, watch: Callable[[RequestLog], bool] | None = None
    ) -> Probe:
        theirs = self.theirs(rate_per_s, duration_s, seed)

        def joint(log: RequestLog) -> bool:
            assert watch is not None
            now_s = float(log.scheduled_ns[-1]) / 1e9
            seen = log_at(theirs, now_s, late_after_ms=self.other.limit_ms)
            return watch(replace(log, colocated={"other": seen}))

        probe = super().measure(rate_per_s, duration_s, seed, None if watch is None else joint)
        until_s = float(probe.log.scheduled_ns[-1]) / 1e9
        log = replace(probe.log, colocated={"other": theirs.between(0.0, until_s)})
        return replace(probe, log=log)

    def theirs(self, rate_per_s: float, duration_s: float, seed: int) -> RequestLog:
        """Return the other model's requests while the measured one gets this rate."""
        own_per_s = self.other.rate_per_s(rate_per_s)
        rng = np.random.default_rng([seed, 7])
        arrivals = np.cumsum(rng.exponential(1 / own_per_s, int(own_per_s * duration_s * 1.3) + 20))
        arrivals = arrivals[arrivals < duration_s]
        taken_s = ALONE_S * (1 + rate_per_s / self.doubled_at_per_s)
        table = np.array([[1.0, 1.0], [1.0, taken_s]])
        return log_of(arrivals, batched_queue(arrivals, service_s=table, noise=np.ones(1), delay_s=0.0))

    def others_capacity(self) -> float:
        """Return the highest rate of the measured model at which the other one keeps its limit."""
        low, high = 1.0, 100_000.0
        while high / low > 1.003:
            middle = float(np.sqrt(low * high))
            log = self.theirs(middle, 3000.0, 1)
            late = float(np.mean(log.latency_ns > self.other.limit_ns))
            low, high = (middle, high) if late <= self.other.allowed else (low, middle)
        return low

    def capacity(self, config: ServingConfig, limit_ms: float) -> float:
        """Return the highest rate at which both keep their limits."""
        return min(self.others_capacity(), true_rate(config, self.service_s, limit_ms=limit_ms))
