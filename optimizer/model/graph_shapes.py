"""Infer types, sizes and small values of a graph's tensors for a given batch size.

ONNX's own inference of a whole graph fails if the exporter computes shapes at run time. Here a graph is viewed
node by node, and shape arithmetic is carried out as soon as its operands are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto


def type_name(kind: int) -> str:
    """Return `FLOAT` for 1, `tensor of type 99` for a number that ONNX does not know."""
    from onnx import TensorProto

    known = kind in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(kind)) if known else f"tensor of type {kind}"


def tensor_types(proto: ModelProto) -> dict[str, int]:
    """Return element types (onnx.TensorProto.DataType) by name, for tensors of the main graph whose type is known.

    Values are not read, so weights may be absent.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(without_weights(proto)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    types.update({value.name: value.type.tensor_type.elem_type for value in inferred.input})
    types.update({tensor.name: tensor.data_type for tensor in inferred.initializer})
    return {name: kind for name, kind in types.items() if kind}


def without_weights(proto: ModelProto) -> ModelProto:
    """Return a copy of the model without the values of its large constants, which are never copied on the way.

    Inference serializes a model twice and needs none of these values. Names of the model and the graph, which may
    not be UTF-8, are left out too.
    """
    import onnx

    outline = onnx.ModelProto(
        ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions
    )
    graph = outline.graph
    for field, value in proto.graph.ListFields():
        if field.name == "initializer":
            graph.initializer.extend(tensor if is_small(tensor) else _hollow(tensor) for tensor in value)
        elif field.name == "node":
            graph.node.extend(map(_light_constant, value))
        elif field.name in {"input", "output", "value_info", "sparse_initializer"}:
            getattr(graph, field.name).extend(value)
    return outline


def _hollow(tensor: TensorProto) -> TensorProto:
    from onnx import TensorProto

    return TensorProto(
        name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL
    )


def _light_constant(node: NodeProto) -> NodeProto:
    """Return the node, without its values if it is a constant with a large tensor."""
    from onnx import AttributeProto, NodeProto

    if node.op_type != "Constant" or len(node.attribute) != 1 or is_small(node.attribute[0].t):
        return node
    name, kind, tensor = node.attribute[0].name, node.attribute[0].type, _hollow(node.attribute[0].t)
    light = AttributeProto(name=name, type=kind, t=tensor)
    return NodeProto(name=node.name, op_type=node.op_type, output=node.output, attribute=[light])


Sizes = tuple[int | None, ...]
"""The sizes of a tensor; None for a size that is not known."""

SMALL_ELEMENTS = 1024
"""Constants with more than 1024 elements are weights, not shapes."""

_FOLDABLE = frozenset(
    """Abs Add And Cast Ceil Concat Constant ConstantOfShape Div Equal Expand Floor Gather Greater Identity Less
    Max Min Mod Mul Neg Not Or Range ReduceProd Reshape ScatterND Slice Squeeze Sub Transpose Unsqueeze
    Where""".split()  # noqa: SIM905
)


class ShapeView:
    """The view for one batch size. It starts with inputs and constants; `see` adds the nodes, in order."""

    def __init__(self, proto: ModelProto, inputs: Sequence[str], batch: int) -> None:
        self._opsets = {entry.domain: entry.version for entry in proto.opset_import}
        self._types: dict[str, TypeProto] = {}
        self._values: dict[str, NDArray[Any]] = {}
        for value in proto.graph.input:
            self._types[value.name] = kind = type(value.type).FromString(value.type.SerializeToString())
            if value.name in inputs:
                kind.tensor_type.shape.dim[0].dim_value = batch
        for tensor in proto.graph.initializer:
            self.learn(tensor)

    def learn(self, tensor: TensorProto) -> None:
        """Add a stored constant; its values too if they are few and lie in the file."""
        import onnx

        self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if is_small(tensor) and tensor.data_location != onnx.TensorProto.EXTERNAL:
            self._values[tensor.name] = onnx.numpy_helper.to_array(tensor)

    def sizes(self, name: str) -> Sizes | None:
        """Return the sizes of a tensor; None if not even their number is known."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the elements of a small tensor that does not depend on input values, None for any other."""
        return self._values.get(name)

    def see(self, node: NodeProto) -> None:
        """Add the results of `node`, in place of earlier ones of these names."""
        import onnx

        for name in node.output:
            self._types.pop(name, None)
            self._values.pop(name, None)
        for name, array in self._folded(node).items():
            self._values[name] = array
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            self._types[name] = onnx.helper.make_tensor_type_proto(kind, array.shape)
        if not set(node.output) <= self._values.keys():
            self._types |= self._inferred(node)

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        """Return ONNX's inference for this node; empty if it does not know the operator or the inputs."""
        import onnx

        names = {name for name in node.input if name}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(node.domain, 1), node.domain)
            return onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in names},
                {
                    name: onnx.numpy_helper.from_array(self._values[name], name)
                    for name in names & self._values.keys()
                },
                opset_imports=[onnx.helper.make_opsetid(*entry) for entry in self._opsets.items()],
            )
        except (KeyError, RuntimeError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError):
            return {}

    def _folded(self, node: NodeProto) -> dict[str, NDArray[Any]]:
        """Return those of the node's results that are small and follow from known values."""
        if node.domain not in {"", "ai.onnx"}:
            return {}
        if node.op_type == "Shape":
            return self._shape(node)
        if not self._can_fold(node):
            return {}
        from onnx.reference import ReferenceEvaluator

        feeds = {name: self._values[name] for name in node.input if name}
        try:
            results = ReferenceEvaluator(node, opsets=self._opsets).run(None, feeds)
        except Exception:  # each operator can fail in its own way; the value is then unknown
            return {}
        named = zip(node.output, results, strict=True)
        return {
            name: array for name, array in named if isinstance(array, np.ndarray) and array.size <= SMALL_ELEMENTS
        }

    def _shape(self, node: NodeProto) -> dict[str, NDArray[Any]]:
        sizes = self.sizes(node.input[0])
        if sizes is None:
            return {}
        wanted = {attribute.name: attribute.i for attribute in node.attribute}
        part = sizes[wanted.get("start", 0) : wanted.get("end")]
        return {} if None in part else {node.output[0]: np.array(part, dtype=np.int64)}

    def _can_fold(self, node: NodeProto) -> bool:
        if node.op_type not in _FOLDABLE or not all(name in self._values for name in node.input if name):
            return False
        if node.op_type == "Constant":
            return all(is_small(attribute.t) for attribute in node.attribute)
        operands = [self._values[name] for name in node.input if name]
        if node.op_type in {"ConstantOfShape", "Expand"}:
            return prod(int(size) for size in operands[-1].ravel()) <= SMALL_ELEMENTS
        if node.op_type == "Range":
            start, limit, step = (float(operand.item()) for operand in operands)
            return bool(step and abs((limit - start) / step) <= SMALL_ELEMENTS)
        return True


def is_small(tensor: TensorProto) -> bool:
    """True if a stored tensor may be a shape, an axis or an index."""
    return bool(prod(tensor.dims) <= SMALL_ELEMENTS)


def computed_from_inputs(graph: GraphProto) -> set[str]:
    """Return the names of all tensors that depend on the graph's inputs, these included."""
    computed = {value.name for value in graph.input}
    for node in graph.node:
        if computed.intersection(node.input):
            computed.update(name for name in node.output if name)
    return computed
