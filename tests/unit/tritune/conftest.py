"""A simulated server for `tritune.optimize`."""

from dataclasses import replace
from typing import Any

import pytest
from simulated_bench import SimulatedBench
from simulated_optimize import on_simulated

from optimizer.run import pipeline
from search.records.recommendation import RecommendationRecord


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run on a simulated server, in its time."""

    def search(config: Any, **given: Any) -> RecommendationRecord:
        # Of docker nothing is asked before the search.
        return on_simulated(SimulatedBench())(replace(config, server="docker"), **given)

    monkeypatch.setattr(pipeline, "optimize", search)
