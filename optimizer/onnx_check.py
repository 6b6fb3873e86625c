"""What ONNX and ONNX Runtime object to in a model, in words a user can act on."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadgen.scratch import scratch_folder
from optimizer.errors import ModelError, UnsupportedModel
from optimizer.onnx_files import external_files, hollow, load_proto, write_model
from optimizer.onnx_run import RunFailed, check_loads
from optimizer.tensor_types import type_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


def check_valid(path: Path, proto: ModelProto) -> None:
    """ONNX's own checks, by path so that models beyond 2 GiB pass too. Raises ModelError or UnsupportedModel."""
    import onnx

    try:
        with _checkable(path, proto) as file:
            onnx.checker.check_model(str(file))
    except onnx.checker.ValidationError as error:
        message = " ".join(str(error).split())
        unknown = re.search(r"No Op registered for (\S+)", message)
        if unknown:
            raise _operator_error(path, proto, unknown.group(1), message) from error
        shapeless = [value.name for value in (*proto.graph.input, *proto.graph.output) if not _has_shape(value)]
        if shapeless:
            raise UnsupportedModel(
                f"{path} does not say the shape of {', '.join(shapeless)}.",
                "Export it with shapes (sizes that vary may be names), or let ONNX fill in those of the outputs: "
                "onnx.shape_inference.infer_shapes_path(PATH, NEW_PATH)",
            ) from error
        raise ModelError(
            f"{path} is not a valid ONNX model: {shortened(message)}",
            "Export it again, with a current version of the exporter.",
        ) from error


@contextmanager
def _checkable(path: Path, proto: ModelProto) -> Iterator[Path]:
    """A file that ONNX's checker takes: it refuses weights with several hard links, which it does not read.

    Package managers link what they install, and tools that version data link what they check out.
    """
    external = external_files(proto, path.parent)
    if all(file.stat().st_nlink == 1 for file in external.values()):
        yield path
        return
    with scratch_folder("check") as folder:
        stand_in = folder / "model.onnx"
        write_model(load_proto(path), stand_in, external, put=hollow)
        yield stand_in


def _has_shape(value: ValueInfoProto) -> bool:
    return bool(value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.HasField("shape"))


def check_runs(path: Path, proto: ModelProto) -> None:
    """Whether ONNX Runtime can build a session. Raises UnsupportedModel, naming the operator and its node."""
    try:
        check_loads(path)
    except RunFailed as error:
        reason = " ".join(error.reason.split())
        operator = re.search(
            r"implementation for (\S+?)\(-?\d+\)|error: (\S+?)\(-?\d+\) is not a registered", reason
        )
        if operator:
            raise _operator_error(path, proto, operator.group(1) or operator.group(2), reason) from error
        raise UnsupportedModel(
            f"ONNX Runtime cannot load {path}: {shortened(plain(reason))}",
            "Export it with another opset (13 to 20 are safe), or without custom operators.",
        ) from error


def _operator_error(path: Path, proto: ModelProto, operator: str, message: str) -> UnsupportedModel:
    """`operator` as ONNX Runtime writes it: `Erf`, or `domain:Name`."""
    named = re.search(r"node with name '([^']*)'", message)
    kind = operator.rpartition(":")[2]
    nodes = [node for node in _all_nodes(proto.graph) if node.op_type == kind]
    node = named.group(1) if named else next((node.name or f"->{node.output[0]}" for node in nodes), "?")
    types = _input_types(proto.graph, nodes, node)
    return UnsupportedModel(
        f"ONNX Runtime has no implementation of operator {operator}{types} (node {node!r} of {path}).",
        "Export the model with standard operators and types, for example in opset 17 and fp32.",
    )


def _input_types(graph: GraphProto, nodes: list[NodeProto], name: str) -> str:
    """` for bfloat16` where the types of the node's inputs are known: they are often what is unsupported."""
    from onnx import TensorProto

    known = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    node = next((node for node in nodes if node.name == name), None)
    kinds = {known[source] for source in node.input if known.get(source)} if node is not None else set()
    names = sorted(type_name(kind).lower() for kind in kinds if kind != TensorProto.FLOAT)
    return f" for {', '.join(names)}" if names else ""


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(subgraph)


def plain(reason: str) -> str:
    """ONNX Runtime's message on one line, without its error numbers, source lines and C++ signatures."""
    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(reason.split()))
    reason = re.sub(r"^Load model from .*? failed: ?", "", reason)
    return re.sub(r"/\S+\.(?:cc|h):\d+ .*?\)(?: const)? ", "", reason)


def shortened(message: str, longest: int = 300) -> str:
    """The start of a message that may be long."""
    return message if len(message) <= longest else f"{message[:longest]}..."
