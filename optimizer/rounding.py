"""A graph that computes in fp32 what a bf16 one would give: it rounds every result to bf16 and runs anywhere.

ONNX Runtime has almost no bf16 operators for CPUs. Tensor cores multiply in bf16 and add in fp32, so rounding what
goes from node to node shows the variant's error before any engine is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizer.delicate import FLOAT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import NodeProto

    from optimizer.casting import HalfGraph
    from optimizer.half import Half


def rounding_in_fp32(graph: HalfGraph, half: Half) -> None:
    """Change the proto of `graph`, whose inputs and outputs are fp32, into its stand-in."""
    from onnx import helper, numpy_helper

    proto = graph.proto
    for tensor in proto.graph.initializer:
        if tensor.data_type == half.onnx_type:
            values = numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    def rounded(node: NodeProto, position: int) -> Iterator[NodeProto]:
        name = node.output[position]
        node.output[position] = f"{name}__exact"
        bits = f"{name}__{half.name}_bits"
        yield helper.make_node("Cast", [f"{name}__exact"], [bits], name=f"{name}/round", to=half.onnx_type)
        yield helper.make_node("Cast", [bits], [name], name=f"{name}/widen", to=FLOAT)

    nodes = []
    for node in proto.graph.node:
        nodes.append(node)
        to_half = node.op_type == "Cast" and helper.get_node_attr_value(node, "to") == half.onnx_type
        if to_half:
            node.attribute[0].i = FLOAT
        for position, name in enumerate(node.output):
            if to_half or name in graph.half_tensors:
                nodes.extend(rounded(node, position))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
