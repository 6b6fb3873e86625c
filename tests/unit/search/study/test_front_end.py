"""A front end that lets through a tenth of what the engine does: its rate is found and certified."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import plain_engine
from numpy.typing import NDArray
from simulated_bench import SimulatedBench
from virtual_search import SLO, search_on

from loadgen.statistics.capacity_fit import Probe
from model_repo.spec import ServingConfig
from search.simulator.service_times import ClosedLoop
from search.space import MachineLimits, search_space

pytestmark = pytest.mark.slow

LETS_THROUGH_PER_S = 2600.0
TIMES_S = {"fp32": (2e-3, 6e-4), "fp16": (5e-4, 4e-5)}  # of a batch, and of each item in it


class BehindFrontEnd(SimulatedBench):
    """Requests pass one after the other, with bursts, before they reach the batcher."""

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        rng = np.random.default_rng(len(arrivals))
        work = np.cumsum(rng.gamma(0.5, 2 / LETS_THROUGH_PER_S, len(arrivals)))
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


@pytest.mark.parametrize("budget_s", [80.0, 150.0])
def test_a_rate_that_a_front_end_limits_is_certified(budget_s: float, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    engines = tuple(
        plain_engine(
            files=(("model.onnx", file),),
            precision=precision,
            device="gpu",
            alone_ms=tuple((batch, 1e3 * (whole + each * batch)) for batch in (1, 8, 64)),
        )
        for precision, (whole, each) in TIMES_S.items()
    )
    space = search_space(engines, MachineLimits(cores=16, memory_bytes=2**38), limit_ms=SLO.first.limit_ms)

    def service_s(config: ServingConfig, size: int) -> float:
        whole, each = TIMES_S[config.engine.precision]
        return whole + each * size

    def contention(config: ServingConfig, busy: int) -> float:
        return 1.0 if config.engine.precision == "fp32" else float(busy) ** 0.9

    bench = BehindFrontEnd(service_s=service_s, contention=contention)
    _, certified, _ = search_on(bench, space, tmp_path, budget_s=budget_s)
    assert certified is not None
    assert certified.winner.served.engine.precision == "fp16"
    assert certified.winner.certificate is not None
    assert 0.6 * LETS_THROUGH_PER_S < certified.winner.certificate.rate_per_s < LETS_THROUGH_PER_S
