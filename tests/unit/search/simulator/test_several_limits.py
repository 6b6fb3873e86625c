"""Limits on p99, on the median and on memory, searched and certified together on a simulated server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from true_rates import true_rate
from virtual_search import search_on

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.certify import CertifiedResult
from search.records.slo import Slo
from search.simulator.capacity import binding_limit, rate_at_limit
from search.simulator.server import SimulatedServer
from search.study.store import TrialStore
from search.trials import events
from search.workload import unit_arrivals

pytestmark = pytest.mark.slow

MEDIAN = LatencyLimit(quantile=0.5, limit_ms=9.0)
BOTH = Slo(limits=(LatencyLimit(limit_ms=50.0), MEDIAN))
GIB = 2**30


def searched(bench: Any, folder: Path, slo: Slo) -> tuple[TrialStore, CertifiedResult | None, list[events.Event]]:
    return search_on(bench, two_core_space(folder), folder, slo=slo, budget_s=150.0)


def test_both_limits_are_met_at_nearly_the_best_rate(tmp_path: Path) -> None:
    _, certified, _ = searched(SimulatedBench(), tmp_path, BOTH)
    winner, space = certified.winner, two_core_space(tmp_path)

    def truth(config: ServingConfig, requests: int = 20_000) -> float:
        return true_rate(config, default_service_s, limit_ms=50.0, further=BOTH.limits[1:], requests=requests)

    assert winner.certificate.rate_per_s <= 1.02 * truth(winner.served, 200_000)
    few = [space.config(knobs) for knobs in space.points() if knobs["max_queue_delay_us"] == 0]
    assert winner.certificate.rate_per_s >= 0.85 * max(map(truth, few))
    first, median = winner.certificate.latencies
    assert first.latency_high_ms <= 50.0
    assert median.latency_low_ms <= median.latency_ms <= median.latency_high_ms <= MEDIAN.limit_ms
    assert winner.certificate.confidence == BOTH.confidence


def test_a_configuration_over_the_memory_is_not_chosen_and_larger_ones_are_not_tried(tmp_path: Path) -> None:
    def memory(config: ServingConfig) -> int:
        return GIB * config.instance_count

    slo = Slo(limits=(LatencyLimit(limit_ms=50.0),), max_memory_bytes=int(1.5 * GIB))
    store, certified, _ = searched(SimulatedBench(memory=memory), tmp_path, slo)
    assert certified.winner.served.instance_count == 1
    assert certified.winner.memory_bytes == GIB
    over = [trial for trial in store.trials if trial.served.instance_count > 1]
    assert over
    for one in over:
        assert one.state == "infeasible"
        assert "took 2 GiB, over the limit of 1.5 GiB" in one.reason
    asked = [(one.served.max_batch_size, one.served.instance_count) for one in over]
    assert not any(
        later[0] >= first[0] and later[1] >= first[1] for n, first in enumerate(asked) for later in asked[n + 1 :]
    )


def test_predictions_stop_at_the_limit_that_breaks_first() -> None:
    times = [[1.0] * 2] + [[0.004 + 0.001 * size] * 2 for size in range(1, 9)]
    server, unit = SimulatedServer(service_s=np.array(times)), unit_arrivals(1, requests=20_000)
    both = p99, median = LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=9.0)
    alone = [rate_at_limit(server, (one,), unit) for one in both]
    assert rate_at_limit(server, both, unit) == pytest.approx(min(alone), rel=0.01)
    assert alone[1] < 0.9 * alone[0]
    assert binding_limit(server, (p99,), alone[1], unit) == p99
    assert binding_limit(server, both, alone[1], unit) == median
