"""Predictions for a space, and what a measurement does to them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from engines import plain_engine
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from search.records.slo import Slo
from search.simulator.service_times import ServiceCurve
from search.simulator.surrogate import (
    SD_SEEN,
    SD_SIBLING,
    SD_UNSEEN,
    Predicted,
    Surrogate,
    engine_alone_per_s,
    kinds_to_profile,
)
from search.space import Knobs, MachineLimits, search_space


@pytest.fixture
def surrogate(tmp_path: Path) -> Surrogate:
    return Surrogate(space=two_core_space(tmp_path), slo=Slo(limits=(LatencyLimit(limit_ms=50),)), seed=1)


@pytest.mark.parametrize(
    ("limit_ms", "per_s"),
    [(0.5, 0.0), (1.0, 1000.0), (2.0, 8 / 2e-3), (5.0, 36 / 5e-3), (8.0, 64 / 8e-3), (50.0, 64 / 8e-3)],
)
def test_an_engine_alone_is_judged_by_the_largest_batch_within_the_limit(limit_ms: float, per_s: float) -> None:
    engine = plain_engine(alone_ms=((1, 1.0), (8, 2.0), (64, 8.0)))
    assert engine_alone_per_s(engine, limit_ms=limit_ms) == pytest.approx(per_s)
    assert engine_alone_per_s(engine, limit_ms=limit_ms, largest=4) == pytest.approx(
        {0.5: 0.0, 1.0: 1000.0}.get(limit_ms, 4 / (1e-3 + 3e-3 / 7))
    )


def profile(surrogate: Surrogate, *, threads: int, busy: int, each_s: float) -> None:
    surrogate.curves["onnxruntime-fp32", threads, False][busy] = ServiceCurve(
        busy=busy,
        sizes=(1.0, 64.0),
        seconds=(0.002 + each_s, 0.002 + 64 * each_s),
        handover_s=0.0,
        overhead_s=0.0,
        noise=(1.0,),
    )


def test_every_kind_is_profiled_once_and_those_that_fit_the_cores_first(surrogate: Surrogate) -> None:
    points = kinds_to_profile(surrogate.space)
    kinds = [(surrogate.kind_of(knobs)[1], knobs["instance_count"]) for knobs in points]
    assert len(kinds) == len(set(kinds)) == 4
    assert set(kinds[:2]) == {(2, 1), (1, 2)}
    assert {knobs["max_batch_size"] for knobs in points} == {64}


def test_engines_take_turns_in_being_profiled(surrogate: Surrogate) -> None:
    engine = surrogate.space.engines[0]
    rivals = tuple(replace(engine, precision=precision) for precision in ("fp32", "fp16", "bf16"))
    points = kinds_to_profile(replace(surrogate.space, engines=rivals))
    assert [str(knobs["engine"])[-4:] for knobs in points[:6]] == ["fp16", "bf16", "fp32"] * 2


def rivals_alone(surrogate: Surrogate, **alone_ms: tuple[tuple[int, float], ...]) -> Surrogate:
    """Engines of these precisions, with what each takes without a server."""
    engine = surrogate.space.engines[0]
    rivals = tuple(replace(engine, precision=name, alone_ms=times) for name, times in alone_ms.items())
    return replace(surrogate, space=replace(surrogate.space, engines=rivals))


def test_the_engine_that_is_fastest_without_a_server_is_profiled_first(surrogate: Surrogate) -> None:
    made = rivals_alone(surrogate, fp32=(), tf32=((1, 1.0), (8, 4.0)), fp16=((1, 1.0), (8, 2.0)))
    points = kinds_to_profile(made.space)
    assert [str(knobs["engine"])[-4:] for knobs in points[:4]] == ["fp16", "fp16", "tf32", "fp32"]
    assert len({str(sorted(knobs.items())) for knobs in points}) == len(points) == 12


def test_of_the_fastest_engine_the_instance_counts_come_before_the_graphs(surrogate: Surrogate) -> None:
    rivals = rivals_alone(surrogate, fp32=((1, 9.0),), fp16=((1, 1.0),)).space.engines
    on_gpu = tuple(replace(engine, device="gpu") for engine in rivals)
    points = kinds_to_profile(search_space(on_gpu, MachineLimits(cores=16, memory_bytes=2**38), limit_ms=50))
    order = [(str(knobs["engine"])[-4:], knobs["instance_count"], knobs["cuda_graphs"]) for knobs in points]
    assert order[:5] == [("fp16", 1, 1), ("fp16", 8, 1), ("fp32", 1, 1), ("fp16", 4, 1), ("fp16", 2, 1)]
    fastest = [graphs for engine, _, graphs in order if engine == "fp16"]
    assert fastest == sorted(fastest, reverse=True)
    assert 0 in fastest


def test_of_the_slots_of_one_process_the_most_come_first(surrogate: Surrogate) -> None:
    baseline, fast = rivals_alone(surrogate, fp32=((1, 9.0),), fp16=((1, 1.0),)).space.engines
    on_gpu = replace(baseline, device="gpu"), replace(fast, device="gpu", backend="tensorrt_rtx")
    points = kinds_to_profile(search_space(on_gpu, MachineLimits(cores=16, memory_bytes=2**38), limit_ms=50))
    slots = [knobs["instance_count"] for knobs in points if str(knobs["engine"]).startswith("tensorrt_rtx")]
    assert slots[:3] == [4, 1, 2]


def test_an_engine_far_slower_without_a_server_is_not_profiled(surrogate: Surrogate) -> None:
    made = rivals_alone(
        surrogate,
        fp32=(),  # nothing is known of it
        tf32=((1, 1.0), (8, 4.0)),
        fp16=((1, 1.0), (8, 2.0), (64, 70.0)),
        bf16=((1, 1.0), (8, 2.2), (64, 8.0)),
        int8=((1, 0.9), (64, 70.0)),  # fast, but not within the limit
    )
    slow = {str(knobs["engine"])[-4:] for knobs in kinds_to_profile(made.space) if made.is_dominated(knobs)}
    assert slow == {"tf32", "fp16", "int8"}


def test_only_what_was_profiled_is_predicted(surrogate: Surrogate) -> None:
    profile(surrogate, threads=1, busy=1, each_s=0.001)
    points = list(surrogate.space.points())
    surrogate.simulate(points)
    predicted = [prediction.knobs for prediction in surrogate.best_first()]
    assert predicted
    assert all(knobs["intra_op_threads"] == 1 and knobs["instance_count"] == 1 for knobs in predicted)
    assert {knobs["max_batch_size"] for knobs in predicted} == set(surrogate.space.values["max_batch_size"])


def best_with_two_instances_and_with_one(surrogate: Surrogate) -> tuple[Predicted, Predicted]:
    """The best prediction of all, which has two, and the best of those with one."""
    profile(surrogate, threads=1, busy=1, each_s=0.001)
    profile(surrogate, threads=1, busy=2, each_s=0.0012)
    surrogate.simulate(list(surrogate.space.points()))
    best = surrogate.best_first()[0]
    other = next(one for one in surrogate.best_first() if one.knobs["instance_count"] == 1)
    return best, other


def test_the_best_comes_first_and_a_measurement_moves_its_kind_most(surrogate: Surrogate) -> None:
    best, other = best_with_two_instances_and_with_one(surrogate)
    assert best.sd == SD_UNSEEN
    assert best.knobs["instance_count"] == 2
    assert surrogate.update(best.knobs, 0.9 * best.rate_per_s) == pytest.approx(math.log(0.9))
    surrogate.update(other.knobs, other.rate_per_s)
    after = surrogate.predicted(best.knobs)
    assert after.rate_per_s == pytest.approx(0.9 * best.rate_per_s)
    assert after.sd == SD_SIBLING
    larger = {**best.knobs, "max_batch_size": 64 if best.knobs["max_batch_size"] < 64 else 32}  # type: ignore[operator]
    assert surrogate.predicted(larger).sd == SD_SEEN
    assert surrogate.predicted(other.knobs).rate_per_s == pytest.approx(other.rate_per_s)


def test_a_cliff_teaches_of_others_only_what_execution_times_explain(surrogate: Surrogate) -> None:
    """A baseline whose full batch takes about the limit itself keeps a quarter of what was predicted."""
    best, other = best_with_two_instances_and_with_one(surrogate)
    surrogate.update(best.knobs, best.rate_per_s / 4, slowdown=1.1)
    assert surrogate.predicted(other.knobs).rate_per_s == pytest.approx(other.rate_per_s / 1.1)


def test_what_was_never_predicted_teaches_nothing(surrogate: Surrogate) -> None:
    assert surrogate.update(next(surrogate.space.points()), 100.0) is None


def test_an_engine_far_behind_is_not_profiled_any_further(surrogate: Surrogate) -> None:
    profile(surrogate, threads=1, busy=1, each_s=0.001)
    surrogate.simulate(list(surrogate.space.points()))
    best = surrogate.best_first()[0]
    assert not surrogate.is_dominated({**best.knobs, "engine": "onnxruntime-fp32"})
    assert not surrogate.is_dominated({**best.knobs, "engine": "onnxruntime-fp16"})
    surrogate._raw["faster",] = ({**best.knobs, "engine": "onnxruntime-fp16"}, 2 * best.rate_per_s)
    assert surrogate.is_dominated({**best.knobs, "engine": "onnxruntime-fp32"})
    assert not surrogate.is_dominated({**best.knobs, "engine": "onnxruntime-fp16"})


@pytest.fixture
def on_gpu(tmp_path: Path) -> Surrogate:
    """One engine on a GPU, with 1, 2, 4 or 8 instances, of which nothing is known."""
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    engine = plain_engine(files=(("model.onnx", file),), device="gpu")
    space = search_space((engine,), MachineLimits(cores=16, memory_bytes=2**34), limit_ms=20)
    return Surrogate(space=space, slo=Slo(limits=(LatencyLimit(limit_ms=20),)), seed=1)


def profile_on_gpu(surrogate: Surrogate, *, busy: int, fixed_s: float, each_s: float, graphs: bool = True) -> None:
    surrogate.curves["onnxruntime-fp32", 16, graphs][busy] = ServiceCurve(
        busy=busy,
        sizes=(1.0, 64.0),
        seconds=(fixed_s + each_s, fixed_s + 64 * each_s),
        handover_s=0.0,
        overhead_s=0.0,
        noise=(1.0,),
    )
    points = surrogate.space.points()
    surrogate.simulate([knobs for knobs in points if knobs["max_queue_delay_us"] == 0])


@pytest.mark.parametrize(("four_each_s", "dominated"), [(0.001, True), (0.0005, False)])
def test_an_instance_count_towards_which_the_capacity_falls_is_not_profiled(
    on_gpu: Surrogate, four_each_s: float, dominated: bool
) -> None:
    """Eight instances at half the speed of one carry four times as much; four carry half of that, or all of it."""
    profile_on_gpu(on_gpu, busy=1, fixed_s=0.001, each_s=0.0005)
    profile_on_gpu(on_gpu, busy=8, fixed_s=0.001, each_s=0.001)
    two: Knobs = {"engine": "onnxruntime-fp32", "intra_op_threads": 0, "instance_count": 2, "cuda_graphs": 1}
    assert not on_gpu.is_dominated(two)
    profile_on_gpu(on_gpu, busy=4, fixed_s=0.001, each_s=four_each_s)
    assert on_gpu.is_dominated(two) == dominated


def test_graphs_that_save_much_at_one_instance_are_all_that_is_profiled_further(on_gpu: Surrogate) -> None:
    surrogate = on_gpu
    for graphs, fixed_s in ((False, 0.004), (True, 0.001)):
        profile_on_gpu(surrogate, busy=1, fixed_s=fixed_s, each_s=0.0005, graphs=graphs)
    more = {"engine": "onnxruntime-fp32", "intra_op_threads": 0, "instance_count": 2}
    assert surrogate.is_dominated({**more, "cuda_graphs": 0})  # type: ignore[dict-item]
    assert not surrogate.is_dominated({**more, "cuda_graphs": 1})  # type: ignore[dict-item]
