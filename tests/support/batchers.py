"""Strategies of Hypothesis for simulated servers of any kind, and for the times between requests; mean batches."""

import math

import numpy as np
from hypothesis import strategies as st

from search.arrays import Floats
from search.simulator.server import Simulated, SimulatedServer


@st.composite
def servers(draw: st.DrawFn) -> SimulatedServer:
    max_batch, instances = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    fixed, each = draw(st.floats(1e-4, 0.02)), draw(st.floats(0, 0.005))
    crowding = draw(st.floats(0, 1))
    sizes, busy = np.arange(max_batch + 1), np.arange(instances + 1)
    service_s = (fixed + each * sizes)[:, None] * (1 + crowding * np.maximum(busy - 1, 0))[None, :]
    slower = np.array(draw(st.lists(st.floats(0.3, 3), min_size=1, max_size=3)))
    turns = draw(st.lists(st.integers(0, len(slower) - 1), min_size=1, max_size=20))
    return SimulatedServer(
        service_s=slower[:, None, None] * service_s,  # type: ignore[arg-type]
        turns=np.array([turns, turns]),
        noise=tuple(draw(st.lists(st.floats(0.5, 2), min_size=1, max_size=5))),
        max_queue_delay_s=draw(st.sampled_from([0.0, 1e-4, 0.002, 0.05])),
        preferred_batch_sizes=tuple(draw(st.sets(st.integers(1, max_batch), max_size=3))),
        variable_shapes=draw(st.booleans()),
    )


gaps = st.lists(st.floats(0, 0.05), min_size=1, max_size=80)


def mean_batch_size(server: Simulated, arrivals_s: Floats) -> float:
    """Return the requests per execution, of all models of an ensemble."""
    return len(arrivals_s) / server.run(arrivals_s, np.empty(len(arrivals_s)), 0, math.inf, 0)[0]
