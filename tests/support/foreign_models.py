"""Write models as foreign exporters write them, with small random weights: most are served, some are refused.

`FOREIGN` names the function of each, `SHAPES` the sizes that `--shape` has to give, and `REFUSED` the words in
which a model is refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from batch_models import FLOAT, HALF, INT64, Value, draw, ints, node
from foreign_networks import bert, resnet, write, yolo
from numpy.typing import NDArray
from onnx import TensorProto, helper

ML = {"ai.onnx.ml": 3}
"""The operators of scikit-learn's models."""


def forest(path: Path, *, trees: int = 40, depth: int = 6, features: int = 12, zipmap: bool = False) -> Path:
    """Random forest of three classes: x (batch, features) -> label (batch,), probabilities (batch, 3).

    With `zipmap`, as skl2onnx writes it by default, the probabilities are a sequence of maps.
    """
    random = np.random.default_rng(0)
    inner, all_nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    trees_of = [tree for tree in range(trees) for _ in range(all_nodes)]
    ids = [at for _ in range(trees) for at in range(all_nodes)]
    is_inner = [at < inner for at in ids]
    leaves = [(tree, at) for tree in range(trees) for at in range(inner, all_nodes)]
    classifier = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "probabilities"],
        domain="ai.onnx.ml",
        nodes_treeids=trees_of,
        nodes_nodeids=ids,
        nodes_modes=["BRANCH_LEQ" if one else "LEAF" for one in is_inner],
        nodes_featureids=[int(random.integers(features)) if one else 0 for one in is_inner],
        nodes_values=[float(random.standard_normal()) if one else 0.0 for one in is_inner],
        nodes_truenodeids=[2 * at + 1 if one else 0 for at, one in zip(ids, is_inner, strict=True)],
        nodes_falsenodeids=[2 * at + 2 if one else 0 for at, one in zip(ids, is_inner, strict=True)],
        class_treeids=[tree for tree, _ in leaves],
        class_nodeids=[at for _, at in leaves],
        class_ids=[int(random.integers(3)) for _ in leaves],
        class_weights=[1 / trees] * len(leaves),
        classlabels_int64s=[0, 1, 2],
        post_transform="NONE",
    )
    x = {"x": (FLOAT, ["N", features])}
    if not zipmap:
        results: dict[str, Value] = {"label": (INT64, ["N"]), "probabilities": (FLOAT, ["N", 3])}
        return write(path, [classifier], x, results, {}, domains=ML)
    named = helper.make_node(
        "ZipMap", ["probabilities"], ["named"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
    )
    chances = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    values = [
        helper.make_tensor_value_info("label", INT64, ["N"]),
        helper.make_value_info("named", helper.make_sequence_type_proto(chances)),
    ]
    return write(path, [classifier, named], x, values, {}, domains=ML)


def forest_with_zipmap(path: Path) -> Path:
    """The same as skl2onnx writes it by default: the probabilities are a sequence of maps."""
    return forest(path, zipmap=True)


def cnn(path: Path) -> Path:
    """Two convolutions and a dense layer: image (batch, 3, 32, 32) -> logits (batch, 10)."""
    nodes = [
        node("Conv", "image k1", "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 k2", "c2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c2", "r2"),
        node("GlobalAveragePool", "r2", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("Gemm", "flat w b", "logits"),
    ]
    constants = {"k1": draw(16, 3, 3, 3) / 5, "k2": draw(32, 16, 3, 3) / 12, "w": draw(32, 10), "b": draw(10)}
    return write(path, nodes, {"image": (FLOAT, ["N", 3, 32, 32])}, {"logits": (FLOAT, ["N", 10])}, constants)


def half(path: Path) -> Path:
    """Everything in fp16, inputs and outputs too: x (batch, 64) -> y (batch, 16)."""
    nodes = [node("MatMul", "x w1", "h"), node("Relu", "h", "r"), node("MatMul", "r w2", "y")]
    constants = {"w1": (draw(64, 128) / 8).astype(np.float16), "w2": (draw(128, 16) / 8).astype(np.float16)}
    return write(path, nodes, {"x": (HALF, ["N", 64])}, {"y": (HALF, ["N", 16])}, constants)


def quantized(path: Path) -> Path:
    """QDQ int8, as quantizers write it: image (batch, 3, 16, 16) -> logits (batch, 10)."""
    random = np.random.default_rng(0)
    nodes = [
        node("QuantizeLinear", "image image_s zero", "image_q"),
        node("DequantizeLinear", "image_q image_s zero", "image_d"),
        node("DequantizeLinear", "kernel kernel_s zeros", "kernel_d", axis=0),
        node("Conv", "image_d kernel_d", "conv", pads=[1, 1, 1, 1]),
        node("Relu", "conv", "relu"),
        node("QuantizeLinear", "relu relu_s zero", "relu_q"),
        node("DequantizeLinear", "relu_q relu_s zero", "relu_d"),
        node("GlobalAveragePool", "relu_d", "pooled"),
        node("Flatten", "pooled", "flat"),
        node("MatMul", "flat w", "logits"),
    ]
    constants: dict[str, NDArray[Any]] = {
        "image_s": np.array(0.03, np.float32),
        "relu_s": np.array(0.02, np.float32),
        "zero": np.array(0, np.int8),
        "kernel": random.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "kernel_s": np.full(8, 0.002, np.float32),
        "zeros": np.zeros(8, np.int8),
        "w": draw(8, 10),
    }
    image = {"image": (FLOAT, ["N", 3, 16, 16])}
    return write(path, nodes, image, {"logits": (FLOAT, ["N", 10])}, constants)


def embedding_bag(path: Path) -> Path:
    """Means of rows of two tables, and a dense layer: users, items (batch, 20) int64 -> score (batch, 1)."""
    nodes = [
        node("Gather", "user_table users", "u"),
        node("Gather", "item_table items", "i"),
        node("ReduceMean", "u", "u_mean", axes=[1], keepdims=0),
        node("ReduceMean", "i", "i_mean", axes=[1], keepdims=0),
        node("Concat", "u_mean i_mean", "both", axis=1),
        node("MatMul", "both w", "score"),
    ]
    constants = {"user_table": draw(5000, 16), "item_table": draw(3000, 16), "w": draw(32, 1)}
    inputs = {"users": (INT64, ["N", 20]), "items": (INT64, ["N", 20])}
    return write(path, nodes, inputs, {"score": (FLOAT, ["N", 1])}, constants)


def opset_7(path: Path) -> Path:
    """An image classifier of 2017: opset 7, a batch fixed to 1, dropout and a reshape with the batch in it."""
    nodes = [
        node("Conv", "data k", "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "conv", "relu"),
        node("MaxPool", "relu", "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Dropout", "pool", "dropped", ratio=0.5),
        node("Reshape", "dropped shape", "flat"),
        node("Gemm", "flat w b", "dense", transB=1),
        node("Softmax", "dense", "prob", axis=1),
    ]
    constants = {"k": draw(8, 3, 3, 3) / 5, "shape": ints(1, 512), "w": draw(10, 512) / 22, "b": draw(10)}
    return write(path, nodes, {"data": (FLOAT, [1, 3, 32, 32])}, {"prob": (FLOAT, [1, 10])}, constants, opset=7)


def scalar_output(path: Path) -> Path:
    """A loss: x (batch, 8) -> loss, of rank 0."""
    nodes = [
        node("MatMul", "x w", "y"),
        node("Mul", "y y", "squared"),
        node("ReduceMean", "squared", "loss", keepdims=0),
    ]
    return write(path, nodes, {"x": (FLOAT, ["N", 8])}, {"loss": (FLOAT, [])}, {"w": draw(8, 4)})


def two_batch_axes(path: Path) -> Path:
    """The batch is axis 1 of one input and axis 0 of the other: frames (10, batch, 6), scale (batch, 6)."""
    nodes = [
        node("Mul", "frames scale", "scaled"),
        node("ReduceMean", "scaled", "mean", axes=[0], keepdims=0),
        node("MatMul", "mean w", "y"),
    ]
    inputs = {"frames": (FLOAT, [10, "N", 6]), "scale": (FLOAT, ["N", 6])}
    return write(path, nodes, inputs, {"y": (FLOAT, ["N", 3])}, {"w": draw(6, 3)})


def recurrent(path: Path) -> Path:
    """LSTM over the sequence, batch first: x (batch, 12, 8) -> y (batch, 4)."""
    nodes = [
        node("Transpose", "x", "steps", perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["", "last"], hidden_size=16, name="lstm"),
        node("Squeeze", "last axis", "h"),
        node("MatMul", "h dense", "y"),
    ]
    constants = {"w": draw(1, 64, 8) / 3, "r": draw(1, 64, 16) / 4, "axis": ints(0), "dense": draw(16, 4)}
    return write(path, nodes, {"x": (FLOAT, ["N", 12, 8])}, {"y": (FLOAT, ["N", 4])}, constants)


def string_input(path: Path) -> Path:
    """A vocabulary: words (batch, 4) string -> ids (batch, 4), and labels (batch, 4) string."""
    encoder = helper.make_node(
        "LabelEncoder",
        ["words"],
        ["ids"],
        domain="ai.onnx.ml",
        keys_strings=["a", "the", "of"],
        values_int64s=[0, 1, 2],
        default_int64=3,
    )
    named = helper.make_node(
        "LabelEncoder",
        ["ids"],
        ["labels"],
        domain="ai.onnx.ml",
        keys_int64s=[0, 1, 2],
        values_strings=["letter", "article", "preposition"],
        default_string="other",
    )
    inputs = {"words": (TensorProto.STRING, ["N", 4])}
    outputs = {"ids": (INT64, ["N", 4]), "labels": (TensorProto.STRING, ["N", 4])}
    return write(path, [encoder, named], inputs, outputs, {}, domains=ML)


FOREIGN: dict[str, Callable[[Path], Path]] = {
    make.__name__: make
    for make in (
        forest,
        cnn,
        resnet,
        bert,
        yolo,
        half,
        quantized,
        embedding_bag,
        opset_7,
        scalar_output,
        two_batch_axes,
        recurrent,
        forest_with_zipmap,
        string_input,
    )
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "bert": {"input_ids": (16,), "attention_mask": (16,)},
    "two_batch_axes": {"frames": (10, 4, 6), "scale": (4, 6)},
}
SAMPLES: dict[str, str] = {
    "string_input": '{"data": [{"words": ["a", "of", "b", "the"]}, {"words": ["the", "c", "a", "of"]},'
    ' {"words": ["of", "of", "\\u00e9", "a"]}]}'
}
"""Input data, in JSON, of those that are not tried with random inputs."""
