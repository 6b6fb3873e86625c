"""Write tiny ONNX models: each loads in milliseconds and has one trait of real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


def small_cnn(path: Path, *, batch: int | str = "N", size: int = 32, channels: int = 8, classes: int = 10) -> Path:
    """image (batch, 3, size, size) fp32 -> logits (batch, classes) fp32. `batch` an int: a fixed batch."""
    rng = np.random.default_rng(0)
    weights = {
        "kernel": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32) * 0.1,
        "dense": rng.standard_normal((channels, classes)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["logits"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, size, size])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes])
    return _save(path, nodes, [image], [logits], weights)


def token_classifier(path: Path, *, vocabulary: int = 100, width: int = 8, classes: int = 4) -> Path:
    """ids, mask (batch, tokens) int64 -> scores (batch, classes), states (batch, tokens, width).

    Both input axes are dynamic. An id outside 0..vocabulary-1 makes a request fail while it runs.
    """
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((vocabulary, width)).astype(np.float32),
        "dense": rng.standard_normal((width, classes)).astype(np.float32),
        "last": np.array([2], dtype=np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Cast", ["mask"], ["mask_f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask_f", "last"], ["mask_3d"]),
        helper.make_node("Mul", ["embedded", "mask_3d"], ["states"]),
        helper.make_node("ReduceMean", ["states"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["pooled", "dense"], ["scores"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "tokens"]) for n in ("ids", "mask")]
    outputs = [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes]),
        helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "tokens", width]),
    ]
    return _save(path, nodes, inputs, outputs, weights)


def doubler(path: Path) -> Path:
    """x (batch,) fp32 -> doubled (batch,): one number per request, no dimension but the batch."""
    nodes = [helper.make_node("Add", ["x", "x"], ["doubled"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    doubled = helper.make_tensor_value_info("doubled", TensorProto.FLOAT, ["batch"])
    return _save(path, nodes, [x], [doubled], {})


def echo(path: Path) -> Path:
    """words (batch, 2) string -> echoed (batch, 2)."""
    words = helper.make_tensor_value_info("words", TensorProto.STRING, ["batch", 2])
    echoed = helper.make_tensor_value_info("echoed", TensorProto.STRING, ["batch", 2])
    return _save(path, [helper.make_node("Identity", ["words"], ["echoed"])], [words], [echoed], {})


def unknown_operator(path: Path) -> Path:
    """x (batch, 4) fp32 -> y: passes onnx.checker, and no runtime can load it."""
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"], domain="nowhere")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    return _save(path, nodes, [x], [y], {}, domains=("nowhere",))


def _save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    weights: Any,
    domains: tuple[str] | tuple[()] = (),
) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
