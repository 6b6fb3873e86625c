from pathlib import Path
from typing import Any

import pytest

from model_repo.spec import Engine, TensorSpec
from search.space import MachineLimits, SearchSpace, default_config, knobs_of, search_space


def engine(
    folder: Path,
    *,
    batched: bool = True,
    size_bytes: int = 1000,
    device: Any = "cpu",
    backend: Any = "onnxruntime",
) -> Engine:
    file = folder / "model.onnx"
    file.write_bytes(b"x" * size_bytes)
    tensor = TensorSpec(name="x", datatype="FP32", shape=(3,))
    return Engine(
        model_name="m",
        backend=backend,
        precision="fp32",
        device=device,
        model_file="model.onnx",
        files=(("model.onnx", file),),
        inputs=(tensor,),
        outputs=(tensor,),
        batched=batched,
    )


def space_for(folder: Path, *, cores: int = 4, memory_bytes: int = 2**34, **options: Any) -> SearchSpace:
    limits = MachineLimits(cores=cores, memory_bytes=memory_bytes)
    return search_space((engine(folder, **options),), limits, limit_ms=50.0)


def test_space_grows_with_the_cores(tmp_path: Path) -> None:
    assert space_for(tmp_path, cores=2).values["instance_count"] == (1, 2)
    assert space_for(tmp_path, cores=6).values["instance_count"] == (1, 2, 4, 6)


def test_the_baseline_is_a_point_on_one_core_too(tmp_path: Path) -> None:
    space = space_for(tmp_path, cores=1)
    assert knobs_of(default_config(space.engines[0])) in list(space.points())


def test_space_shrinks_where_instances_do_not_fit_in_memory(tmp_path: Path) -> None:
    assert space_for(tmp_path, cores=8, memory_bytes=10_000, size_bytes=1000).values["instance_count"] == (1, 2)


def test_points_never_use_more_threads_than_cores_except_the_default_pair(tmp_path: Path) -> None:
    points = list(space_for(tmp_path, cores=4).points())
    assert all(p["instance_count"] * p["intra_op_threads"] <= 4 or p["intra_op_threads"] in (0, 1) for p in points)  # type: ignore[operator]
    assert {p["instance_count"] for p in points if p["intra_op_threads"] == 0} == {2}


def test_a_delay_needs_batches(tmp_path: Path) -> None:
    assert all(p["max_queue_delay_us"] == 0 for p in space_for(tmp_path).points() if p["max_batch_size"] == 1)


def test_a_model_without_a_batch_dimension_is_never_batched(tmp_path: Path) -> None:
    space = space_for(tmp_path, batched=False)
    configs = [space.config(knobs) for knobs in space.points()]
    assert configs
    assert all(config.max_batch_size == 0 and not config.dynamic_batching for config in configs)


def test_the_baseline_is_what_triton_completes_an_empty_configuration_to(tmp_path: Path) -> None:
    config = default_config(engine(tmp_path))
    assert (config.max_batch_size, config.instance_count, config.dynamic_batching) == (4, 2, True)
    assert (config.max_queue_delay_us, config.intra_op_threads) == (0, 0)


@pytest.mark.parametrize("batched", [True, False])
def test_the_baseline_is_a_point_that_optuna_can_be_told(tmp_path: Path, batched: bool) -> None:
    space = space_for(tmp_path, batched=batched)
    knobs = knobs_of(default_config(space.engines[0]))
    assert all(knobs[name] in values for name, values in space.axes().items())


def test_on_a_gpu_backends_and_cuda_graphs_are_knobs(tmp_path: Path) -> None:
    engines = tuple(engine(tmp_path, device="gpu", backend=backend) for backend in ("onnxruntime", "tensorrt"))
    space = search_space(engines, MachineLimits(cores=4, memory_bytes=2**34), limit_ms=50.0)
    assert space.axes()["engine"] == ("onnxruntime-fp32", "tensorrt-fp32")
    assert space.axes()["cuda_graphs"] == (0, 1)
    for knobs in space.points():
        config = space.config(knobs)
        assert knobs_of(config) == knobs
        assert bool(config.cuda_graph_batch_sizes) == bool(knobs["cuda_graphs"])
    assert config.cuda_graph_batch_sizes[-1] == config.max_batch_size
    assert {n["cuda_graphs"] for n in space.adjacent(knobs_of(default_config(engines[0])))} == {0, 1}


def test_without_a_gpu_there_is_no_knob_for_cuda_graphs(tmp_path: Path) -> None:
    assert "cuda_graphs" not in space_for(tmp_path).axes()


def test_neighbours_are_one_step_away_or_trade_instances_for_threads(tmp_path: Path) -> None:
    space = space_for(tmp_path, cores=4)
    knobs = {
        "engine": "onnxruntime-fp32",
        "max_batch_size": 8,
        "instance_count": 2,
        "intra_op_threads": 2,
        "max_queue_delay_us": 0,
    }
    found = list(space.adjacent(knobs))  # type: ignore[arg-type]
    assert {n["max_batch_size"] for n in found} == {4, 8, 16}
    assert any((n["instance_count"], n["intra_op_threads"]) == (4, 1) for n in found)
    assert any((n["instance_count"], n["intra_op_threads"]) == (1, 4) for n in found)
    assert knobs not in found
    assert all(space.is_legal(n) for n in found)
