"""The bundle's limit of requests in flight, on simulated replicas that get twice their certified rate."""

import math

import numpy as np
import pytest
from admission_events import admitted

from deploy.scaling import most_in_flight
from loadgen.spec.limits import LatencyLimit
from search.simulator.capacity import rate_at_limit
from search.simulator.server import SimulatedServer, simulate
from search.workload import unit_arrivals

LIMIT = LatencyLimit(limit_ms=50.0)
CERTIFIED = 0.93  # of the capacity, as searches certify
REQUESTS = 20_000


def server(sizes: int, instances: int) -> SimulatedServer:
    each_s = (0.004 + 0.001 * np.maximum(np.arange(sizes + 1), 1))[:, None]
    busy = np.maximum(np.arange(instances + 1), 1) ** 0.6
    return SimulatedServer(service_s=each_s * busy, overhead_s=0.001)


@pytest.mark.parametrize(("sizes", "instances"), [(1, 1), (8, 1), (8, 3), (64, 2)])
def test_at_twice_the_certified_rate_about_that_rate_is_answered_in_time(sizes: int, instances: int) -> None:
    replica = server(sizes, instances)
    certified_per_s = CERTIFIED * rate_at_limit(replica, (LIMIT,), unit_arrivals(0, requests=40_000))
    most = most_in_flight(certified_per_s, LIMIT.limit_s)
    unit = unit_arrivals(1, requests=REQUESTS)

    def goodput(load: float, in_flight: float) -> tuple[float, float]:
        """In time, of the certified rate; refused, of the requests."""
        latencies_s, refused = admitted(replica, unit / (load * certified_per_s), in_flight)
        return load * float(np.count_nonzero(latencies_s <= LIMIT.limit_s)) / REQUESTS, refused / REQUESTS

    assert goodput(2.0, most)[0] > 0.9
    assert goodput(2.0, math.inf)[0] < 0.2
    kept, refused = goodput(1.0, most)
    assert kept > 0.98
    assert refused < 0.01


@pytest.mark.parametrize("sizes", [1, 8])
def test_without_a_limit_the_events_are_those_of_the_simulator(sizes: int) -> None:
    replica = server(sizes, 1)
    arrivals_s = unit_arrivals(2, requests=5_000) / (0.9 * replica.saturation_per_s)
    latencies_s, refused = admitted(replica, arrivals_s, math.inf)
    assert refused == 0
    assert latencies_s == pytest.approx(simulate(replica, arrivals_s))
