"""A simulated server for `tritune.optimize`."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from simulated_bench import SimulatedBench

from optimizer.machine.stalls import SchedulingStalls
from optimizer.run import pipeline
from search.records.recommendation import RecommendationRecord


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run on a simulated server, in its time."""

    def search(config: Any, **given: Any) -> RecommendationRecord:
        served = SimulatedBench()

        def bench_for(config: Any, prepared: Any, workload: Any) -> nullcontext[Any]:
            served.limit_ms, served.workload = config.limits[0].limit_ms, workload
            return nullcontext(served)

        return optimize(
            replace(config, server="docker"),  # of which nothing is asked before the search
            bench_for=bench_for,
            clock=lambda: served.spent.load_s + served.spent.loading_s,
            measure_machine=lambda seconds: SchedulingStalls(seconds=seconds, delays_ms=((0.0,),)),
            **given,
        )

    optimize = pipeline.optimize
    monkeypatch.setattr(pipeline, "optimize", search)
