"""What is promised for bursts, for requests of several rows and for those of several shapes, against the truth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from plain_queue import shaped_queue
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from traffics import BURSTS, recorded
from true_rates import true_rate
from virtual_search import SLO, search_on

from model_repo.spec import ServingConfig
from search.simulator.service_times import ClosedLoop
from search.workload import Workload, request_shapes

LENGTHS = (16, 16, 64, 16, 64, 64, 16, 16, 16, 16)
SLOWER = {16: 0.7, 64: 2.5}


@dataclass
class ShapedBench(SimulatedBench):
    """Requests of two lengths, which Triton puts into no common batch."""

    _shape: int | None = None

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        self._shape = shape
        return super().saturate(concurrency, duration_s, seed)

    def _table_s(self, config: ServingConfig) -> NDArray[Any]:
        """Of the shape that is profiled."""
        assert self._shape is not None
        return sorted(SLOWER.values())[self._shape] * super()._table_s(config)

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        column = super()._table_s(config)[:, 1]
        return shaped_queue(
            arrivals,
            shapes=[sorted(SLOWER).index(length) for length in LENGTHS],
            service_s=np.array(sorted(SLOWER.values()))[:, None] * column,
            instances=config.instance_count,
        )

    def late_share(self, config: ServingConfig, rate_per_s: float) -> float:
        arrivals = np.cumsum(np.random.default_rng(99).exponential(1 / rate_per_s, 20_000))
        return float(((self._done(config, arrivals, self.noise) - arrivals) > SLO.first.limit_ms / 1e3).mean())


@pytest.mark.parametrize("workload", [BURSTS, recorded()], ids=["gamma", "trace"])
def test_what_is_promised_holds_under_the_arrivals_it_was_searched_with(
    workload: Workload, tmp_path: Path
) -> None:
    bench = SimulatedBench(workload=workload)
    space = two_core_space(tmp_path)
    store, certified, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 12)
    assert certified is not None
    winner = certified.winner
    capacity = true_rate(winner.served, default_service_s, limit_ms=SLO.first.limit_ms, workload=workload)
    poisson = true_rate(winner.served, default_service_s, limit_ms=SLO.first.limit_ms)
    assert winner.certificate.rate_per_s <= 1.03 * capacity < 0.97 * poisson
    first = store.trials[0]
    assert first.why.prediction.rate_per_s == pytest.approx(
        true_rate(first.served, default_service_s, limit_ms=SLO.first.limit_ms, workload=workload), rel=0.1
    )


def test_requests_of_several_rows_are_searched_and_promised(tmp_path: Path) -> None:
    workload = Workload(rows_per_request=4)
    bench = SimulatedBench(workload=workload)
    space = two_core_space(tmp_path, rows_per_request=4)
    _, certified, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 12)
    assert certified is not None
    capacity = true_rate(
        certified.winner.served, default_service_s, limit_ms=SLO.first.limit_ms, workload=workload
    )
    assert 0.6 * capacity < certified.winner.certificate.rate_per_s <= 1.03 * capacity
    assert certified.winner.rate_low_per_s < 1.03 * capacity
    assert certified.winner.rate_high_per_s > 0.97 * capacity


def test_requests_of_several_lengths_are_predicted_and_promised(tmp_path: Path) -> None:
    shapes = request_shapes([(("ids", (length,)),) for length in LENGTHS])
    bench = ShapedBench(workload=Workload(shapes=shapes))
    space = two_core_space(tmp_path)
    store, certified, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 12)
    assert certified is not None
    config, promised = certified.winner.served, certified.winner.certificate.rate_per_s
    assert bench.late_share(config, promised / 1.03) < 0.01 < bench.late_share(config, promised / 0.6)
    first = store.trials[0]
    predicted = first.why.prediction.rate_per_s
    assert (
        bench.late_share(first.served, 0.93 * predicted) < 0.01 < bench.late_share(first.served, 1.07 * predicted)
    )
