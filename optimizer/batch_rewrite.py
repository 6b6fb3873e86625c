"""Graph surgery: a batch fixed at 1 becomes a dynamic one.

Shapes are inferred twice, for a batch of 1 and for a larger one. Where a tensor grows with the batch and what is
computed from it does not, the node in between has the 1 baked in, and is freed. Inference is then repeated,
because what comes after could not be seen before. None of this proves anything: `optimizer.batch_proof` does.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

Sizes = tuple[int | None, ...]
Shapes = dict[str, Sizes]
"""Sizes by tensor name, None for a size that inference does not know."""

BATCH = "batch"
SEVERAL = 7
"""The larger batch: a size that models seldom have for another reason."""

SMALL_ELEMENTS = 1024
"""Larger constants cannot be shapes; inference does without their values."""

MOST_ROUNDS = 500


def free_batch(proto: ModelProto, inputs: Sequence[str]) -> str:
    """Give the leading dimension of `inputs` and of all outputs a name, and free what has the 1 baked in.

    Changes `proto`, which must not list constants among its inputs and whose small constants must lie in the
    file. Returns what was rewritten, in words ("33 Reshape"), or "" where naming the axis was enough.
    """
    one = inferred_shapes(proto, inputs, 1)
    rewritten: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        surgeon = _Surgeon(proto, one, inferred_shapes(proto, inputs, SEVERAL), batch_of=inputs[0])
        freed = surgeon.operate()
        if not freed:
            break
        rewritten += freed
        one = inferred_shapes(proto, inputs, 1)
    for value in (*(value for value in proto.graph.input if value.name in inputs), *proto.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del proto.graph.value_info[:]  # stale now, and inferred anew by whoever needs it
    return ", ".join(f"{count} {kind}" for kind, count in sorted(rewritten.items()))


def inferred_shapes(proto: ModelProto, inputs: Sequence[str], batch: int) -> Shapes:
    """The sizes of every tensor that ONNX can infer, for a batch of the given size."""
    import onnx

    skeleton = _skeleton(proto)
    for value in skeleton.graph.input:
        if value.name in inputs:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
    shapes: Shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    return shapes


def _skeleton(proto: ModelProto) -> ModelProto:
    """The model without its weights and without any claim about shapes but those of its inputs."""
    import onnx

    skeleton = onnx.ModelProto(
        ir_version=max(proto.ir_version, 4), opset_import=proto.opset_import, functions=proto.functions
    )
    graph = skeleton.graph
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    for tensor in proto.graph.initializer:
        if is_small(tensor):
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for value in proto.graph.output:
        graph.output.add(name=value.name).type.tensor_type.elem_type = value.type.tensor_type.elem_type
    return skeleton


def computed_from_inputs(graph: GraphProto) -> set[str]:
    """The names of all tensors that depend on the graph's inputs, these included."""
    computed = {value.name for value in graph.input}
    for node in graph.node:
        if computed.intersection(node.input):
            computed.update(name for name in node.output if name)
    return computed


def is_small(tensor: TensorProto) -> bool:
    """Whether a constant may be a shape, an axis or an index."""
    return bool(prod(tensor.dims) <= SMALL_ELEMENTS)


class _Surgeon:
    """One round: frees every node whose inputs are already right and whose outputs are not."""

    def __init__(self, proto: ModelProto, one: Shapes, several: Shapes, *, batch_of: str) -> None:
        self.graph: GraphProto = proto.graph
        self.one = one
        self.several = several
        self.batch_of = batch_of
        self.taken = {name for node in self.graph.node for name in (*node.input, *node.output)}
        self.computed = computed_from_inputs(self.graph)

    def operate(self) -> Counter[str]:
        """Free what can be freed in this round; returns the operators freed."""
        operations: dict[str, Callable[[NodeProto], list[NodeProto] | None]] = {
            "Reshape": self._free_reshape,
            "Resize": self._free_resize,
            "Concat": self._free_concat,
        }
        freed: Counter[str] = Counter()
        nodes: list[NodeProto] = []
        for node in self.graph.node:
            operation = operations.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
            before = operation(node) if operation is not None else None
            if before is not None:
                freed[node.op_type] += 1
            nodes += [*(before or ()), node]
        if freed:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        return freed

    def _axis(self, name: str) -> int | None:
        """The axis along which a tensor grows with the batch, None where it does not or nobody knows."""
        small, large = self.one.get(name), self.several.get(name)
        if small is None or large is None or len(small) != len(large):
            return None
        grown = [axis for axis, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
        if len(grown) != 1:
            return None
        before, after = small[grown[0]], large[grown[0]]
        return grown[0] if before and after == before * SEVERAL else None

    def _free_reshape(self, node: NodeProto) -> list[NodeProto] | None:
        """A target that leaves the size of the batch's axis to be computed."""
        axis = self._axis(node.input[0])
        sizes = self.one.get(node.output[0])
        if axis is None or not sizes:
            return None
        data = self.one[node.input[0]]
        to = _same_place(data, axis, sizes)
        if to is None or self._axis(node.output[0]) == to:
            return None
        target = self._target(node, sizes, to)
        if target is None:
            return None
        node.input[1] = self._constant(f"{node.output[0]}_shape", target)
        return []

    def _target(self, node: NodeProto, sizes: Sizes, to: int) -> list[int] | None:
        if all(size is not None for size in sizes):
            return [size if axis != to and size is not None else -1 for axis, size in enumerate(sizes)]
        written = self._value(node.input[1])  # some sizes vary: only what is written down may be kept
        if written is None or -1 in written:
            return None
        return [*written[:to], -1, *written[to + 1 :]]

    def _free_resize(self, node: NodeProto) -> list[NodeProto] | None:
        """Output sizes whose first one is the batch at hand."""
        if len(node.input) < 4 or self._axis(node.input[0]) != 0 or self._axis(node.output[0]) == 0:
            return None
        sizes = self._value(node.input[3])
        if sizes is None or self.one[node.input[0]][0] != 1 or sizes[0] != 1:
            return None
        nodes, node.input[3] = self._shape_with_batch(f"{node.output[0]}_sizes", sizes[1:])
        return nodes

    def _free_concat(self, node: NodeProto) -> list[NodeProto] | None:
        """Constants, such as a class token, repeated for every sample before they are joined to it."""
        axes = {name: self._axis(name) for name in node.input}
        along = next(attribute.i for attribute in node.attribute if attribute.name == "axis")
        lone = [index for index, name in enumerate(node.input) if self._is_constant_one(name)]
        rank = len(self.one.get(node.input[0], ()))
        growing = [name for name in node.input if axes[name] == 0 and self.one[name][0] == 1]
        if not lone or not growing or len(lone) + len(growing) != len(node.input) or along in {0, -rank}:
            return None
        from onnx import helper

        added: list[NodeProto] = []
        for index in lone:
            wanted = self._unused(f"{node.output[0]}_part{index}")
            nodes, shape = self._shape_with_batch(f"{wanted}_shape", [1] * (rank - 1))
            added += [*nodes, helper.make_node("Expand", [node.input[index], shape], [wanted])]
            node.input[index] = wanted
        return added

    def _is_constant_one(self, name: str) -> bool:
        """Whether the tensor has a leading 1 and does not depend on the model's inputs."""
        sizes = self.one.get(name)
        return bool(sizes) and sizes is not None and sizes[0] == 1 and name not in self.computed

    def _shape_with_batch(self, name: str, rest: Sequence[int]) -> tuple[list[NodeProto], str]:
        """Nodes that compute (batch, *rest), and the name of their result."""
        from onnx import helper

        whole, batch, result = (self._unused(f"{name}{part}") for part in ("_input", "_batch", ""))
        first = self._constant(f"{name}_first", [0])
        others = self._constant(f"{name}_rest", rest)
        nodes = [
            helper.make_node("Shape", [self.batch_of], [whole]),
            helper.make_node("Gather", [whole, first], [batch], axis=0),
            helper.make_node("Concat", [batch, others], [result], axis=0),
        ]
        return nodes, result

    def _value(self, name: str) -> list[int] | None:
        """The elements of a constant, None where `name` is computed."""
        from onnx import numpy_helper

        for tensor in self.graph.initializer:
            if tensor.name == name:
                return [int(element) for element in numpy_helper.to_array(tensor).ravel()]
        for node in self.graph.node:
            if name in node.output and node.op_type == "Constant":
                tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
                return [int(element) for tensor in tensors for element in numpy_helper.to_array(tensor).ravel()]
        return None

    def _constant(self, name: str, values: Sequence[int]) -> str:
        from onnx import TensorProto, helper

        unused = self._unused(name)
        self.graph.initializer.append(helper.make_tensor(unused, TensorProto.INT64, [len(values)], values))
        return unused

    def _unused(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _same_place(data: Sizes, axis: int, sizes: Sizes) -> int | None:
    """Where the batch, at `axis` of `data`, belongs in a reshaped tensor of these sizes.

    Reshaping keeps the order of elements, so as many of them must lie before one step of the axis as did.
    """
    before = _product(data[:axis])
    for place in range(len(sizes)):
        if before is not None and _product(sizes[:place]) == before:
            return place
    return None


def _product(sizes: Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return prod(known) if len(known) == len(sizes) else None
