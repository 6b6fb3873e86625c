"""Unit: what bounds an ensemble besides its members."""

import math

import numpy as np

from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import keeps, rate_at_limit
from search.simulator.ensemble import SimulatedEnsemble, SimulatedStep
from search.simulator.server import SimulatedServer
from search.workload import Workload


def test_no_rate_above_what_is_let_through_counts_as_kept() -> None:
    step = SimulatedStep(server=SimulatedServer(service_s=np.full((2, 2), 0.001)))
    limits, unit = (LatencyLimit(limit_ms=50.0),), Workload().unit(3, requests=20_000)
    free, bound = (SimulatedEnsemble(steps=(step,), let_through_per_s=most) for most in (math.inf, 400.0))
    assert rate_at_limit(free, limits, unit) > 800.0
    assert 380.0 < rate_at_limit(bound, limits, unit) <= 400.0
    assert [keeps(one, limits, unit, 500.0) for one in (free, bound)] == [True, False]
