"""Unit: what bounds an ensemble besides its members."""

import math

import numpy as np
import pytest
from simulated_bench import log_of

from loadgen.measurement.server_stats import BatchTimings
from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import keeps, rate_at_limit
from search.simulator.ensemble import SimulatedEnsemble, SimulatedStep
from search.simulator.member_times import bound_outside_per_s
from search.simulator.server import SimulatedServer
from search.simulator.service_times import ClosedLoop
from search.workload import Workload


def loop(per_s: float, *, executions: int, ms: float) -> ClosedLoop:
    sent = np.arange(int(2 * per_s)) / per_s
    table = (BatchTimings(batch_size=1, executions=executions, input_ms=0.0, infer_ms=ms, output_ms=0.0),)
    idle = (BatchTimings(batch_size=1, executions=1, input_ms=0.0, infer_ms=ms, output_ms=0.0),)
    log = log_of(sent, sent + 0.01)
    return ClosedLoop(concurrency=4, log=log, batches=(), members={"slow": table, "quick": idle})


def test_a_rate_at_which_no_member_is_busy_is_bound_by_something_else() -> None:
    counts = {"slow": 2, "quick": 1}
    idle = loop(100.0, executions=100, ms=10.0)  # 1 s of work for two instances in 2 s
    assert bound_outside_per_s([loop(50.0, executions=90, ms=40.0), idle], counts) == pytest.approx(
        100.0, rel=0.02
    )
    assert bound_outside_per_s([idle, loop(120.0, executions=190, ms=20.0)], counts) == math.inf


def test_no_rate_above_what_is_let_through_counts_as_kept() -> None:
    step = SimulatedStep(server=SimulatedServer(service_s=np.full((2, 2), 0.001)))
    limits, unit = (LatencyLimit(limit_ms=50.0),), Workload().unit(3, requests=20_000)
    free, bound = (SimulatedEnsemble(steps=(step,), let_through_per_s=most) for most in (math.inf, 400.0))
    assert rate_at_limit(free, limits, unit) > 800.0
    assert 380.0 < rate_at_limit(bound, limits, unit) <= 400.0
    assert [keeps(one, limits, unit, 500.0) for one in (free, bound)] == [True, False]
