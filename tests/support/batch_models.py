"""Write tiny ONNX models that treat their leading dimension in all the ways of real exporters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
Dims = Sequence[int | str | None]
Value = tuple[int, Sequence[Any]] | Dims | None
"""Type and dimensions of an input or output; dimensions alone: fp32."""


def write(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value] | Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, NDArray[Any]] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    integers: Sequence[str] = (),
    constants_as_inputs: bool = False,
    domains: Mapping[str, int] | None = None,
    checked: bool = False,
) -> Path:
    """Write a model, whose `integers` are int64, with operators of further domains; `checked` by ONNX."""

    def value(name: str, given: Value) -> onnx.ValueInfoProto:
        kind, dims = given if isinstance(given, tuple) else (INT64 if name in integers else FLOAT, given)
        return helper.make_tensor_value_info(name, kind, dims)

    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [value(name, dims) for name, dims in inputs.items()],
        [value(*one) for one in outputs.items()] if isinstance(outputs, Mapping) else outputs,
        tensors,
    )
    if constants_as_inputs:
        graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors)
    opsets = [helper.make_opsetid(*one) for one in ({"": opset} | dict(domains or {})).items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    if checked:
        onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def draw(*shape: int) -> NDArray[Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> NDArray[Any]:
    return np.array(values, dtype=np.int64)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(
        kind, inputs.split(), outputs.split(), name=f"the_{kind}_{outputs.split()[0]}", **attributes
    )


def flattened(path: Path, target: Sequence[int]) -> Path:
    """x (1, 2, 3) reshaped to `target`, which bakes the batch in, and multiplied: y (1, 4)."""
    nodes = [node("Reshape", "x target", "flat"), node("MatMul", "flat w", "y")]
    return write(path, nodes, {"x": [1, 2, 3]}, {"y": [1, 4]}, {"target": ints(*target), "w": draw(6, 4)})


def heads_folded_into_batch(path: Path, rows: int = 1) -> Path:
    """Attention as older exporters write it: heads in the batch's dimension, and all sizes baked in."""
    nodes = [
        node("Reshape", "x parted", "a"),  # (1, 3, 2, 4)
        node("Transpose", "a", "b", perm=[0, 2, 1, 3]),  # (1, 2, 3, 4)
        node("Reshape", "b folded", "c"),  # (2, 3, 4)
        node("Transpose", "c", "d", perm=[0, 2, 1]),
        node("MatMul", "c d", "scores"),  # (2, 3, 3)
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares c", "e"),  # (2, 3, 4)
        node("Reshape", "e unfolded", "f"),  # (1, 2, 3, 4)
        node("Transpose", "f", "g", perm=[0, 2, 1, 3]),
        node("Reshape", "g joined", "y"),  # (1, 3, 8)
    ]
    constants = {
        "parted": ints(rows, 3, 2, 4),
        "folded": ints(2 * rows, 3, 4),
        "unfolded": ints(rows, 2, 3, 4),
        "joined": ints(rows, 3, 8),
    }
    return write(path, nodes, {"x": [rows, 3, 8]}, {"y": [rows, 3, 8]}, constants)


def sequence_joined_with_batch(path: Path, rows: int = 1) -> Path:
    """(1, 3, 4) -> sequence first -> (3 x 1, 4) -> back: the batch lies inside a joined axis for a while."""
    nodes = [
        node("Transpose", "x", "a", perm=[1, 0, 2]),  # (3, 1, 4)
        node("Reshape", "a joined", "b"),  # (3, 4); 3 is the sequence times the batch
        node("MatMul", "b w", "c"),  # (3, 6)
        node("Reshape", "c parted", "d"),  # (3, 1, 6)
        node("Transpose", "d", "y", perm=[1, 0, 2]),
    ]
    constants = {"joined": ints(3 * rows, 4), "w": draw(4, 6), "parted": ints(3, rows, 6)}
    return write(path, nodes, {"x": [rows, 3, 4]}, {"y": [rows, 3, 6]}, constants)


def computed_shapes(path: Path) -> Path:
    """Shape arithmetic left in the graph, as torch does: its results follow from the input's sizes."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Slice", "shape zero two", "front"),  # (batch, 6)
        node("Mod", "five three", "two_"),
        node("Concat", "two_ three", "tail", axis=0),  # (2, 3)
        node("Reshape", "x flat_", "flat"),
        node("Slice", "front zero one", "batch_size"),
        node("Concat", "batch_size tail", "wanted", axis=0),
        node("Reshape", "flat wanted", "grid"),  # (batch, 2, 3)
        node("Reshape", "grid baked", "y"),  # (1, 6): here it is baked in
    ]
    constants = {
        "zero": ints(0), "one": ints(1), "two": ints(2), "three": ints(3), "five": ints(5),
        "flat_": ints(0, -1), "baked": ints(1, 6),
    }  # fmt: skip
    return write(path, nodes, {"x": [1, 6]}, {"y": [1, 6]}, constants)


def baked_sequence(path: Path) -> Path:
    """Claims that its sequence may vary, and has a length of 5 baked in."""
    nodes = [node("Reshape", "x target", "y")]
    return write(path, nodes, {"x": ["batch", "sequence", 4]}, {"y": ["batch", 20]}, {"target": ints(-1, 20)})


def class_token(path: Path, rows: int = 1) -> Path:
    """A constant token joined to the patches of an image, as vision transformers do."""
    nodes = [node("Concat", "token x", "all", axis=1), node("ReduceMean", "all", "y", axes=[1], keepdims=0)]
    tokens = {"token": np.repeat(draw(1, 1, 4), rows, axis=0)}
    return write(path, nodes, {"x": [rows, 5, 4]}, {"y": [rows, 4]}, tokens)


def enlarged(path: Path, rows: int = 1) -> Path:
    """An image resized to sizes that include the batch."""
    resize = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")
    sizes = {"sizes": ints(rows, 2, 8, 8)}
    return write(path, [resize], {"x": [rows, 2, 4, 4]}, {"y": [rows, 2, 8, 8]}, sizes)


def offset_by_place(path: Path, rows: int) -> Path:
    """Each row of the fixed batch gets another token: the model is not the same for all rows."""
    nodes = [node("Concat", "token x", "all", axis=1), node("ReduceMean", "all", "y", axes=[1], keepdims=0)]
    return write(path, nodes, {"x": [rows, 5, 4]}, {"y": [rows, 4]}, {"token": 9 * draw(rows, 1, 4)})


def mixing(path: Path, *, batch: int | str = "N") -> Path:
    """Every row depends on all others: a softmax over the leading dimension."""
    return write(path, [node("Softmax", "x", "y", axis=0)], {"x": [batch, 4]}, {"y": [batch, 4]})


def turned(path: Path) -> Path:
    """Columns become rows."""
    return write(path, [node("Transpose", "x", "y", perm=[1, 0])], {"x": [8, 4]}, {"y": [4, 8]})


def mixing_at(path: Path, size: int, compare: str) -> Path:
    """Rows depend on all others in batches whose size compares so with `size` (`Equal` or `Greater`)."""
    nodes = [
        node("Shape", "x", "sizes", end=1),
        node(compare, "sizes limit", "mixes"),
        node("Cast", "mixes", "flag", to=TensorProto.FLOAT),
        node("ReduceSum", "x axis", "sum", keepdims=1),
        node("Mul", "sum flag", "extra"),
        node("Add", "x extra", "y"),
    ]
    return write(path, nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, {"limit": ints(size), "axis": ints(0)})


def sixteen_rows_at_most(path: Path) -> Path:
    """Rows are independent, and batches of over 16 do not run."""
    nodes = [
        node("Shape", "x", "rows", end=1),
        node("Slice", "table zero rows", "ones"),
        node("Add", "x ones", "y"),
    ]
    constants = {"table": np.ones((16, 4), np.float32), "zero": ints(0)}
    return write(path, nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, constants)


def recurrent(path: Path) -> Path:
    """A sequence-first recurrent network: the leading dimension, which may vary, is time."""
    nodes = [
        node("Unsqueeze", "x one", "steps"),  # (time, 1, 4)
        node("RNN", "steps w r", "states", hidden_size=3),  # (time, 1, 1, 3)
        node("Reshape", "states flat", "y"),
    ]
    constants = {"one": ints(1), "w": draw(1, 3, 4), "r": draw(1, 3, 3), "flat": ints(-1, 3)}
    return write(path, nodes, {"x": ["time", 4]}, {"y": ["time", 3]}, constants)


def summed(path: Path) -> Path:
    """The leading dimension may vary and is summed away, though the output claims to have it."""
    nodes = [node("ReduceSum", "x zero", "y", keepdims=1)]
    return write(path, nodes, {"x": ["N", 4]}, {"y": ["M", 4]}, {"zero": ints(0)})


def constant_output(path: Path) -> Path:
    """Inputs that change nothing: there is nothing to compare."""
    nodes = [node("Mul", "x zeros", "y")]
    return write(path, nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, {"zeros": np.zeros(4, np.float32)})


def opset_6(path: Path) -> Path:
    """An Add with the broadcast attribute of old, and its constant listed among the inputs."""
    nodes = [node("Add", "x bias", "y", broadcast=1)]
    return write(
        path,
        nodes,
        {"x": [1, 4]},
        {"y": [1, 4]},
        {"bias": draw(4)},
        opset=6,
        ir_version=3,
        constants_as_inputs=True,
    )


def quantized(path: Path) -> Path:
    """A dynamically quantized layer: the scale depends on the other items of the batch."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q scale zero"),
        node("DequantizeLinear", "q scale zero", "z"),
        node("MatMul", "z w", "y"),
    ]
    return write(path, nodes, {"x": ["N", 64]}, {"y": ["N", 8]}, {"w": draw(64, 8)})
