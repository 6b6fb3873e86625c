"""What is known about a graph's tensors when the batch has a given size: types, sizes, and small values.

ONNX's own inference of a whole graph loses its way where exporters compute shapes at run time. Here a graph is
seen node by node, and shape arithmetic is carried out as soon as its operands are known.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

Sizes = tuple[int | None, ...]
"""None for a size that is not known."""

SMALL_ELEMENTS = 1024
"""Larger constants are weights, not shapes."""

_FOLDABLE = frozenset(
    """Abs Add And Cast Ceil Concat Constant ConstantOfShape Div Equal Expand Floor Gather Greater Identity Less
    Max Min Mod Mul Neg Not Or Range ReduceProd Reshape ScatterND Slice Squeeze Sub Transpose Unsqueeze
    Where""".split()  # noqa: SIM905
)


class ShapeView:
    """The view for one batch size. Starts with inputs and constants; `see` goes through the nodes, in order."""

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
        """A stored constant; its values too if they are few and lie in the file."""
        import onnx

        self._types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if is_small(tensor) and tensor.data_location != onnx.TensorProto.EXTERNAL:
            self._values[tensor.name] = onnx.numpy_helper.to_array(tensor)

    def sizes(self, name: str) -> Sizes | None:
        """The sizes of a tensor; None where not even their number is known."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)

    def value(self, name: str) -> NDArray[Any] | None:
        """The elements of a small tensor that does not depend on what is in the inputs, None for any other."""
        return self._values.get(name)

    def see(self, node: NodeProto) -> None:
        """Learn what `node` gives, replacing what was known before."""
        for name in node.output:
            self._types.pop(name, None)
            self._values.pop(name, None)
        for name, array in self._folded(node).items():
            self._remember(name, array)
        if not set(node.output) <= self._values.keys():
            self._types |= self._inferred(node)

    def _remember(self, name: str, array: NDArray[Any]) -> None:
        import onnx

        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        self._types[name] = onnx.helper.make_tensor_type_proto(kind, array.shape)
        self._values[name] = array

    def _inferred(self, node: NodeProto) -> dict[str, TypeProto]:
        """ONNX's inference for this node; nothing where it does not know the operator or the inputs."""
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
        """The node's results where they are small and follow from what is known."""
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
        except Exception:  # an evaluator has as many ways to fail as there are operators; unknown is a good answer
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
        known = [size for size in sizes[wanted.get("start", 0) : wanted.get("end")] if size is not None]
        complete = len(known) == len(sizes[wanted.get("start", 0) : wanted.get("end")])
        return {node.output[0]: np.array(known, dtype=np.int64)} if complete else {}

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
    """Whether a stored tensor may be a shape, an axis or an index."""
    return bool(prod(tensor.dims) <= SMALL_ELEMENTS)


def computed_from_inputs(graph: GraphProto) -> set[str]:
    """The names of all tensors that depend on the graph's inputs, these included."""
    computed = {value.name for value in graph.input}
    for node in graph.node:
        if computed.intersection(node.input):
            computed.update(name for name in node.output if name)
    return computed
