"""What holds for every ensemble: step after step gives the times of all steps at once."""

import numpy as np
from batchers import gaps, mean_batch_size, servers
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_queues import PlainStep, Tandem

from search.simulator.server import SimulatedEnsemble, SimulatedServer, SimulatedStep, simulate


@given(server=servers(), gaps_s=gaps)
@settings(deadline=None)
def test_an_ensemble_of_one_step_is_its_model(server: SimulatedServer, gaps_s: list[float]) -> None:
    arrivals_s = np.cumsum(gaps_s)
    ensemble = SimulatedEnsemble(steps=(SimulatedStep(server=server),))
    assert np.array_equal(simulate(ensemble, arrivals_s), simulate(server, arrivals_s))
    assert ensemble.saturation_per_s == server.saturation_per_s
    assert ensemble.longest_s == server.longest_s


@st.composite
def ensembles(draw: st.DrawFn) -> list[PlainStep]:
    """Times are drawn from a generator, so that no two events fall on one moment by chance."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = []
    for number in range(draw(st.integers(1, 5))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=number)) if number else set()
        largest = draw(st.integers(1, 6))
        service_s = rng.uniform(1e-3, 0.01) + rng.uniform(0, 3e-3) * np.arange(largest + 1)
        steps.append(PlainStep(service_s, draw(st.integers(1, 4)), tuple(sorted(after))))
    return steps


@given(steps=ensembles(), seed=st.integers(0, 2**32), rate_per_s=st.floats(50, 2000))
@settings(deadline=None)
def test_step_after_step_is_all_steps_at_once(steps: list[PlainStep], seed: int, rate_per_s: float) -> None:
    arrivals_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, 200))
    simulated = SimulatedEnsemble(
        steps=tuple(
            SimulatedStep(
                server=SimulatedServer(service_s=np.repeat(step.service_s[:, None], step.instances + 1, axis=1)),
                after=step.after,
            )
            for step in steps
        )
    )
    plain = Tandem(steps, arrivals_s.tolist()).run()
    done_s = np.array([plain.done[request] for request in range(len(arrivals_s))])
    np.testing.assert_allclose(simulate(simulated, arrivals_s), done_s - arrivals_s, atol=1e-9)
    assert mean_batch_size(simulated, arrivals_s) == len(arrivals_s) / sum(map(len, plain.executed))
