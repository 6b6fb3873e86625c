"""What is promised for bursts, for requests of several rows and for those of several shapes, against the truth."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from plain_queue import shaped_queue
from simulated_bench import SimulatedBench, default_service_s
from simulated_search import SLO, search_on
from spaces import two_core_space
from traffics import BURSTS, recorded
from true_rates import true_rate

from model_repo.spec import ServingConfig
from search.demand import Demand
from search.request_shapes import request_shapes
from search.service_time import ClosedLoop

LENGTHS = (16, 16, 64, 16, 64, 64, 16, 16, 16, 16)
SLOWER = {16: 0.7, 64: 2.5}


@dataclass
class ShapedBench(SimulatedBench):
    """Requests of two lengths, which Triton puts into no common batch."""

    _shape: int | None = None

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        self._shape = shape
        return super().saturate(concurrency, duration_s, seed)

    def _table_s(self, config: ServingConfig) -> np.ndarray:
        """Of the shape that is profiled."""
        assert self._shape is not None
        return sorted(SLOWER.values())[self._shape] * super()._table_s(config)

    def _done(self, config: ServingConfig, arrivals: np.ndarray, noise: np.ndarray) -> np.ndarray:
        column = super()._table_s(config)[:, 1]
        return shaped_queue(
            arrivals,
            shapes=[sorted(SLOWER).index(length) for length in LENGTHS],
            service_s=np.array(sorted(SLOWER.values()))[:, None] * column,
            instances=config.instance_count,
        )

    def late_share(self, config: ServingConfig, rate_per_s: float) -> float:
        arrivals = np.cumsum(np.random.default_rng(99).exponential(1 / rate_per_s, 60_000))
        return float(((self._done(config, arrivals, self.noise) - arrivals) > SLO.limit_ms / 1e3).mean())


@pytest.mark.parametrize("demand", [BURSTS, recorded()], ids=["gamma", "trace"])
def test_what_is_promised_holds_under_the_arrivals_it_was_searched_with(demand: Demand, tmp_path: Path) -> None:
    bench = SimulatedBench(demand=demand)
    space = two_core_space(tmp_path)
    ledger, certified, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 8)
    assert certified is not None
    winner = certified.winner
    capacity = true_rate(winner.config, default_service_s, limit_ms=SLO.limit_ms, demand=demand)
    poisson = true_rate(winner.config, default_service_s, limit_ms=SLO.limit_ms)
    assert winner.certificate.rate_per_s <= 1.03 * capacity < 0.97 * poisson
    first = ledger.trials[0]
    assert first.why.prediction.rate_per_s == pytest.approx(
        true_rate(first.config, default_service_s, limit_ms=SLO.limit_ms, demand=demand), rel=0.1
    )


def test_requests_of_several_rows_are_searched_and_promised(tmp_path: Path) -> None:
    demand = Demand(rows_per_request=4)
    bench = SimulatedBench(demand=demand)
    space = two_core_space(tmp_path, rows_per_request=4)
    _, certified, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 8)
    assert certified is not None
    capacity = true_rate(certified.winner.config, default_service_s, limit_ms=SLO.limit_ms, demand=demand)
    assert 0.6 * capacity < certified.winner.certificate.rate_per_s <= 1.03 * capacity
    assert certified.winner.rate_low_per_s < 1.03 * capacity
    assert certified.winner.rate_high_per_s > 0.97 * capacity


def test_requests_of_several_lengths_are_predicted_and_promised(tmp_path: Path) -> None:
    shapes = request_shapes([(("ids", (length,)),) for length in LENGTHS])
    bench = ShapedBench(demand=Demand(shapes=shapes))
    ledger, certified, _ = search_on(
        bench, two_core_space(tmp_path), tmp_path, stop=lambda: len(bench.loaded) >= 8
    )
    assert certified is not None
    config, promised = certified.winner.config, certified.winner.certificate.rate_per_s
    assert bench.late_share(config, promised / 1.03) < 0.01 < bench.late_share(config, promised / 0.6)
    first = ledger.trials[0]
    predicted = first.why.prediction.rate_per_s
    assert (
        bench.late_share(first.config, 0.93 * predicted) < 0.01 < bench.late_share(first.config, 1.07 * predicted)
    )
