"""Servers of some ten requests per second, like a ResNet-18 on two cores, are certified within a short budget."""

from pathlib import Path

import numpy as np
import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from true_rates import true_rate
from virtual_search import search_on

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.records.slo import Slo
from search.trials import events

pytestmark = pytest.mark.slow


def execution_s(config: ServingConfig, size: int) -> float:
    """Return 2 ms and 20 ms per image on one thread of two cores."""
    threads = config.intra_op_threads or 2
    crowding = max(1.0, config.instance_count * threads / 2)
    return (0.002 + 0.020 * size / threads**0.8) * crowding**1.05


class Run:
    """A whole search and certification in `total_s` of load, of a server `slower` than the above."""

    def __init__(self, folder: Path, *, total_s: float, limit_ms: float, slower: float = 1.0, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.limit_ms, self.slower = limit_ms, slower
        self.bench = SimulatedBench(
            service_s=self.service_s, limit_ms=limit_ms, noise=np.exp(rng.normal(0.0, 0.05, 4093))
        )
        folder.mkdir(exist_ok=True)
        self.total_s = total_s
        _, self.certified, self.seen = search_on(
            self.bench,
            two_core_space(folder, limit_ms=limit_ms),
            folder,
            slo=Slo(limits=(LatencyLimit(limit_ms=limit_ms),)),
            seed=seed,
            budget_s=total_s,
        )

    def service_s(self, config: ServingConfig, size: int) -> float:
        return self.slower * execution_s(config, size)

    @property
    def codes(self) -> list[str | None]:
        return [event.code for event in self.seen if isinstance(event, events.Note)]

    def assert_certified_twice(self, *, confidence: float, at_least: float) -> None:
        """Assert a certificate on two servers, between this share of the true capacity and the capacity."""
        winner = self.certified.winner
        assert (winner.certificate.servers, winner.certificate.confidence) == (2, confidence)
        truth = true_rate(winner.served, self.service_s, limit_ms=self.limit_ms, noise=self.bench.noise)
        assert at_least * truth < winner.certificate.rate_per_s < truth
        assert self.bench.spent.load_s + self.bench.spent.loading_s < self.total_s + 5.0


@pytest.mark.parametrize("seed", [0, 1])
def test_70_per_second_are_certified_in_four_minutes(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, total_s=240.0, limit_ms=300.0, seed=seed)
    run.assert_certified_twice(confidence=0.95, at_least=0.7)


@pytest.mark.parametrize("seed", [0, 2])
def test_in_80_seconds_a_lower_rate_is_certified(tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, total_s=80.0, limit_ms=300.0, seed=seed)
    run.assert_certified_twice(confidence=0.95, at_least=0.45)
    assert run.codes.count("time_to_certify") == 1


@pytest.mark.long
def test_20_per_second_are_certified_with_the_confidence_that_the_time_allows(tmp_path: Path) -> None:
    servers = []
    for seed in range(9):
        run = Run(tmp_path / str(seed), total_s=160.0, limit_ms=900.0, slower=4.0, seed=seed)
        assert run.certified is not None, seed
        certificate = run.certified.winner.certificate
        assert certificate is not None, seed
        servers.append(certificate.servers)
        if certificate.confirmed_again:
            run.assert_certified_twice(confidence=0.8, at_least=0.25)
            assert certificate.caveat is not None, seed
        assert "lower_confidence" in run.codes, seed
    assert set(servers) <= {1, 2}
    assert servers.count(2) >= 7
