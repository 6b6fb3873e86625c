"""Unit: what bounds an ensemble besides its members."""

import math

import numpy as np
import pytest
from simulated_queues import log_of

from loadgen.measurement.server_stats import BatchTimings
from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import keeps, rate_at_limit
from search.simulator.ensemble_surrogate import member_curves
from search.simulator.server import SimulatedEnsemble, SimulatedServer, SimulatedStep
from search.simulator.service_times import ClosedLoop, NotMeasured, ServiceCurve
from search.workload import Workload


def loop(*rows: tuple[int, int, float]) -> ClosedLoop:
    """A loop of 100 requests in 1 s, with these batch sizes, executions and ms of the one member."""
    sent = np.arange(100) / 100
    table = tuple(
        BatchTimings(batch_size=size, executions=executions, input_ms=0.0, infer_ms=ms, output_ms=0.0)
        for size, executions, ms in rows
    )
    return ClosedLoop(concurrency=1, log=log_of(sent, sent + 0.01), batches=(), members={"one": table})


def test_a_member_is_profiled_if_requests_bring_it_a_row_each() -> None:
    def curves(lone: ClosedLoop) -> dict[str, ServiceCurve]:
        return member_curves([lone, loop((1, 20, 2.0), (4, 20, 5.0))], {"one": 2}, lambda lone_s: lone_s["one"])

    curve = curves(loop((1, 96, 2.0), (2, 2, 2.0)))["one"]  # with the warm-up of several processes
    assert (curve.busy, curve.sizes, curve.seconds) == (2, (1.0, 4.0), (0.002, 0.005))
    assert curve.overhead_s == pytest.approx(0.008)
    with pytest.raises(NotMeasured, match="one"):
        curves(loop((8, 100, 2.0)))


def test_no_rate_above_what_is_let_through_counts_as_kept() -> None:
    step = SimulatedStep(server=SimulatedServer(service_s=np.full((2, 2), 0.001)))
    limits, unit = (LatencyLimit(limit_ms=50.0),), Workload().unit(3, requests=20_000)
    free, bound = (SimulatedEnsemble(steps=(step,), let_through_per_s=most) for most in (math.inf, 400.0))
    assert rate_at_limit(free, limits, unit) > 800.0
    assert 380.0 < rate_at_limit(bound, limits, unit) <= 400.0
    assert [keeps(one, limits, unit, 500.0) for one in (free, bound)] == [True, False]
