"""What is promised under traffic that is not Poisson, or for requests of several rows, against the truth."""

from pathlib import Path

import pytest
from simulated_bench import SimulatedBench, default_service_s
from simulated_search import SLO, search_on
from spaces import two_core_space
from traffics import BURSTS, recorded
from true_rates import true_rate

from search.demand import Demand


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
