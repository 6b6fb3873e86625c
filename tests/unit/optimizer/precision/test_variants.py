"""Tests of every precision of the example models: it runs, has the right types, and TensorRT reads it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx_models import small_cnn

from optimizer.accuracy.check import OnnxCpuRunner, judge, reference_of
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.engines.builder import find_tensorrt
from optimizer.model.files import load_proto
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.samples import synthetic_samples
from optimizer.model.shapes import with_shapes
from optimizer.model.weights import WEIGHTS_FILE, save_whole
from optimizer.precision.variants import Variant, VariantOptions, variant_from_model

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[4] / "examples"
ALL = ["fp16/gpu", "bf16/gpu", "int8/cpu", "int8/gpu", "fp8/gpu"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Return the two example models, with shapes."""
    folder = tmp_path_factory.mktemp("models")
    made = {}
    for name, shapes in (("small_cnn", {}), ("small_transformer", {"input_ids": (16,)})):
        target = folder / f"{name}.onnx"
        subprocess.run([sys.executable, EXAMPLES / f"{name}.py", target], check=True, capture_output=True)
        made[name] = with_shapes(read_model(target), shapes)
    return made


def options(folder: Path, model: Model, device: str = "gpu", **changes: Any) -> VariantOptions:
    calibration = synthetic_samples(model, 16, seed=1)
    known: dict[str, Any] = {
        "work_dir": folder,
        "device": device,
        "calibration": calibration,
        "calibration_method": "percentile",
    }
    return VariantOptions(**{**known, **changes})


@pytest.fixture(scope="module", params=ALL)
def variant(
    request: pytest.FixtureRequest, models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, dict[str, Variant]]:
    """Return (precision, {model name: its variant})."""
    precision, device = request.param.split("/")
    folder = tmp_path_factory.mktemp("variants")
    made = {
        name: variant_from_model(model, precision, options(folder, model, device))
        for name, model in models.items()
    }
    return request.param, made


def test_a_variant_is_close_to_its_model(models: dict[str, Model], variant: Any) -> None:
    label, made = variant
    for name, one in made.items():
        reference = reference_of(
            OnnxCpuRunner(model=models[name]).run_within,
            synthetic_samples(models[name], 16, seed=0),
            classifying=[],
        )
        runner = OnnxCpuRunner(model=one.stand_in, optimized=one.optimizable)
        record = judge(runner, one.precision, reference, accuracy_rule("strict"))
        assert record.passed, (label, name, record.reason)
        assert not record.outputs[0].exact, "the same results, to the last bit: nothing was changed"


def test_a_variant_holds_its_precision(models: dict[str, Model], variant: Any) -> None:
    label, made = variant
    wanted = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "int8": TensorProto.INT8}
    wanted["fp8"] = TensorProto.FLOAT8E4M3FN
    for name, one in made.items():
        graph = load_proto(one.model.path).graph
        size = dict.fromkeys([*wanted.values(), TensorProto.FLOAT], 0)
        for tensor in graph.initializer:
            size[tensor.data_type] = size.get(tensor.data_type, 0) + int(np.prod(tensor.dims))
        share = size[wanted[one.precision]] / sum(size.values())
        assert share > (0.4 if name == "small_transformer" else 0.9), (label, name, size)
        assert [value.type.tensor_type.elem_type for value in graph.output] == [TensorProto.FLOAT]


def test_tensorrt_reads_a_variant_strongly_typed(variant: Any) -> None:
    library = find_tensorrt("tensorrt_rtx")
    if library is None:
        pytest.skip("needs the extra tensorrt-rtx")
    trt = library.module
    label, made = variant
    if label == "int8/cpu":
        pytest.skip("made for ONNX Runtime's CPU kernels")
    logger = trt.Logger(trt.Logger.ERROR)
    for one in made.values():
        builder = trt.Builder(logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        read = parser.parse_from_file(str(one.model.path))
        assert read, [parser.get_error(index).desc() for index in range(parser.num_errors)]


def int8_scales(made: Variant) -> dict[Any, Any]:
    """Return all quantization scales, by name."""
    scales = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in load_proto(made.model.path).graph.initializer
        if tensor.name.endswith("_scale") or "_scale_" in tensor.name
    }
    return {name: value.astype(np.float32) for name, value in scales.items()}


def test_ranges_by_entropy_are_others_and_close_enough(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["small_cnn"]
    for method in ("percentile", "entropy"):
        (tmp_path / method).mkdir()
    made = {
        method: variant_from_model(
            model, "int8", options(tmp_path / method, model, device="cpu", calibration_method=method)
        )
        for method in ("percentile", "entropy")
    }
    reference = reference_of(
        OnnxCpuRunner(model=model).run_within, synthetic_samples(model, 16, seed=0), classifying=[]
    )
    for one in made.values():
        assert judge(OnnxCpuRunner(model=one.stand_in), "int8", reference, accuracy_rule("strict")).passed
    scales = {method: int8_scales(one) for method, one in made.items()}
    assert scales["entropy"].keys() == scales["percentile"].keys()
    assert any(not np.array_equal(value, scales["percentile"][name]) for name, value in scales["entropy"].items())


def test_weights_have_a_scale_for_each_channel(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["small_cnn"]
    made = variant_from_model(model, "int8", options(tmp_path, model, device="cpu"))
    sizes = sorted(value.size for name, value in int8_scales(made).items() if value.ndim == 1)
    assert sizes.count(32) >= 2  # the first convolutions' channels
    assert sizes[-1] == 64


def test_half_inputs_and_outputs(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["small_cnn"]
    made = variant_from_model(model, "fp16", options(tmp_path, model, io_precision="fp16"))
    assert [spec.datatype for spec in (*made.model.inputs, *made.model.outputs)] == ["FP16", "FP16"]
    reference = reference_of(
        OnnxCpuRunner(model=model).run_within, synthetic_samples(model, 16, seed=0), classifying=[]
    )
    assert judge(OnnxCpuRunner(model=made.stand_in), "fp16", reference, accuracy_rule("strict")).passed


def test_tf32_is_the_graph_of_fp32(models: dict[str, Model], tmp_path: Path) -> None:
    model = models["small_cnn"]
    for precision in ("fp32", "tf32"):
        assert variant_from_model(model, precision, options(tmp_path, model)).model == model


def test_large_weights_lie_in_a_second_file(tmp_path: Path) -> None:
    import onnx

    path = small_cnn(tmp_path / "m.onnx", channels=64)
    model = read_model(path)
    saved = save_whole(onnx.load(path), tmp_path / "out", inline_limit_bytes=100)
    assert (tmp_path / "out" / WEIGHTS_FILE).exists()
    assert read_model(saved).external[0][0] == WEIGHTS_FILE
    feed = synthetic_samples(model, 1, seed=0).feeds(1)
    both = [OnnxCpuRunner(model=one).run(feed)[0]["logits"] for one in (model, read_model(saved))]
    assert np.array_equal(*both)  # type: ignore[arg-type]
