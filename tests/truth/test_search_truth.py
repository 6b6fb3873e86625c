"""The guided search on simulated servers of several kinds, against the best of the whole space."""

from functools import partial

import numpy as np
import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from true_rates import true_rate

from model_repo.spec import ServingConfig
from search.budget import Budget
from search.certification import certify_best
from search.ledger import open_ledger
from search.records import Slo
from search.study import Search

SERVERS = 3


def drawn_service_s(parameters: tuple[float, float, float, float], config: ServingConfig, size: int) -> float:
    """Affine in the batch size; threads help, and crowding costs, by the drawn powers."""
    fixed_s, each_s, speedup, crowding = parameters
    threads = config.intra_op_threads or 2
    crowded = max(1.0, config.instance_count * threads / 2)
    return (fixed_s + each_s * size / threads**speedup) * crowded**crowding


def drawn(number: int) -> tuple[tuple[float, float, float, float], float]:
    """The parameters of a server, and a limit that is tight for some and loose for others."""
    rng = np.random.default_rng(1000 + number)
    fixed_s = float(np.exp(rng.uniform(np.log(5e-4), np.log(6e-3))))
    each_s = float(np.exp(rng.uniform(np.log(2e-4), np.log(3e-3))))
    parameters = (fixed_s, each_s, float(rng.uniform(0.5, 0.95)), float(rng.uniform(0.8, 1.3)))
    return parameters, 1e3 * (fixed_s + each_s) * float(np.exp(rng.uniform(np.log(4), np.log(25))))


@pytest.mark.parametrize("number", range(SERVERS))
def test_the_search_finds_nearly_the_best_and_promises_no_more_than_it_can_keep(number, tmp_path):
    parameters, limit_ms = drawn(number)
    service_s = partial(drawn_service_s, parameters)
    space = two_core_space(tmp_path, limit_ms=limit_ms)
    bench = SimulatedBench(service_s=service_s, limit_ms=limit_ms)
    ledger = open_ledger(space, tmp_path, storage="sqlite://", seed=number)
    common = {"slo": Slo(limit_ms=limit_ms), "budget": Budget(total_s=600.0), "seed": number}
    Search(ledger=ledger, bench=bench, **common).run()
    searched_s = bench.spent.load_s
    certified = certify_best(ledger, bench, **common)
    configs = [space.config(knobs) for knobs in space.points() if knobs["max_queue_delay_us"] == 0]
    best = max(true_rate(config, service_s, limit_ms=limit_ms) for config in configs)
    mine = true_rate(certified.winner.config, service_s, limit_ms=limit_ms)
    assert mine >= 0.93 * best
    assert certified.winner.certificate.rate_per_s <= 1.02 * mine
    assert searched_s < 60
