"""The number format of a model as it is given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from optimizer.model.weights import number_format


def model(nodes: list[Any], weights: dict[str, Any], kind: int = TensorProto.FLOAT) -> Any:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, ["N", 4])],
        [helper.make_tensor_value_info("y", kind, ["N", 4])],
        initializer=[numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


MATMUL = [helper.make_node("MatMul", ["x", "w"], ["y"])]


@pytest.mark.parametrize(
    ("dtype", "kind", "name"),
    [
        (np.float32, TensorProto.FLOAT, "fp32"),
        (np.float16, TensorProto.FLOAT16, "fp16"),
        (np.float64, TensorProto.DOUBLE, "fp64"),
    ],
)
def test_most_weights_decide(dtype: Any, kind: int, name: str) -> None:
    assert number_format(model(MATMUL, {"w": np.ones((4, 4), dtype)}, kind)) == name


def test_few_weights_in_another_type_change_nothing() -> None:
    weights = {"w": np.ones((4, 4), np.float16), "scale": np.ones((1,), np.float32), "axes": np.arange(99)}
    assert number_format(model(MATMUL, weights)) == "fp16"


def test_a_model_with_quantized_weights_is_int8() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"]), *MATMUL]
    weights = {"q": np.ones((4, 4), np.int8), "scale": np.float32(0.1), "zero": np.int8(0)}
    assert number_format(model(nodes, {name: np.asarray(value) for name, value in weights.items()})) == "int8"


@pytest.mark.parametrize(("kind", "name"), [(TensorProto.FLOAT16, "fp16"), (TensorProto.INT64, "fp32")])
def test_without_weights_the_inputs_decide(kind: int, name: str) -> None:
    assert number_format(model([helper.make_node("Identity", ["x"], ["y"])], {}, kind)) == name


def test_weights_in_another_file_count(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "model.onnx"
    onnx.save_model(
        model(MATMUL, {"w": np.ones((4, 4), np.float16)}, TensorProto.FLOAT16),
        path, save_as_external_data=True, location="weights.bin", size_threshold=0,
    )  # fmt: skip
    assert number_format(onnx.load_model(path, load_external_data=False)) == "fp16"
