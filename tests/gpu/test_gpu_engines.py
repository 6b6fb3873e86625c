"""Engines on a real GPU against ONNX Runtime on the CPU: same numbers, with and without graphs, padded or not."""

import ctypes
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_models import small_cnn, token_classifier

from model_repo.runtime.tritune_gpu.driver import CudaError, DriverCuda
from model_repo.runtime.tritune_gpu.engine import EngineMismatch
from model_repo.runtime.tritune_gpu.onnxruntime_engine import OnnxRuntimeEngine
from model_repo.runtime.tritune_gpu.opening import open_slots
from model_repo.runtime.tritune_gpu.runner import Runner
from model_repo.runtime.tritune_gpu.tensorrt_engine import TensorRtEngine
from optimizer.engines.builder import TensorRt, installed_tensorrt
from optimizer.engines.cache import EngineCache
from optimizer.engines.candidates import COMPUTE_FP32_IN_TF32, onnxruntime_engine
from optimizer.engines.from_variant import engine_key, engine_of
from optimizer.engines.standalone import EngineRunner
from optimizer.engines.timing_child import allocated, compile_kernels
from optimizer.machine.hardware import hardware
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.ort_child import run_model
from optimizer.model.shapes import with_shapes
from optimizer.profiling.breakdown import Execution, profile_engine

pytestmark = [pytest.mark.gpu, pytest.mark.measure]


@pytest.fixture
def cuda() -> Iterator[DriverCuda]:
    if not hardware().gpus:
        pytest.skip("no GPU")
    try:
        made = DriverCuda()
    except CudaError as reason:
        pytest.skip(f"no GPU: {reason}")
    yield made
    made.close()


def model_of(kind: str, folder: Path) -> Model:
    if kind == "cnn":
        return read_model(small_cnn(folder / "cnn.onnx"))
    return with_shapes(read_model(token_classifier(folder / "tokens.onnx")), {"ids": (16,), "mask": (16,)})


def requests_for(
    model: Model, rows: tuple[int, ...] | tuple[int], seed: int
) -> list[dict[str, NDArray[np.int64] | NDArray[np.float32]]]:
    rng = np.random.default_rng(seed)
    made = []
    for count in rows:
        request = {}
        for spec in model.inputs:
            shape = (count, *spec.concrete_shape)
            whole = spec.datatype == "INT64"
            request[spec.name] = rng.integers(0, 2, shape) if whole else rng.standard_normal(shape, np.float32)
        made.append(request)
    return made


def built_plan(model: Model, folder: Path, library: TensorRt) -> Path:
    gpu = hardware().gpus[0]
    key = engine_key(model, "fp32", library=library, gpu=gpu, max_batch_size=8)
    built = engine_of(key, model, cache=EngineCache(folder / "cache"))
    return dict(built.engine.files)["model.plan"]


def engine_for(
    backend: str, model: Model, folder: Path, cuda: DriverCuda, stream: int, *, cuda_graphs: bool
) -> OnnxRuntimeEngine | TensorRtEngine:
    if backend == "onnxruntime":
        return OnnxRuntimeEngine(model.path, device=0, stream=stream, cuda_graphs=cuda_graphs)
    library = next((each for each in installed_tensorrt() if each.backend == backend), None)
    if library is None:
        pytest.skip(f"{backend} is not installed")
    return TensorRtEngine(built_plan(model, folder, library), cuda, backend=backend)


@pytest.mark.parametrize("input_path", ["pinned", "direct"])
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("kind", ["cnn", "tokens"])
@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt_rtx", "tensorrt"])
def test_served_numbers_are_those_of_the_cpu(
    backend: str, kind: str, cuda_graphs: bool, input_path: Any, cuda: DriverCuda, tmp_path: Path
) -> None:
    model = model_of(kind, tmp_path)
    stream = cuda.stream()
    engine = engine_for(backend, model, tmp_path, cuda, stream, cuda_graphs=cuda_graphs)
    runner = Runner(
        engine, cuda, stream, max_batch_size=8, batch_sizes=(1, 2, 4, 8),
        cuda_graphs=cuda_graphs, input_path=input_path,
    )  # fmt: skip
    reference = ort.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    for seed, rows in enumerate([(1,), (2, 1), (8,), (3, 3, 2), (1,)]):
        requests = requests_for(model, rows, seed)
        outputs = runner.run(requests)
        together = {name: np.concatenate([r[name] for r in requests]) for name in requests[0]}
        names = [output.name for output in reference.get_outputs()]
        for name, expected in zip(names, reference.run(names, together), strict=True):
            np.testing.assert_allclose(outputs[name], expected, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("backend", ["tensorrt_rtx", "tensorrt"])
def test_slots_that_work_at_the_same_time_return_the_numbers_of_the_cpu(
    backend: str, cuda_graphs: bool, cuda: DriverCuda, tmp_path: Path
) -> None:
    model = model_of("cnn", tmp_path)
    library = next((each for each in installed_tensorrt() if each.backend == backend), None)
    if library is None:
        pytest.skip(f"{backend} is not installed")
    (x,), (y,) = model.inputs, model.outputs
    told = {"model_file": "model.plan", "engine_backend": backend, "batch_sizes": "1,2,4,8"}
    told["cuda_graphs"] = str(int(cuda_graphs))
    config = {
        "max_batch_size": 8,
        "input": [{"name": x.name, "data_type": "TYPE_FP32", "dims": list(x.shape)}],
        "output": [{"name": y.name, "data_type": "TYPE_FP32", "dims": list(y.shape)}],
        "parameters": {
            name: {"string_value": value}
            for name, value in (*told.items(), ("cuda_graphs", str(int(cuda_graphs))))
        },
    }
    opened = open_slots(built_plan(model, tmp_path, library).parent, config, device=0)
    reference = ort.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])

    def worked(seed: int) -> list[tuple[Any, Any]]:
        slot = opened()
        runner: Any = slot.runner
        seen = []
        for rows in (1, 8, 3, 5, 1, 2) * 20:
            (request,) = requests_for(model, (rows,), seed)
            place, _ = runner.inputs_at({x.name: (8, *x.shape)})[x.name]
            ctypes.memmove(place, request[x.name].ctypes.data, request[x.name].nbytes)
            address, shape = runner.run_in_place(rows, {x.name: (rows, *x.shape)})[y.name]
            found = np.empty(shape, np.float32)
            ctypes.memmove(found.ctypes.data, address, found.nbytes)
            seen.append((request, found))
        slot.close()
        return seen

    with ThreadPoolExecutor(4) as pool:
        for seen in pool.map(worked, range(4)):
            for request, found in seen:
                np.testing.assert_allclose(found, reference.run([y.name], request)[0], rtol=2e-2, atol=2e-3)


def test_a_batch_size_is_as_fast_after_another_one(cuda: DriverCuda, tmp_path: Path) -> None:
    """A session of ONNX Runtime plans its convolutions anew when its shapes change: 0.1 s and more."""
    model = model_of("cnn", tmp_path)
    stream = cuda.stream()
    engine = OnnxRuntimeEngine(model.path, device=0, stream=stream, cuda_graphs=False)
    runner = Runner(engine, cuda, stream, max_batch_size=8, batch_sizes=(1, 8))
    runner.warm_up({spec.name: spec.concrete_shape for spec in model.inputs if spec.concrete_shape is not None})
    one, eight = requests_for(model, (1,), 0), requests_for(model, (8,), 0)

    def seconds(*batches: list[Any]) -> float:
        began = time.perf_counter()
        for _ in range(50):
            for requests in batches:
                runner.run(requests)
        return time.perf_counter() - began

    alike = seconds(one, one) + seconds(eight, eight)
    assert seconds(one, eight) < 2 * alike


@pytest.mark.parametrize("kind", ["convolution", "product"])
@pytest.mark.parametrize("backend", ["tensorrt_rtx", "tensorrt"])
def test_which_libraries_compute_fp32_in_tf32(backend: Any, kind: str, cuda: DriverCuda, tmp_path: Path) -> None:
    """A product has a relative error of 2**-24 in fp32, and of 2**-11 in TF32."""
    library = next((each for each in installed_tensorrt() if each.backend == backend), None)
    if library is None:
        pytest.skip(f"{backend} is not installed")
    path, shape = (one_layer(tmp_path / "one.onnx", kind), (64, 16, 16) if kind == "convolution" else (512,))
    model = read_model(path)
    gpu = hardware().gpus[0]
    key = engine_key(model, "fp32", library=library, gpu=gpu, max_batch_size=8)
    built = engine_of(key, model, cache=EngineCache(tmp_path / "cache"))
    feeds = [{"x": np.random.default_rng(1).standard_normal((8, *shape), np.float32)}]
    runner = EngineRunner(engine=built.engine, variant=model, library_version=library.version)
    found, right = runner.run(feeds)[0]["y"], run_model(path, feeds)[0]["y"].astype(np.float64)
    in_tf32 = bool(np.std(found.astype(np.float64) - right) > 2**-18 * np.std(right))
    assert in_tf32 == (backend in COMPUTE_FP32_IN_TF32)


@pytest.mark.parametrize("kind", ["cnn", "tokens"])
def test_kernels_of_engines_of_one_profile_serve_the_engine_of_all(
    kind: str, cuda: DriverCuda, tmp_path: Path
) -> None:
    library = next((each for each in installed_tensorrt() if each.backend == "tensorrt_rtx"), None)
    if library is None:
        pytest.skip("tensorrt_rtx is not installed")
    model, gpu = model_of(kind, tmp_path), hardware().gpus[0]
    key = engine_key(model, "fp32", library=library, gpu=gpu, max_batch_size=8)
    files = []
    for number, profile in enumerate(key.profiles):
        kernels = compile_kernels(key.model_copy(update={"profiles": (profile,)}), model.path)
        files.append(tmp_path / str(number))
        files[-1].write_bytes(kernels or b"")
    plan = built_plan(model, tmp_path, library)
    engine = TensorRtEngine(plan, cuda, backend="tensorrt_rtx", kernels=files)
    before = len(engine.compiled_kernels() or b"")
    for profile in key.profiles:
        shapes = {name: largest for name, (_, _, largest) in profile.items()}
        engine.bind(shapes, allocated(cuda, engine.inputs, shapes))
    assert len(engine.compiled_kernels() or b"") == before > 0


def one_layer(path: Path, kind: str) -> Path:
    """Write a model of one convolution or matrix product: x to y."""
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3) if kind == "convolution" else (512, 512))
    dims = [64, 16, 16] if kind == "convolution" else [512]
    node = (
        onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
        if kind == "convolution"
        else onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    )
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *dims]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(weights.astype(np.float32), "w")
    graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:], [weight])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_the_accuracy_gate_can_run_an_engine(cuda: DriverCuda, tmp_path: Path) -> None:
    model, library = model_of("cnn", tmp_path), installed_tensorrt()[-1]
    gpu = hardware().gpus[0]
    key = engine_key(model, "fp32", library=library, gpu=gpu, max_batch_size=8)
    built = engine_of(key, model, cache=EngineCache(tmp_path / "cache"))
    runner = EngineRunner(engine=built.engine, variant=model, library_version=library.version)
    feeds = [requests_for(model, (rows,), rows)[0] for rows in (1, 8, 1)]
    for got, expected in zip(runner.run(feeds), run_model(model.path, feeds), strict=True):
        np.testing.assert_allclose(got["logits"], expected["logits"], rtol=2e-2, atol=2e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt_rtx", "tensorrt"])
def test_the_slowest_layers_and_what_graphs_save(backend: Any, cuda: DriverCuda, tmp_path: Path) -> None:
    model = model_of("cnn", tmp_path)
    engine = replace(onnxruntime_engine(model, device="gpu"), backend=backend)
    if backend != "onnxruntime":
        library = next((each for each in installed_tensorrt() if each.backend == backend), None)
        if library is None:
            pytest.skip(f"{backend} is not installed")
        plan = built_plan(model, tmp_path, library)
        engine = replace(engine, model_file="model.plan", files=(("model.plan", plan),))
    record = profile_engine(Execution(engine=engine, model=model, batch_size=4, threads=0, graphs=True))
    assert record.profiler == backend
    assert record.layer_count >= 2
    assert record.execution_ms > 0
    assert record.other_graph_ms > 0
    assert record.ceilings.flops_per_s > 0
    assert record.ceilings.bytes_per_s > 0


def test_a_damaged_plan_is_refused_with_what_to_do(cuda: DriverCuda, tmp_path: Path) -> None:
    library = installed_tensorrt()[-1]
    plan = built_plan(model_of("cnn", tmp_path), tmp_path, library)
    plan.write_bytes(plan.read_bytes()[:1000])
    with pytest.raises(EngineMismatch, match="cannot load"):
        TensorRtEngine(plan, cuda, backend=library.backend)


def test_a_plan_of_another_version_is_refused_before_it_is_loaded(cuda: DriverCuda, tmp_path: Path) -> None:
    library = installed_tensorrt()[-1]
    plan = built_plan(model_of("cnn", tmp_path), tmp_path, library)
    metadata = plan.with_name("engine.json")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "library_version": "0.1"}))
    with pytest.raises(EngineMismatch, match=r"built for library version 0\.1"):
        TensorRtEngine(plan, cuda, backend=library.backend)
