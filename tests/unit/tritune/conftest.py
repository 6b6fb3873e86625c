"""A simulated server for `tritune.optimize`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from simulated_bench import SimulatedBench
from simulated_optimize import on_simulated

import tritune
from optimizer.run import pipeline
from search.records.recommendation import RecommendationRecord


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run on a simulated server, in its time."""
    simulate(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of one small model on a simulated server."""
    folder = tmp_path_factory.mktemp("finished")
    small_cnn(folder / "m.onnx")
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch)
        tritune.optimize(folder / "m.onnx", p99="50ms", time_budget="30s", output=folder / "run", instances="1")
    return folder / "run"


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:

    def search(config: Any, **given: Any) -> RecommendationRecord:
        # Of docker nothing is asked before the search.
        return on_simulated(SimulatedBench())(replace(config, server="docker"), **given)

    monkeypatch.setattr(pipeline, "optimize", search)
