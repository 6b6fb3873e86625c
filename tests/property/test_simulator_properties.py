"""What holds for every batcher: nobody is lost or served too soon, more load never helps, chance is a seed."""

from dataclasses import replace

import numpy as np
from batchers import gaps, mean_batch_size, servers
from hypothesis import given, settings
from hypothesis import strategies as st

from search.simulator.batcher import simulate as simulate_by_events
from search.simulator.batcher_no_delay import simulate_undelayed
from search.simulator.server import SimulatedServer, simulate
from search.workload import unit_arrivals


@given(server=servers(), gaps_s=gaps)
@settings(deadline=None)
def test_every_request_is_answered_after_its_own_execution_and_in_time(
    server: SimulatedServer, gaps_s: list[float]
) -> None:
    arrivals_s = np.cumsum(gaps_s)
    latency_s = simulate(server, arrivals_s)
    shortest_s = server.service_s[:, 1:, 1:].min() * min(server.noise)
    assert (latency_s >= shortest_s - 1e-9).all()
    assert 1 <= mean_batch_size(server, arrivals_s) <= server.max_batch_size
    # Even one after the other, each after a whole delay and the batcher's longest nap, they would be done by then.
    slowest_s = server.service_s.max() * max(server.noise) + server.max_queue_delay_s
    assert latency_s.max() <= len(arrivals_s) * slowest_s + 0.5


@given(server=servers(), gaps_s=gaps, late_after_s=st.floats(0, 0.05), wakes=st.booleans())
@settings(deadline=None)
def test_without_delay_batches_and_events_come_to_the_same_times(
    server: SimulatedServer, gaps_s: list[float], late_after_s: float, wakes: bool
) -> None:
    arrivals_s, noise = np.cumsum(gaps_s), np.array(server.noise)
    largest_only = np.arange(server.max_batch_size + 1) == server.max_batch_size
    by_batches, by_events = np.empty(len(gaps_s)), np.empty(len(gaps_s))
    late = (len(gaps_s) // 3, late_after_s, len(gaps_s))
    shapes = np.tile(server.turns, len(gaps_s))
    load = (arrivals_s, shapes, np.concatenate(server.tables), noise)
    executions, counted = simulate_undelayed(*load, server.max_batch_size, by_batches, *late)
    rule = (largest_only, server.instance_count, 0.0, wakes)
    assert executions == simulate_by_events(*load, *rule, by_events, *late)[0]
    assert np.allclose(by_batches, by_events, rtol=0, atol=1e-9)
    assert counted == np.sum((by_batches - arrivals_s)[late[0] :] > late_after_s)


@given(server=servers(), gaps_s=gaps)
@settings(deadline=None)
def test_batches_start_in_the_order_of_arrival(server: SimulatedServer, gaps_s: list[float]) -> None:
    """With one instance they also end in it."""
    arrivals_s = np.cumsum(gaps_s)
    alone = replace(server, service_s=np.ascontiguousarray(server.service_s[..., :2]))
    done_s = arrivals_s + simulate(alone, arrivals_s)
    assert (np.diff(done_s) >= -1e-9).all()


@given(seed=st.integers(0, 2**31), requests=st.integers(10, 2000))
@settings(deadline=None, max_examples=20)
def test_unit_arrivals_are_one_a_second_and_the_same_for_a_seed(seed: int, requests: int) -> None:
    arrivals = unit_arrivals(seed, requests=requests)
    assert (np.diff(arrivals) >= 0).all()
    assert abs(len(arrivals) - requests) < 6 * requests**0.5 + 5
    assert (arrivals == unit_arrivals(seed, requests=requests)).all()
