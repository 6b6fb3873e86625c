"""Check a model with ONNX and ONNX Runtime, and report problems in words that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.processes import scratch_folder
from optimizer.errors import ModelError, RunFailed, UnsupportedModel
from optimizer.model.files import all_tensors, external_files, hollow, write_model
from optimizer.model.graph_shapes import type_name
from optimizer.model.ort_child import run_model

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


Name = str | bytes
"""A name in a model; protobuf returns it as bytes if it is not UTF-8."""


def check_names(path: Path, proto: ModelProto) -> None:
    """Check that all names are UTF-8: libraries read names as text. Raises ModelError."""
    for name in _names(proto):
        if isinstance(name, bytes):
            raise ModelError(
                f"{path} has the name {name[:100]!r}, which is not UTF-8.", "Export the model again, or rename it."
            )


def _names(proto: ModelProto) -> Iterator[Name]:
    """Yield every name that something refers to; descriptions are left out."""
    yield from (entry.domain for entry in proto.opset_import)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from (entry.domain for entry in function.opset_import)
        yield from _names_of_nodes(function.node)
    yield from _names_of_graph(proto.graph)
    for tensor in all_tensors(proto):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


def _names_of_graph(graph: GraphProto) -> Iterator[Name]:
    for value in chain(graph.input, graph.output, graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from _names_of_nodes(graph.node)


def _names_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[Name]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            for graph in (attribute.g, *attribute.graphs):
                yield from _names_of_graph(graph)


def check_valid(path: Path, proto: ModelProto) -> None:
    """Run ONNX's checks, by path so that models beyond 2 GiB pass too. Raises ModelError or UnsupportedModel."""
    import onnx

    try:
        with _checkable(path, proto) as file:
            onnx.checker.check_model(str(file))
    except onnx.checker.ValidationError as error:
        message = " ".join(str(error).split())
        unknown = re.search(r"No Op registered for (\S+)", message)
        if unknown:
            raise _operator_error(path, proto, unknown.group(1), message) from error
        tensors = [one for one in (*proto.graph.input, *proto.graph.output) if one.type.HasField("tensor_type")]
        shapeless = [value.name for value in tensors if not value.type.tensor_type.HasField("shape")]
        if shapeless:
            raise UnsupportedModel(
                f"{path} does not give the shape of {', '.join(shapeless)}.",
                "Export it with shapes (sizes that vary may be names), or let ONNX fill in those of the outputs: "
                "onnx.shape_inference.infer_shapes_path(PATH, NEW_PATH)",
            ) from error
        raise ModelError(
            f"{path} is not a valid ONNX model: {shortened(message)}",
            "Export it again, with a current version of the exporter.",
        ) from error


@contextmanager
def _checkable(path: Path, proto: ModelProto) -> Iterator[Path]:
    """Yield a path that ONNX's checker accepts: it refuses weights with several hard links, though it reads none.

    Package managers link the files that they install, and tools that version data link those that they check out.
    """
    external = external_files(proto, path.parent)
    if all(file.stat().st_nlink == 1 for file in external.values()):
        yield path
        return
    with scratch_folder("check") as folder:
        stand_in = folder / "model.onnx"
        write_model(deepcopy(proto), stand_in, external, put=hollow)
        yield stand_in


def check_runs(path: Path, proto: ModelProto) -> None:
    """Check that ONNX Runtime can build a session. Raises UnsupportedModel, naming the operator and its node."""
    try:
        run_model(path, [])
    except RunFailed as error:
        reason = " ".join(error.reason.split())
        operator = re.search(
            r"implementation for (\S+?)\(-?\d+\)|error: (\S+?)\(-?\d+\) is not a registered", reason
        )
        if operator:
            raise _operator_error(path, proto, operator.group(1) or operator.group(2), reason) from error
        locale = re.search(r"locale with name:((\w+)\.([\w-]+))", reason)  # of texts in lower case
        if locale:
            name, language, encoding = locale.groups()
            raise UnsupportedModel(
                f"{path} needs the locale {name}, which this machine does not have.",
                f"Install it (apt-get install locales; localedef -i {language} -f {encoding} {name}), "
                "also where the model will be served.",
            ) from error
        raise UnsupportedModel(
            f"ONNX Runtime cannot load {path}: {shortened(plain(reason))}",
            "Export it with another opset (13 to 20 are safe), or without custom operators.",
        ) from error


def _operator_error(path: Path, proto: ModelProto, operator: str, message: str) -> UnsupportedModel:
    """Return the error for `operator` as ONNX Runtime writes it: `Erf`, or `domain:Name`."""
    named = re.search(r"node with name '([^']*)'", message)
    kind = operator.rpartition(":")[2]
    nodes = [node for node in all_nodes(proto.graph) if node.op_type == kind]
    node = named.group(1) if named else next((node.name or f"->{node.output[0]}" for node in nodes), "?")
    types = _input_types(proto.graph, nodes, node)
    return UnsupportedModel(
        f"ONNX Runtime has no implementation of operator {operator}{types} (node {node!r} of {path}).",
        "Export the model with standard operators and types, for example in opset 17 and fp32.",
    )


def _input_types(graph: GraphProto, nodes: list[NodeProto], name: str) -> str:
    """Return text such as ` for bfloat16` for inputs of the node that are not fp32; "" if none is known.

    These types are often the unsupported part.
    """
    from onnx import TensorProto

    known = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    node = next((node for node in nodes if node.name == name), None)
    kinds = {known[source] for source in node.input if known.get(source)} if node is not None else set()
    names = sorted(type_name(kind).lower() for kind in kinds if kind != TensorProto.FLOAT)
    return f" for {', '.join(names)}" if names else ""


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and, after each, those of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from all_nodes(subgraph)


def plain(reason: str) -> str:
    """Return ONNX Runtime's message on one line, without its error numbers, source lines and C++ signatures."""
    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(reason.split()))
    reason = re.sub(r"^Load model from .*? failed: ?", "", reason)
    return re.sub(r"/\S+\.(?:cc|h):\d+ .*?\)(?: const)? ", "", reason)


def shortened(message: str, longest: int = 300) -> str:
    """Return the start of a message that may be long."""
    return message if len(message) <= longest else f"{message[:longest]}..."
