"""The rate at the limit of a simulated server without queue delay, by bisection over one long run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from search.simulator import SimulatedServer, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.order import LatencyLimit
    from model_repo.spec import ServingConfig


def true_rate(
    config: ServingConfig,
    service_s: Callable[[ServingConfig, int], float],
    *,
    limit_ms: float,
    further: Sequence[LatencyLimit] = (),
) -> float:
    """The rate at the limit for p99, or at the first of the further limits that breaks.

    Nothing of the search takes part; tests/truth/test_simulator_truth.py proves the simulator itself.
    """
    largest = max(config.max_batch_size, 1) if config.dynamic_batching else 1
    column = np.array([1.0, *(service_s(config, size) for size in range(1, largest + 1))])
    server = SimulatedServer(
        service_s=np.repeat(column[:, None], config.instance_count + 1, axis=1),
        max_queue_delay_s=config.max_queue_delay_us / 1e6,
    )
    high = server.saturation_per_s
    low = high / 50
    unit = np.cumsum(np.random.default_rng(99).exponential(1.0, 60_000))
    while math.log(high / low) > 0.005:
        rate = math.sqrt(low * high)
        latency_ms = 1e3 * simulate(server, unit / rate).latency_s[2000:]
        kept = np.mean(latency_ms > limit_ms) <= 0.01 and all(
            np.mean(latency_ms > limit.limit_ms) <= 1 - limit.quantile for limit in further
        )
        low, high = (rate, high) if kept else (low, rate)
    return low
