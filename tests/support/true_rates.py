"""Compute the capacity of simulated servers by bisection over one long run; no code of the search takes part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from fast_queue import late_requests
from numpy.typing import NDArray
from simulated_bench import alone, service_table_s

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.workload import Workload

QUANTILE = 0.99
RESOLUTION = 0.003
REQUESTS = 200_000
SCREENED_WITH = 10_000
"""A run of so many requests excludes the configurations that are far from the best."""

WORTH_A_LONG_RUN = 0.9
"""A configuration gets a long run from this share of the best short run on; short runs err by a few percent."""

_WARMUP = 2_000


def true_rate(
    config: ServingConfig,
    service_s: Callable[[ServingConfig, int], float],
    *,
    limit_ms: float,
    further: Sequence[LatencyLimit] = (),
    contention: Callable[[ServingConfig, int], float] = alone,
    noise: NDArray[Any] | None = None,
    requests: int = REQUESTS,
    workload: Workload | None = None,
) -> float:
    """Return the highest rate that meets the limit for p99 and the further ones; 0 if none down to a thousandth of
    the saturation does."""
    rows = 1 if workload is None else workload.rows_per_request
    table_s = service_table_s(config, service_s, contention, rows=rows)
    factors = np.ones(1) if noise is None else noise
    unit = np.cumsum(np.random.default_rng(99).exponential(1.0, requests + _WARMUP))
    if workload is not None:
        unit = workload.unit(99, requests=requests + _WARMUP)
    limits = [(limit_ms, QUANTILE), *((limit.limit_ms, limit.quantile) for limit in further)]

    def met_one(rate_per_s: float, limit_ms: float, quantile: float) -> bool:
        allowed = math.floor((1 - quantile) * requests)
        late = late_requests(
            unit / rate_per_s,
            service_s=table_s,
            noise=factors,
            delay_s=config.max_queue_delay_us / 1e6,
            limit_s=limit_ms / 1e3,
            counted_from=_WARMUP,
            at_most=allowed,
        )
        return late <= allowed

    def met(rate_per_s: float) -> bool:
        return all(met_one(rate_per_s, *limit) for limit in limits)

    instances = table_s.shape[1] - 1
    saturation = instances * max(size / table_s[size, instances] for size in range(1, len(table_s)))
    low = high = saturation
    while not met(low):
        high, low = low, 0.8 * low
        if low < 1e-3 * saturation:
            return 0.0
    while math.log(high / low) > RESOLUTION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low  # type: ignore[no-any-return]


def best_rate(
    configs: Iterable[ServingConfig],
    service_s: Callable[[ServingConfig, int], float],
    *,
    limit_ms: float,
    contention: Callable[[ServingConfig, int], float] = alone,
    noise: NDArray[Any] | None = None,
) -> float:
    """Return the highest capacity of all configurations."""
    given: dict[str, Any] = {"limit_ms": limit_ms, "contention": contention, "noise": noise}
    short = [(true_rate(config, service_s, **given, requests=SCREENED_WITH), config) for config in configs]
    worth = WORTH_A_LONG_RUN * max(rate for rate, _ in short)
    return max(true_rate(config, service_s, **given) for rate, config in short if rate >= worth)
