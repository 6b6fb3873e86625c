"""Ensembles of sleeping models in virtual time: the tandem's capacity, and the search against the whole grid."""

from pathlib import Path

import numpy as np
import pytest
from simulated_ensembles import LIMIT_MS, Ensemble, EnsembleBench, Law
from virtual_search import search_on

from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import rate_at_limit
from search.simulator.server import SimulatedEnsemble, SimulatedServer, SimulatedStep
from search.workload import unit_arrivals


def sleeping(seconds: float) -> Law:
    return lambda _size: seconds


def affine(fixed_s: float, each_s: float) -> Law:
    return lambda size: fixed_s + each_s * size


SERIES = Ensemble({"resize": sleeping(0.008), "classify": sleeping(0.012)}, {"classify": ("resize",)})
AFFINE = Ensemble({"resize": affine(0.001, 0.002), "classify": affine(0.006, 0.001)}, {"classify": ("resize",)})
JOIN = Ensemble(
    {"image": affine(0.002, 0.001), "text": sleeping(0.010), "rank": affine(0.001, 0.0005)},
    {"rank": ("image", "text")},
)
DIAMOND = Ensemble(
    {
        "decode": affine(0.001, 0.0003),
        "left": sleeping(0.006),
        "right": affine(0.003, 0.002),
        "merge": sleeping(0.004),
    },
    {"left": ("decode",), "right": ("decode",), "merge": ("left", "right")},
)
CROWDED = Ensemble(
    {"clean": affine(0.001, 0.001), "classify": affine(0.004, 0.002), "label": affine(0.002, 0.0005)},
    {"classify": ("clean",), "label": ("classify",)},
    cores=4,
)
ENSEMBLES = {"series": SERIES, "affine": AFFINE, "join": JOIN, "diamond": DIAMOND, "crowded": CROWDED}

MAX_ABOVE_CAPACITY = 1.02
MIN_OF_BEST = 0.95
A_TRIAL_S = 10.0
"""A capacity search of one configuration takes 10 s of load and more."""

BUDGET_S = 60.0


@pytest.mark.parametrize("name", ["series", "affine", "join", "diamond"])
def test_the_tandem_has_the_capacity_of_plain_queues(name: str) -> None:
    ensemble = ENSEMBLES[name]
    space = ensemble.space()
    for config in (space.baseline(), space.config(space.spread(1.0, 1.0)), space.config(space.spread(0.5, 0.0))):
        steps = tuple(
            SimulatedStep(
                server=SimulatedServer(service_s=np.repeat(step.service_s[:, None], step.instances + 1, axis=1)),
                after=step.after,
            )
            for step in ensemble.plain(config)
        )
        found = rate_at_limit(
            SimulatedEnsemble(steps=steps),
            (LatencyLimit(limit_ms=LIMIT_MS),),
            unit_arrivals(7, requests=100_000),
        )
        assert found == pytest.approx(ensemble.capacity(config), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "delays_us"),
    [
        ("series", (0, 2500)),
        ("affine", (0,)),
        ("join", (0,)),
        pytest.param("join", (0, 2500), marks=pytest.mark.long),
        pytest.param("diamond", (0,), marks=pytest.mark.long),
        pytest.param("crowded", (0,), marks=pytest.mark.long),
    ],
)
def test_the_search_finds_nearly_the_best_of_the_grid(
    name: str, delays_us: tuple[int, ...], tmp_path: Path
) -> None:
    ensemble, bench = ENSEMBLES[name], EnsembleBench(ensemble=ENSEMBLES[name])
    space = ensemble.space(delays_us=delays_us)
    store, certified, _ = search_on(bench, space, tmp_path, budget_s=BUDGET_S)
    assert certified is not None
    winner = certified.winner
    assert winner.certificate is not None
    capacity = ensemble.capacity(winner.served)
    promised, best = winner.certificate.rate_per_s, ensemble.best(space)
    assert promised <= MAX_ABOVE_CAPACITY * capacity
    assert capacity >= MIN_OF_BEST * best
    assert bench.spent.load_s <= 0.1 * A_TRIAL_S * space.size()
    causes = [trial.why.cause for trial in store.trials if trial.why is not None]
    assert causes[0] == "baseline"
    assert set(causes[1:]) == {"predicted"}
