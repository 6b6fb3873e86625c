"""Searching under traffic that is not Poisson, or whose requests carry several rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from simulated_bench import SimulatedBench
from simulated_queues import log_of
from spaces import two_core_space
from traffics import BURSTS, recorded
from virtual_search import SLO, search_on

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.traffic.arrivals import schedule
from search.simulator.surrogate import Surrogate
from search.space import default_config
from search.trials import events
from search.workload import Workload


def test_a_trace_begins_elsewhere_with_each_seed_and_is_the_same_with_the_same() -> None:
    workload = recorded(2000)

    def sent(seed: int) -> NDArray[Any]:
        return schedule(LoadPlan(rate_per_s=500.0, duration_s=2.0, seed=seed, arrivals=workload.drawn(seed)))

    assert (sent(1) == sent(1)).all()
    assert len(sent(1)) != len(sent(2)) or (sent(1) != sent(2)).any()
    assert BURSTS.drawn(1) == BURSTS.drawn(2) == BURSTS.arrivals


def test_a_trace_is_played_once_before_a_run_may_end_where_there_is_time() -> None:
    workload = recorded(1000)
    asked = []

    def watch(log: Any) -> bool:
        asked.append(log)
        return True

    def after(seconds: float) -> RequestLog:
        due_s = schedule(LoadPlan(rate_per_s=100.0, duration_s=seconds, seed=0)) / 1e9
        return log_of(due_s, due_s)

    patient = workload.to_the_end(watch, 100.0, 20.0)
    assert not patient(after(5.0))
    assert not asked
    assert patient(after(11.0))
    assert workload.to_the_end(watch, 100.0, 5.0) is watch
    assert BURSTS.to_the_end(watch, 100.0, 20.0) is watch
    assert workload.caveat(1000.0) is None
    assert "1,000 arrivals" in workload.caveat(500.0)


def test_batches_are_of_whole_requests_and_the_default_takes_one_at_least(tmp_path: Path) -> None:
    space = two_core_space(tmp_path, rows_per_request=6)
    assert space.values["max_batch_size"] == (6, 12, 24, 48)
    assert space.baseline().max_batch_size == 6
    assert replace(space, rows_per_request=3).baseline() == default_config(space.engines[0])
    alone = next(knobs for knobs in space.points() if knobs["max_batch_size"] == 6)
    assert not space.config(alone).dynamic_batching


def test_samples_of_several_shapes_are_searched_without_the_simulator(tmp_path: Path) -> None:
    bench = SimulatedBench(workload=Workload(predictable=False))
    store, _, seen = search_on(bench, two_core_space(tmp_path), tmp_path, stop=lambda: len(bench.loaded) >= 2)
    assert any(isinstance(event, events.Note) and "more shapes" in event.text for event in seen)
    assert all(trial.why.prediction is None for trial in store.trials)


def test_long_traces_are_simulated_in_a_piece() -> None:
    assert len(Workload(arrivals=Arrivals(kind="trace", times_s=tuple(range(9)))).unit(0, requests=50)) == 50
    assert Surrogate(space=None, slo=SLO, seed=0).workload == Workload()
