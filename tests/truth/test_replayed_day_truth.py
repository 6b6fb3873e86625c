"""A replayed day against the same day request by request."""

import numpy as np
import pytest
from replayed_events import late_share_of_events

from deploy.autoscaler import Behavior
from deploy.day import Replica, autoscaled, fixed, foreseen, replica_of
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.capacity import rate_at_limit
from search.simulator.server import SimulatedServer
from search.workload import unit_arrivals

LIMIT = LatencyLimit(limit_ms=50.0)
AN_HOUR = np.arange(3600)
DAYS = {
    "diurnal": 400 + 1600 * (0.5 - 0.5 * np.cos(2 * np.pi * AN_HOUR / 3600)),
    "spike": np.where((AN_HOUR >= 1800) & (AN_HOUR < 2100), 1800.0, 600.0),
    "walk": np.repeat(
        np.clip(1000 * np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.25, 60))), 100, 2500), 60
    ),
}


@pytest.fixture(scope="module")
def server() -> SimulatedServer:
    sizes = np.maximum(np.arange(9), 1)
    return SimulatedServer(service_s=np.tile(0.004 + 0.001 * sizes, (2, 1)).T, overhead_s=0.001)


@pytest.fixture(scope="module")
def replica(server: SimulatedServer) -> Replica:
    capacity_per_s = rate_at_limit(server, (LIMIT,), unit_arrivals(0, requests=40_000))
    return replica_of(server, LIMIT, capacity_per_s=capacity_per_s)


def behavior(replica: Replica, target: float) -> Behavior:
    most = 12
    return Behavior(
        target_per_s=target * replica.capacity_per_s, min_replicas=1, max_replicas=most, down_window_s=300.0
    )


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize("start_s", [5.0, 60.0])
def test_late_requests_are_those_of_the_events(
    day: str, start_s: float, server: SimulatedServer, replica: Replica
) -> None:
    replays = [
        autoscaled(DAYS[day], replica, behavior(replica, target), start_s=start_s) for target in (0.6, 0.8, 0.9)
    ]
    counted = [late_share_of_events(one, server, LIMIT, seed=1) for one in replays]
    assert [one.late_share for one in replays] == pytest.approx(counted, abs=0.02)


def test_a_target_at_the_capacity_is_never_reached(server: SimulatedServer, replica: Replica) -> None:
    """Replicas that cannot keep up answer less than 10 % above their capacity, which the autoscaler overlooks."""
    day = autoscaled(DAYS["diurnal"], replica, behavior(replica, 1.0), start_s=5.0)
    assert day.replicas.max() < foreseen(DAYS["diurnal"], replica).max()
    assert day.late_share > 0.5
    assert late_share_of_events(day, server, LIMIT, seed=1) == pytest.approx(day.late_share, abs=0.02)


def test_a_fleet_for_the_peak_keeps_the_limit_and_one_less_does_not(replica: Replica) -> None:
    due = DAYS["spike"]
    enough = int(foreseen(due, replica).max())
    days = [fixed(due, replica, np.full(len(due), count)) for count in (enough, enough - 1)]
    assert [one.late_share <= LIMIT.allowed for one in days] == [True, False]
    assert [one.replica_hours for one in days] == [enough, enough - 1]
    assert days[1].minutes_over(LIMIT.allowed) >= 5


def test_a_backlog_is_answered_before_the_limit_is_met_again(replica: Replica) -> None:
    """10 s at twice what one replica can answer are a backlog that takes 10 s at a load of nothing."""
    due: Floats = np.zeros(60)
    due[:10] = 2 * replica.saturation_per_s
    day = fixed(due, replica, np.full(60, 1))
    assert day.waits_s[9] == pytest.approx(9.5)
    assert day.waits_s[15] == pytest.approx(4.5)
    assert day.waits_s[25] == 0
    assert day.late_share > 0.95


def test_two_replicas_wait_for_a_third_as_long_as_it_starts(replica: Replica) -> None:
    due = np.full(900, 1.4 * replica.capacity_per_s)
    slow, quick = (
        autoscaled(np.append(np.full(120, 600.0), due), replica, behavior(replica, 0.6), start_s=start_s)
        for start_s in (60.0, 0.0)
    )
    assert slow.replicas[-1] == quick.replicas[-1] == 3
    asked = int(np.argmax(slow.replicas == 3))
    assert slow.ready[asked + 59] == 2
    assert slow.ready[asked + 60] == 3
    assert quick.ready[asked] == 3
