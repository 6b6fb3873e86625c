"""A front end that lets through less than the engine does: its rate is found and certified."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated_bench import SimulatedBench
from spaces import gpu_space
from virtual_search import search_on

from loadgen.statistics.probe import Probe
from model_repo.spec import ServingConfig
from search.simulator.service_times import ClosedLoop

pytestmark = pytest.mark.slow

FP32_S = (2e-3, 6e-4)
"""The seconds of a batch, and of each item in it."""


class BehindFrontEnd(SimulatedBench):
    """Requests pass one after the other, with bursts, before they reach the batcher."""

    lets_through_per_s: float

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        rng = np.random.default_rng(len(arrivals))
        work = np.cumsum(rng.gamma(0.5, 2 / self.lets_through_per_s, len(arrivals)))
        passed = work + np.maximum.accumulate(arrivals - np.concatenate([[0.0], work[:-1]]))
        self.outside_ms = 1e3 * float(np.mean(passed - arrivals))
        return super()._done(config, passed, noise)

    def measure(self, *given: Any, **named: Any) -> Probe:
        probe = super().measure(*given, **named)
        if self._last is not None:
            self._last = self._last.model_copy(update={"network_and_client_ms": self.outside_ms})
        return probe

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        behind = 8 if self.loaded[-1].instance_count > 1 else 4  # the others wait in the front end
        found = super().saturate(min(concurrency, behind), duration_s, seed, shape)
        return replace(found, concurrency=concurrency)


@pytest.mark.parametrize(
    ("lets_through_per_s", "fp16_s", "budget_s", "least_share"),
    [
        (2600.0, (5e-4, 4e-5), 80.0, 0.6),
        (50_000.0, (4e-4, 1.2e-5), 80.0, 0.85),
    ],
)
def test_a_rate_that_a_front_end_limits_is_certified(
    lets_through_per_s: float, fp16_s: tuple[float, float], budget_s: float, least_share: float, tmp_path: Path
) -> None:
    """At 50,000/s bursts are of a thousand requests, and a test takes hundreds of thousands."""
    times_s = {"fp32": FP32_S, "fp16": fp16_s}

    def batch_s(precision: str, size: int) -> float:
        whole, each = times_s[precision]
        return whole + each * size

    space = gpu_space(tmp_path, lambda precision, size: 1e3 * batch_s(precision, size), *times_s)

    def contention(config: ServingConfig, busy: int) -> float:
        return 1.0 if config.engine.precision == "fp32" else float(busy) ** 0.9

    bench = BehindFrontEnd(
        service_s=lambda config, size: batch_s(config.engine.precision, size), contention=contention
    )
    bench.lets_through_per_s = lets_through_per_s
    _, certified, _ = search_on(bench, space, tmp_path, budget_s=budget_s)
    assert certified.winner.served.engine.precision == "fp16"
    assert least_share < certified.winner.certificate.rate_per_s / lets_through_per_s < 1
