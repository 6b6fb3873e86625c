"""Convert a graph to half precision: rounded weights, and casts between half nodes and those that stay in fp32.

The precision (fp16 or bf16) is written into the graph, so TensorRT's strongly typed networks and ONNX Runtime read
the same file. Results keep their names when their types change, so that a variant can be compared with its model
inside too.

ONNX Runtime has almost no bf16 operators for CPUs, so the graph of a bf16 variant can also compute in fp32 and
round every result to bf16. Tensor cores multiply in bf16 and add in fp32, so this shows the variant's error before
any engine is built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optimizer.model.graph_shapes import tensor_types
from optimizer.model.weights import opset_of
from optimizer.precision.half_plan import (
    FLOAT,
    FLOAT_POSITIONS,
    READS_ANY_TYPE,
    Half,
    HalvingPlan,
    in_half,
    plan_halving,
    without_overflow,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfGraph:
    """A converted graph; `half_tensors` are the results in half, `kept` the nodes that stayed in fp32, and why."""

    proto: ModelProto
    half_tensors: frozenset[str]
    kept: Mapping[str, str]


def cast_to_half(
    proto: ModelProto, half: Half, *, half_io: bool = False, peaks: Mapping[str, float] | None = None
) -> HalfGraph:
    """Return `proto`, which is changed, with every node in `half` that tolerates it.

    Needs all weights in the proto. `peaks` are the largest magnitudes seen in its tensors. Inputs and outputs keep
    their types unless `half_io`.
    """
    graph, types = proto.graph, tensor_types(proto)
    weights = {name: without_overflow(weight, half) for name, weight in _take_weights(graph).items()}
    plan = plan_halving(
        graph, half, types=types, weights=weights, half_inputs=half_io, peaks=peaks or {}, opset=opset_of(proto)
    )
    io_names = [value.name for value in graph.output if types.get(value.name) == FLOAT]
    captured = captured_names(graph)
    caster = _Caster(
        half=half,
        plan=plan,
        types=types,
        weights=weights,
        plain={**dict.fromkeys(io_names, half_io), **dict.fromkeys(captured, False)},
    )
    caster.rewrite(graph, kept_weights={*captured, *io_names})
    for value in (*graph.input, *graph.output) if half_io else ():
        # An output may be nothing but a constant, which stays fp32.
        if value.type.tensor_type.elem_type == FLOAT and value.name not in weights:
            value.type.tensor_type.elem_type = half.onnx_type
    return HalfGraph(proto=proto, half_tensors=plan.half_tensors, kept=plan.kept)


@dataclass(slots=True, kw_only=True)
class _Caster:
    """The nodes and weights of the new graph. A tensor is computed in one type, its home, and cast on demand."""

    half: Half
    plan: HalvingPlan
    types: Mapping[str, int]
    weights: Mapping[str, TensorProto]
    plain: Mapping[str, bool]  # tensors whose plain name must be half (True) or fp32 (False); others: their home
    nodes: list[NodeProto] = field(default_factory=list)
    used: dict[str, TensorProto] = field(default_factory=dict)  # weights
    casts: set[str] = field(default_factory=set)

    def rewrite(self, graph: GraphProto, *, kept_weights: Collection[str]) -> None:
        for value in graph.input:
            self._settle(value.name)
        for node, low in zip(graph.node, self.plan.low, strict=True):
            self._add(node, low=low)
        for name in kept_weights:
            if name in self.weights:
                self.used[name] = self.weights[name]
        del graph.node[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.used.values())
        del graph.value_info[:]  # stale: types have changed

    def _add(self, node: NodeProto, *, low: bool) -> None:
        fixed = FLOAT_POSITIONS.get(node.op_type, set())
        for position, name in enumerate(node.input):
            if self.types.get(name) == FLOAT:
                any_type = node.op_type in READS_ANY_TYPE
                as_half = self._is_half(name) if any_type else low and position not in fixed
                node.input[position] = self._reading(name, as_half=as_half)
        outputs = [name for name in node.output if self.types.get(name) == FLOAT]
        for position, name in enumerate(node.output):
            if name in outputs:
                node.output[position] = self._called(name, as_half=self._is_half(name))
        self.nodes.append(node)
        for name in outputs:
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Cast a new tensor at once if its plain name belongs to the other type."""
        if name in self.plain and self.plain[name] != self._is_half(name):
            self._reading(name, as_half=self.plain[name])

    def _is_half(self, name: str) -> bool:
        return name in self.plan.half_tensors

    def _called(self, name: str, *, as_half: bool) -> str:
        if as_half == self.plain.get(name, self._is_half(name)):
            return name
        return f"{name}__{self.half.name if as_half else 'fp32'}"

    def _reading(self, name: str, *, as_half: bool) -> str:
        """Return the name under which the tensor can be read in the wanted type, cast if it has to be."""
        called = self._called(name, as_half=as_half)
        if name in self.weights:
            if called not in self.used:
                self.used[called] = (
                    in_half(self.weights[name], self.half, called) if as_half else self.weights[name]
                )
        elif as_half != self._is_half(name) and called not in self.casts:
            self.casts.add(called)
            self.nodes.append(self._cast(self._called(name, as_half=not as_half), called, as_half=as_half))
        return called

    def _cast(self, source: str, target: str, *, as_half: bool) -> NodeProto:
        from onnx import helper

        to = self.half.onnx_type if as_half else FLOAT
        return helper.make_node("Cast", [source], [target], name=f"{target}/cast", to=to)


def _take_weights(graph: GraphProto) -> dict[str, TensorProto]:
    """Remove and return all fp32 constants: initializers, and results of Constant and ConstantOfShape nodes."""
    weights = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == FLOAT}
    shapes = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type != FLOAT}
    constants = [(node, _float_constant(node, shapes)) for node in graph.node]
    weights.update({node.output[0]: tensor for node, tensor in constants if tensor is not None})
    others = [tensor for tensor in graph.initializer if tensor.data_type != FLOAT]
    inputs = [value for value in graph.input if value.name not in weights]  # old files list constants there too
    nodes = [node for node, tensor in constants if tensor is None]
    del graph.initializer[:], graph.node[:], graph.input[:]
    graph.initializer.extend(others)
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    return weights


def _float_constant(node: NodeProto, shapes: Mapping[str, TensorProto]) -> TensorProto | None:
    """Return the node's result if it is fp32 and does not depend on the inputs, None for any other."""
    from onnx import helper, numpy_helper

    if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
        value = numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, np.float32)
        sizes = tuple(numpy_helper.to_array(shapes[node.input[0]]))
        filled = np.full(sizes, value[0]) if value.dtype == np.float32 else None
        return None if filled is None else numpy_helper.from_array(filled, node.output[0])
    if node.op_type != "Constant":
        return None
    attribute = node.attribute[0]
    if attribute.name in {"value_float", "value_floats"}:
        return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.float32), node.output[0])
    if attribute.name == "value" and attribute.t.data_type == FLOAT:
        return numpy_helper.from_array(numpy_helper.to_array(attribute.t), node.output[0])
    return None


def captured_names(graph: GraphProto) -> set[str]:
    """Return the names that nodes inside subgraphs (If, Loop, Scan) read.

    Names that the subgraphs compute themselves are among them, which does no harm.
    """
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    found: set[str] = set()
    for inner in (inner for attribute in attributes for inner in (attribute.g, *attribute.graphs)):
        found.update(name for node in inner.node for name in node.input)
        found.update(value.name for value in inner.output)
        found |= captured_names(inner)
    return found


def rounding_in_fp32(graph: HalfGraph, half: Half) -> None:
    """Change the proto of `graph` so that it computes in fp32 and rounds every half result.

    Its inputs and outputs must be fp32.
    """
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
