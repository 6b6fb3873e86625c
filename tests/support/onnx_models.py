"""Write tiny ONNX models: each loads in milliseconds and has one trait of real ones."""

from pathlib import Path
from typing import Any

import numpy as np
from batch_models import INT64, Value, write
from numpy.typing import NDArray
from onnx import TensorProto, helper


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
    inputs, outputs = {"image": [batch, 3, size, size]}, {"logits": [batch, classes]}
    return write(path, nodes, inputs, outputs, weights, checked=True)


def token_classifier(path: Path, *, vocabulary: int = 100, width: int = 8, classes: int = 4) -> Path:
    """ids, mask (batch, tokens) int64 -> scores (batch, classes), states (batch, tokens, width).

    Both input axes are dynamic. An id outside 0..vocabulary-1 makes a request fail while it runs.
    """
    rng = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {
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
    inputs = dict.fromkeys(("ids", "mask"), (INT64, ["batch", "tokens"]))
    outputs: dict[str, Value] = {"scores": ["batch", classes], "states": ["batch", "tokens", width]}
    return write(path, nodes, inputs, outputs, weights, checked=True)


def doubler(path: Path) -> Path:
    """x (batch,) fp32 -> doubled (batch,): one number per request, no dimension but the batch."""
    nodes = [helper.make_node("Add", ["x", "x"], ["doubled"])]
    return write(path, nodes, {"x": ["batch"]}, {"doubled": ["batch"]}, checked=True)


def echo(path: Path) -> Path:
    """words (batch, 2) string -> echoed (batch, 2)."""
    texts = TensorProto.STRING, ["batch", 2]
    nodes = [helper.make_node("Identity", ["words"], ["echoed"])]
    return write(path, nodes, {"words": texts}, {"echoed": texts}, checked=True)


def unknown_operator(path: Path) -> Path:
    """x (batch, 4) fp32 -> y: passes onnx.checker, and no runtime can load it."""
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"], domain="nowhere")]
    dims: Value = ["batch", 4]
    return write(path, nodes, {"x": dims}, {"y": dims}, domains={"nowhere": 1}, checked=True)
