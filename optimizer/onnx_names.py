"""The names in a model: whether they can be read at all."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from optimizer.errors import ModelError
from optimizer.onnx_files import all_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

Name = str | bytes
"""protobuf gives a name as bytes if it is not UTF-8."""


def check_names(path: Path, proto: ModelProto) -> None:
    """Raises ModelError for a name that is not UTF-8: ONNX's libraries and ours take names for text."""
    for name in _names(proto):
        if isinstance(name, bytes):
            raise ModelError(
                f"{path} has the name {name[:100]!r}, which is not UTF-8.", "Export the model again, or rename it."
            )


def _names(proto: ModelProto) -> Iterator[Name]:
    """Every name that something refers to; descriptions are left out."""
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
