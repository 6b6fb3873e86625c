"""Tests of TensorRT-RTX engines, built for real: the builder needs no GPU."""

import dataclasses
import hashlib
import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_models import write
from onnx import TensorProto, helper
from onnx_models import small_cnn, token_classifier

from model_repo.runtime.tritune_gpu.engine import EngineMismatch
from model_repo.runtime.tritune_gpu.tensorrt_engine import check_fits
from optimizer.cached import default_cache_dir
from optimizer.engines import from_variant
from optimizer.engines.builder import EngineFailed, executed_precisions, find_tensorrt, layers_from_description
from optimizer.engines.cache import EngineCache
from optimizer.engines.from_variant import BuiltEngine, engine_key, engine_of, profiles_of
from optimizer.machine.hardware import Gpu
from optimizer.model.onnx_model import read_model
from optimizer.model.shapes import with_shapes

pytestmark = pytest.mark.slow

AMPERE = Gpu(name="NVIDIA A10", memory_bytes=None, driver=None, compute_capability="8.6", uuid=None)
LIBRARY = find_tensorrt("tensorrt_rtx")
needs_tensorrt_rtx = pytest.mark.skipif(LIBRARY is None, reason="tensorrt-rtx is not installed")


def half_cnn(path: Any, *, half: bool = True, channels: int = 8) -> Any:
    """Write image (N, 3, 16, 16) fp32 -> logits (N, 10) fp32, with a convolution and a product in fp16."""
    kind, dtype = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    rng = np.random.default_rng(0)
    weights = {"kernel": rng.standard_normal((channels, 3, 3, 3)), "dense": rng.standard_normal((channels, 10))}
    nodes = [
        helper.make_node("Cast", ["image"], ["x"], to=kind),
        helper.make_node("Conv", ["x", "kernel"], ["conv"], name="conv_node", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["y"], name="dense_node"),
        helper.make_node("Cast", ["y"], ["logits"], to=TensorProto.FLOAT),
    ]
    halves = {name: value.astype(dtype) for name, value in weights.items()}
    return write(path, nodes, {"image": ["N", 3, 16, 16]}, {"logits": ["N", 10]}, halves, ir_version=9)


def build(model_file: Path, tmp_path: Path, precision: str = "fp16", **options: Gpu | int) -> BuiltEngine:
    model, given = read_model(model_file), {"gpu": AMPERE, "max_batch_size": 8, **options}
    key = engine_key(model, precision, library=LIBRARY, **given)  # type: ignore[arg-type]
    return engine_of(key, model, cache=EngineCache(tmp_path / "cache"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuiltEngine]:
    """A folder with m.onnx and a cache of its engine, not to be changed, and that engine."""
    if LIBRARY is None:
        pytest.skip("tensorrt-rtx is not installed")
    folder = tmp_path_factory.mktemp("first")
    return folder, build(half_cnn(folder / "m.onnx"), folder)


@needs_tensorrt_rtx
@pytest.mark.parametrize("capability", ["7.5", "8.9", "12.0"])
def test_an_engine_is_built_for_every_gpu_without_one(tmp_path: Path, capability: str) -> None:
    gpu = dataclasses.replace(AMPERE, compute_capability=capability)
    built = build(half_cnn(tmp_path / "m.onnx"), tmp_path, gpu=gpu)
    assert built.metadata.compute_capability == capability
    assert built.metadata.executed == {"fp16": 2}
    assert (built.engine.backend, built.engine.device, built.engine.batched) == ("tensorrt_rtx", "gpu", True)
    assert {name for name, _ in built.engine.files} == {"model.plan", "engine.json"}


@needs_tensorrt_rtx
def test_a_second_run_builds_nothing(first: tuple[Path, BuiltEngine]) -> None:
    folder, built = first
    plan = dict(built.engine.files)["model.plan"]
    written = plan.stat()
    second = build(folder / "m.onnx", folder)
    assert (built.source, second.source) == ("built", "cache")
    assert (plan.stat().st_ino, plan.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert second.engine == built.engine


@needs_tensorrt_rtx
def test_whatever_decides_an_engine_has_an_entry_of_its_own(
    tmp_path: Path, first: tuple[Path, BuiltEngine]
) -> None:
    folder, built = first
    shutil.copytree(folder / "cache", tmp_path / "cache")
    model = folder / "m.onnx"
    builds = [
        built,
        build(model, tmp_path, max_batch_size=4),
        build(model, tmp_path, gpu=dataclasses.replace(AMPERE, compute_capability="8.9")),
        build(half_cnn(tmp_path / "other.onnx", channels=16), tmp_path),
        build(half_cnn(tmp_path / "full.onnx", half=False), tmp_path, precision="fp32"),
        build(half_cnn(tmp_path / "full.onnx", half=False), tmp_path, precision="tf32"),
    ]
    assert all(built.source == "built" for built in builds)
    assert len({built.metadata.key.digest for built in builds}) == len(builds)


@needs_tensorrt_rtx
def test_an_engine_that_would_silently_be_fp32_is_an_error(tmp_path: Path) -> None:
    model = half_cnn(tmp_path / "m.onnx", half=False)
    with pytest.raises(EngineFailed, match=r"was to compute in fp16; its heavy layers are: 2 in fp32"):
        build(model, tmp_path, precision="fp16")
    assert not (tmp_path / "cache").exists()


@needs_tensorrt_rtx
@pytest.mark.parametrize("harm", ["other plan", "no metadata", "not json", "other metadata"])
def test_a_damaged_entry_is_built_anew(tmp_path: Path, harm: str, first: tuple[Path, BuiltEngine]) -> None:
    folder, built = first
    shutil.copytree(folder / "cache", tmp_path / "cache")
    files = {name: tmp_path / path.relative_to(folder) for name, path in built.engine.files}
    if harm == "other plan":
        files["model.plan"].write_bytes(b"x" * files["model.plan"].stat().st_size)
    elif harm == "no metadata":
        files["engine.json"].unlink()
    elif harm == "other metadata":
        files["engine.json"].write_text(files["engine.json"].read_text().replace('"8.6"', '"8.9"'))
    else:
        files["engine.json"].write_text("{")
    again = build(folder / "m.onnx", tmp_path)
    assert again.source == "built"
    plan = dict(again.engine.files)["model.plan"].read_bytes()
    assert hashlib.sha256(plan).hexdigest() == again.metadata.plan_sha256


@needs_tensorrt_rtx
def test_a_builder_that_crashes_leaves_this_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text("import os\n\n\ndef build(*_):\n    os.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(from_variant, "_build", importlib.import_module("crashing").build)
    with pytest.raises(EngineFailed, match=r"crashed while it built m\.onnx in fp16 \(SIGABRT\)"):
        build(half_cnn(tmp_path / "m.onnx"), tmp_path)


def test_a_profile_of_tensorrt_spans_the_batch_and_open_axes(tmp_path: Path) -> None:
    model = with_shapes(read_model(token_classifier(tmp_path / "tokens.onnx")), {"ids": (16,), "mask": (16,)})
    assert profiles_of(model, 8, backend="tensorrt") == (
        {"ids": ((1, 1), (8, 16), (8, 16)), "mask": ((1, 1), (8, 16), (8, 16))},
    )
    with pytest.raises(EngineFailed, match="largest size of its axis"):
        profiles_of(read_model(token_classifier(tmp_path / "tokens.onnx")), 8, backend="tensorrt")


def test_tensorrt_rtx_has_a_profile_for_each_batch_size_that_is_executed(tmp_path: Path) -> None:
    profiles = profiles_of(read_model(small_cnn(tmp_path / "cnn.onnx")), 8, backend="tensorrt_rtx")
    assert [profile["image"] for profile in profiles] == [((size, 3, 32, 32),) * 3 for size in (1, 2, 4, 8)]


def test_a_plan_for_another_version_or_gpu_is_refused_with_the_command(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"plan")
    check_fits(plan, version="1", compute_capability="8.6")
    metadata = {"library_version": "1.4", "compute_capability": "8.6", "rebuild": "optimize --model m.onnx"}
    (tmp_path / "engine.json").write_text(json.dumps(metadata))
    check_fits(plan, version="1.4", compute_capability="8.6")
    with pytest.raises(
        EngineMismatch, match=r"library version 1\.4, and this is 1\.7.*\n.*optimize --model m\.onnx"
    ):
        check_fits(plan, version="1.7", compute_capability="8.6")
    with pytest.raises(EngineMismatch, match=r"compute capability 8\.6, and this is 9\.0"):
        check_fits(plan, version="1.4", compute_capability="9.0")


def test_the_cache_folder_follows_the_xdg_specification() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me/tritune")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "tritune"
    assert default_cache_dir({}) == Path.home() / ".cache" / "tritune"


DESCRIPTION = """Layers:
Name: reformat, LayerType: Reformat, Inputs: [ { Name: image, Dimensions: [-1,3,32,32], Format/Datatype: Float }],\
 Outputs: [ { Name: x, Dimensions: [-1,3,32,32], Format/Datatype: Half }], TacticName: , StreamId: 0, Metadata: 
Name: conv_myl0, LayerType: correlation, Inputs: [ { Name: x, Dimensions: [-1,3,32,32], Format/Datatype: \
Channel major FP16 format where channel % 8 == 0 }], Outputs: [ { Name: y, Dimensions: [-1,8], Format/Datatype: \
Half }], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: a][ONNX Layer: relu]
Name: gemm, LayerType: gemm, Inputs: [ { Name: y, Dimensions: [-1,8], Format/Datatype: Float }], Outputs: \
[ { Name: z, Dimensions: [-1,10], Format/Datatype: Float }], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: b]
Name: bgemm, LayerType: gemm, Inputs: [ { Name: y, Dimensions: [-1,8], Format/Datatype: BFloat16 }], Outputs: \
[ { Name: z, Dimensions: [-1,10], Format/Datatype: Float }], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: c]

Bindings:
image
"""  # noqa: W291 - as TensorRT writes it


def test_layers_are_read_from_the_inspectors_words() -> None:
    layers = layers_from_description(DESCRIPTION)
    assert [layer.name for layer in layers] == ["reformat", "conv_myl0", "gemm", "bgemm"]
    assert [set(layer.precisions) for layer in layers] == [{"fp32"}, {"fp16"}, {"fp32"}, {"bf16"}]
    assert layers[1].nodes == ("a", "relu")
    assert layers[1].tensors == (("fp16", (-1, 3, 32, 32)), ("fp16", (-1, 8)))
    assert layers[1].bytes_moved(2) == 2 * 2 * (3 * 32 * 32 + 8)
    assert dataclasses.replace(layers[1], tensors=(("fp16", (-1, -1, 8)),)).bytes_moved(2) is None
    assert layers[0].bytes_moved(1) == (4 + 2) * 3 * 32 * 32


def test_executed_precisions_are_those_of_the_named_nodes() -> None:
    layers = layers_from_description(DESCRIPTION)
    assert executed_precisions(layers, frozenset({"a", "b", "c"}), "fp16") == {"fp16": 1, "bf16": 1, "fp32": 1}
    assert executed_precisions(layers, frozenset(), "fp16") == {"fp16": 1, "bf16": 1, "fp32": 2}


@needs_tensorrt_rtx
def test_int8_needs_quantize_nodes(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="was to compute in int8"):
        build(half_cnn(tmp_path / "m.onnx"), tmp_path, precision="int8")
