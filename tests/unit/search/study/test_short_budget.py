"""A shorter time budget finds less of the capacity, and not another kind of configuration."""

from pathlib import Path

import pytest
from simulated_bench import SimulatedBench
from spaces import gpu_space
from virtual_search import search_on

from model_repo.spec import ServingConfig

pytestmark = pytest.mark.slow

SLOWER = {"fp32": 4.0, "fp16": 1.5, "int8": 1.0}


def service_s(config: ServingConfig, size: int) -> float:
    return 0.002 + 0.0005 * size * SLOWER[config.engine.precision]


def contention(config: ServingConfig, busy: int) -> float:
    """Eight instances carry twice as much as two."""
    return float(busy) ** 0.5


class SlowToChange(SimulatedBench):
    """Takes 7 s to load another engine."""

    def load(self, config: ServingConfig) -> None:
        if not self.loaded or self.loaded[-1].engine != config.engine:
            self.spent.loading_s += 6.0
        super().load(config)


@pytest.mark.parametrize(("budget_s", "default_tried"), [(25.0, False), (60.0, True)])
def test_an_engine_that_is_far_faster_standalone_comes_before_the_default(
    budget_s: float, default_tried: bool, tmp_path: Path
) -> None:
    def batch_ms(precision: str, size: int) -> float:
        return (10.0 if precision == "fp32" else 1.0) * (0.5 + 0.08 * size)

    space = gpu_space(tmp_path, batch_ms, "fp32", "fp16")
    bench = SlowToChange(service_s=lambda config, size: batch_ms(config.engine.precision, size) / 1e3)
    store, certified, _ = search_on(bench, space, tmp_path, budget_s=budget_s)
    assert certified.winner.served.engine.precision == "fp16"
    assert any(trial.served == space.baseline() for trial in store.trials) == default_tried


@pytest.mark.parametrize("budget_s", [40.0, 50.0])  # 40: profiles take all of the search's time
def test_eight_instances_that_carry_twice_as_much_as_two_are_found(budget_s: float, tmp_path: Path) -> None:
    space = gpu_space(tmp_path, lambda precision, batch: 2 + 0.5 * batch * SLOWER[precision], *SLOWER)
    bench = SimulatedBench(service_s=service_s, contention=contention)
    _, certified, _ = search_on(bench, space, tmp_path, budget_s=budget_s)
    assert certified.winner.served.instance_count == 8
    assert certified.winner.served.engine.precision == "int8"
