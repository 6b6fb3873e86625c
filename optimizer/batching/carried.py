"""Change what Triton's protocol cannot carry of a model's interface: scalars, and scikit-learn's dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.model.checks import all_nodes
from optimizer.model.files import Graph, external_files, load_proto, write_model
from optimizer.model.weights import opset_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_FREE_CONSTANTS = 4
"""From this version of ONNX's format on, constants need not be listed as inputs."""

_RESHAPE = 5
"""From this opset on, Reshape takes the shape as an input."""


def carried(path: Path, work_dir: Path) -> tuple[Graph, tuple[str, ...]]:
    """Return the file, or a rewritten one of its name in `work_dir`; and what was changed, in sentences.

    Raises ModelError, UnsafeModel, OSError.
    """
    proto = load_proto(path)
    notes = (*_with_free_constants(proto), *_without_dictionaries(proto), *_without_scalars(proto))
    if notes:
        path, external = work_dir / "carried" / path.name, external_files(proto, path.parent)
        write_model(proto, path, external)
    return Graph(path.absolute(), proto), notes


def _with_free_constants(proto: ModelProto) -> Iterator[str]:
    """Raise the version of a file that has constants as later versions do; ONNX Runtime loads it as it is."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    if proto.ir_version < _FREE_CONSTANTS and constants - {value.name for value in proto.graph.input}:
        yield f"Its format is {_FREE_CONSTANTS}, not {proto.ir_version}: not all of its constants are inputs."
        proto.ir_version = _FREE_CONSTANTS


def _without_dictionaries(proto: ModelProto) -> Iterator[str]:
    """Replace each ZipMap by its input, a row of probabilities for each row of the model's first input."""
    from onnx import TensorProto, helper

    graph, outputs = proto.graph, {value.name: value for value in proto.graph.output}
    constants = {tensor.name for tensor in graph.initializer}
    first = next((value for value in graph.input if value.name not in constants), None)
    for node in graph.node:
        if (node.domain, node.op_type) != ("ai.onnx.ml", "ZipMap") or node.output[0] not in outputs:
            continue
        labels = [label for attribute in node.attribute for label in (*attribute.ints, *attribute.strings)]
        value = outputs[node.output[0]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [None, len(labels)]))
        rows = first.type.tensor_type.shape.dim[:1] if first is not None else ()
        if rows:
            value.type.tensor_type.shape.dim[0].CopyFrom(rows[0])
        node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
        if not opset_of(proto):
            proto.opset_import.append(helper.make_opsetid("", 13))
        yield f"{value.name} is served as a tensor, with a column for each of its {len(labels)} labels."


def _without_scalars(proto: ModelProto) -> Iterator[str]:
    """Give each scalar input and output an axis of size 1."""
    graph = proto.graph
    if opset_of(proto) < _RESHAPE:
        return
    constants = {tensor.name for tensor in graph.initializer}
    for value in filter(_is_scalar, graph.input):
        if value.name not in constants:
            inner = _renamed(graph, value.name, produced=False)
            graph.node.insert(0, _reshape(graph, value.name, inner, []))
            yield _widened(value)
    made = {name for node in graph.node for name in node.output}
    inputs = {value.name for value in graph.input} - constants
    for value in filter(_is_scalar, graph.output):
        if value.name in inputs:
            _widened(value)
        elif value.name in made:
            inner = _renamed(graph, value.name, produced=True)
            graph.node.append(_reshape(graph, inner, value.name, [1]))
            yield _widened(value)
    names = {value.name for value in (*graph.input, *graph.output)}
    for at in reversed([at for at, value in enumerate(graph.value_info) if value.name in names]):
        del graph.value_info[at]


def _is_scalar(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return value.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape") and not tensor.shape.dim


def _widened(value: ValueInfoProto) -> str:
    value.type.tensor_type.shape.dim.add().dim_value = 1
    return f"{value.name}, a scalar, is served as a tensor of one value."


def _reshape(graph: GraphProto, source: str, result: str, sizes: list[int]) -> NodeProto:
    from onnx import TensorProto, helper

    shape = _unused(graph, f"{source}_to_{result}")
    graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [len(sizes)], sizes))
    return helper.make_node("Reshape", [source, shape], [result])


def _renamed(graph: GraphProto, name: str, *, produced: bool) -> str:
    """Return another name, which all nodes read instead of `name`, and which its node writes if it is produced."""
    new = _unused(graph, f"{name}_scalar")
    for node in all_nodes(graph):
        for names in (node.input, *([node.output] if produced else [])):
            for at, one in enumerate(names):
                if one == name:
                    names[at] = new
    return new


def _unused(graph: GraphProto, name: str) -> str:
    """Return the name, or one like it that no node, input or constant has."""
    taken = {one for node in all_nodes(graph) for one in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.initializer)}
    while name in taken:
        name += "_"
    return name
