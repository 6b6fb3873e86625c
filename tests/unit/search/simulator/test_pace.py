"""The speed of a machine is found in a run, moment by moment, by a queue that does not know the simulator."""

from typing import Any

import numpy as np
import pytest
from fast_queue import batched_queue
from numpy.typing import NDArray
from unsteady_machine import Speed

from search.simulator.replay import GRAIN_S, PAUSED, WINDOW_S, Pace, slowdowns_by_grain
from search.simulator.server import SimulatedServer, simulate

SECOND_SLOW = Speed(np.array([1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 1.0]), 1.0)
TABLE_S = 0.004 + 0.001 * np.arange(17)[:, None] * np.ones((1, 3))  # two instances
SERVER = SimulatedServer(service_s=TABLE_S)


def latency_s(rate_per_s: float, speed: Speed = SECOND_SLOW, seed: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the arrivals of 8 s and their latencies on a machine of this speed."""
    arrivals_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, int(8 * rate_per_s)))
    arrivals_s = arrivals_s[arrivals_s < 8.0] - arrivals_s[0]
    done_s = speed.to_time(batched_queue(speed.to_work(arrivals_s), service_s=TABLE_S))
    return arrivals_s, done_s - arrivals_s


@pytest.mark.parametrize("rate_per_s", [300.0, 600.0, 1000.0])
def test_a_server_at_a_pace_has_the_latencies_of_a_queue_under_that_speed(rate_per_s: float) -> None:
    arrivals_s, taken_s = latency_s(rate_per_s)
    pace = Pace(starts_s=np.array([0.0, 3.0, 5.0]), slowdowns=np.array([1.0, 2.0, 1.0]))
    assert pace.latency_s(SERVER, arrivals_s) == pytest.approx(taken_s, rel=1e-6, abs=1e-6)
    steady = Pace(starts_s=np.zeros(1), slowdowns=np.ones(1))
    assert steady.latency_s(SERVER, arrivals_s) == pytest.approx(simulate(SERVER, arrivals_s))


@pytest.mark.parametrize("rate_per_s", [300.0, 600.0])
def test_a_slow_phase_is_found_in_its_windows_and_in_no_others(rate_per_s: float) -> None:
    found = slowdowns_by_grain(SERVER, *latency_s(rate_per_s))
    begins_s = GRAIN_S * np.arange(len(found))
    assert len(found) == pytest.approx(8 / GRAIN_S, abs=WINDOW_S / GRAIN_S)
    slow = (begins_s >= 3.0) & (begins_s < 5.0 - WINDOW_S / 2)
    assert found[slow].mean() == pytest.approx(2.0, rel=0.06)
    assert found[~slow].mean() == pytest.approx(1.0, rel=0.06)
    assert np.mean(np.abs(found[slow] / 2 - 1) < 0.1) > 0.9, "in nearly every window"
    assert np.mean(np.abs(found[~slow] - 1) < 0.1) > 0.9


def test_a_window_without_a_request_has_the_speed_of_the_one_before() -> None:
    arrivals_s, taken_s = latency_s(400.0)
    kept = (arrivals_s < 3.5) | (arrivals_s > 4.5)
    found = slowdowns_by_grain(SERVER, arrivals_s[kept], taken_s[kept])
    begins_s = GRAIN_S * np.arange(len(found))
    without = (begins_s > 3.5) & (begins_s + WINDOW_S < 4.5)
    assert len(set(found[without])) == 1
    assert found[without][0] == pytest.approx(2.0, rel=0.1)


PAUSES = np.where(np.arange(1600) % 300 // 10 == 12, 0.02, 1.0)
"""Every 1.5 s the machine does hardly any work for 50 ms."""


@pytest.mark.parametrize("rate_per_s", [300.0, 600.0, 1000.0])
def test_pauses_are_found_where_they_are_and_explain_lower_rates_too(rate_per_s: float) -> None:
    speed = Speed(PAUSES, GRAIN_S)
    found = slowdowns_by_grain(SERVER, *latency_s(rate_per_s, speed))
    paused = PAUSES[: len(found)] < 1
    assert np.mean(found[paused] == PAUSED) > 0.75
    assert np.mean(found[~paused] == PAUSED) < 0.01
    assert found[found < PAUSED].mean() == pytest.approx(1.0, rel=0.1)
    pace = Pace(starts_s=GRAIN_S * np.arange(len(found)), slowdowns=found)
    arrivals_s, taken_s = latency_s(0.3 * rate_per_s, speed, seed=2)
    assert np.quantile(pace.latency_s(SERVER, arrivals_s), 0.99) == pytest.approx(
        np.quantile(taken_s, 0.99), rel=0.15
    )


def test_slow_executions_are_no_pauses() -> None:
    found = slowdowns_by_grain(SERVER, *latency_s(800.0, Speed(np.array([1.0, 0.4]), 4.0)))
    assert np.mean(found == PAUSED) < 0.01, "at most as the slow phase begins"
