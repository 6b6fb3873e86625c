"""Rewrite a graph: a batch of a fixed size becomes a dynamic one.

The graph is viewed twice at once, for that batch and for a larger one. If a tensor grows with the batch and the
result computed from it does not, the node in between has the size baked in, and is freed on the spot, so that
later nodes are seen as they will be. None of this proves anything: `optimizer.batching.proof` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from optimizer.model.graph_shapes import ShapeView, Sizes, computed_from_inputs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


BATCH = "batch"
SEVERAL = 7
"""The larger batch is 7 times as large, which tensors seldom are for another reason."""


def free_batch(proto: ModelProto, inputs: Sequence[str], rows: int = 1) -> str:
    """Name the leading dimension of `inputs` and of all outputs, and free the nodes that have its `rows` baked in.

    Changes `proto`, which must not list constants among its inputs and whose small constants must lie in the file.
    Returns the rewritten operators in words ("33 Reshape"), or "" if naming the axis was enough.
    """
    freed = _Surgeon(proto, inputs, rows).operate()
    for value in (*(value for value in proto.graph.input if value.name in inputs), *proto.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del proto.graph.value_info[:]  # stale now; inferred anew if needed
    return ", ".join(f"{count} {kind}" for kind, count in sorted(freed.items()))


class _Surgeon:
    """One pass over the nodes, in order: the inputs of a node are correct when the pass reaches it."""

    def __init__(self, proto: ModelProto, inputs: Sequence[str], rows: int) -> None:
        self.graph = proto.graph
        self.rows = rows
        self.one = ShapeView(proto, inputs, rows)
        self.several = ShapeView(proto, inputs, SEVERAL * rows)
        self.batch_of = inputs[0]
        self.computed = computed_from_inputs(proto.graph)
        self.taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
        self.outer: dict[str, int] = {}  # steps of the grown axis that lie outside the batch, if not one

    def operate(self) -> Counter[str]:
        """Free all nodes that can be freed; return the number freed per operator."""
        operations: dict[str, Callable[[NodeProto], list[NodeProto] | None]] = {
            "Reshape": self._free_reshape,
            "Resize": self._free_resize,
            "Concat": self._free_concat,
        }
        freed: Counter[str] = Counter()
        nodes: list[NodeProto] = []
        for node in self.graph.node:
            self._see(node)
            self._inherit(node)
            operation = operations.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
            before = operation(node) if operation is not None else None
            if before is not None:
                freed[node.op_type] += 1
                for changed in (*before, node):
                    self._see(changed)
            nodes += [*(before or ()), node]
        if freed:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        return freed

    def _see(self, node: NodeProto) -> None:
        self.one.see(node)
        self.several.see(node)

    def _axis(self, name: str) -> int | None:
        """Return the axis along which a tensor grows with the batch; None if there is none or it is not known."""
        small, large = self.one.sizes(name), self.several.sizes(name)
        if small is None or large is None or len(small) != len(large):
            return None
        grown = [axis for axis, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
        if len(grown) != 1:
            return None
        before, after = small[grown[0]], large[grown[0]]
        return grown[0] if before and after == before * SEVERAL else None

    def _inherit(self, node: NodeProto) -> None:
        """Pass on the batch's place within its axis; `_free_reshape` corrects the nodes that change it."""
        for name in node.input:
            axis = self._axis(name)
            if axis is None or self.outer.get(name, 1) == 1:
                continue
            for result in node.output:
                to = self._axis(result)
                if to is not None and self._sizes(result)[to] == self._sizes(name)[axis]:
                    self.outer[result] = self.outer[name]

    def _sizes(self, name: str) -> Sizes:
        """Return the sizes at the file's own batch; () if they are not known."""
        return self.one.sizes(name) or ()

    def _free_reshape(self, node: NodeProto) -> list[NodeProto] | None:
        """Replace the target by one that leaves the size of the batch's axis to be computed.

        Returns the nodes to insert before this one, None if it is not changed.
        """
        data, result = node.input[0], node.output[0]
        axis, sizes = self._axis(data), self._sizes(result)
        if axis is None or not sizes:
            return None
        places = places_after_reshape(self._sizes(data), axis, self.outer.get(data, 1), sizes, self.rows)
        now = next((place for place in places if place[0] == self._axis(result)), None)
        if now is not None or not places:
            self.outer[result] = now[1] if now is not None else 1
            return None
        to, self.outer[result] = places[0]
        target = self._target(node, sizes, to)
        if target is None:
            return None
        node.input[1] = self._constant(f"{result}_shape", target)
        return []

    def _target(self, node: NodeProto, sizes: Sizes, to: int) -> list[int] | None:
        if all(size is not None for size in sizes):
            return [size if axis != to and size is not None else -1 for axis, size in enumerate(sizes)]
        written = self._constant_value(node.input[1])  # some sizes vary: only written ones may be kept
        if written is None or -1 in written:
            return None
        return [*written[:to], -1, *written[to + 1 :]]

    def _free_resize(self, node: NodeProto) -> list[NodeProto] | None:
        """Replace output sizes that begin with the fixed batch by computed ones that begin with the actual one."""
        if len(node.input) < 4 or self._axis(node.input[0]) != 0 or self._axis(node.output[0]) == 0:
            return None
        sizes = self._constant_value(node.input[3])
        if sizes is None or self._sizes(node.input[0])[0] != self.rows or sizes[0] != self.rows:
            return None
        nodes, node.input[3] = self._shape_with_batch(f"{node.output[0]}_sizes", sizes[1:])
        return nodes

    def _free_concat(self, node: NodeProto) -> list[NodeProto] | None:
        """Repeat constants, such as a class token, for every sample before they are joined to it."""
        lone = [index for index, name in enumerate(node.input) if self._is_constant(name)]
        growing = [name for name in node.input if self._axis(name) == 0 and self._sizes(name)[0] == self.rows]
        rank = len(self._sizes(growing[0])) if growing else 0
        along = next(attribute.i for attribute in node.attribute if attribute.name == "axis")
        if not lone or not growing or len(lone) + len(growing) != len(node.input) or along in {0, -rank}:
            return None
        from onnx import helper

        added: list[NodeProto] = []
        for index in lone:
            repeated = self._unused(f"{node.output[0]}_part{index}")
            nodes, shape = self._shape_with_batch(f"{repeated}_shape", [1] * (rank - 1))
            row, first = self._unused(f"{repeated}_row"), self._constant(f"{repeated}_first", [0])
            added += [*nodes, helper.make_node("Gather", [node.input[index], first], [row], axis=0)]
            added.append(helper.make_node("Expand", [row, shape], [repeated]))
            node.input[index] = repeated
        return added

    def _is_constant(self, name: str) -> bool:
        """True if the tensor does not depend on the model's inputs and may have one row per sample."""
        return name not in self.computed and self._sizes(name)[:1] in {(), (self.rows,), (None,)}

    def _constant_value(self, name: str) -> list[int] | None:
        """Return the elements of a tensor that is the same for every batch, None if it is not known or grows."""
        one, several = self.one.value(name), self.several.value(name)
        if one is None or several is None or one.tolist() != several.tolist():
            return None
        return [int(element) for element in one.ravel()]

    def _shape_with_batch(self, name: str, rest: Sequence[int]) -> tuple[list[NodeProto], str]:
        """Return nodes that compute (batch, *rest), and the name of their result."""
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

    def _constant(self, name: str, values: Sequence[int]) -> str:
        from onnx import TensorProto, helper

        tensor = helper.make_tensor(self._unused(name), TensorProto.INT64, [len(values)], values)
        self.graph.initializer.append(tensor)
        self.one.learn(tensor)
        self.several.learn(tensor)
        return tensor.name

    def _unused(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def places_after_reshape(data: Sizes, axis: int, outer: int, sizes: Sizes, rows: int = 1) -> list[tuple[int, int]]:
    """Return the places that the batch may have after a reshape, the likeliest first: (axis, steps outside it).

    In `data` the batch is at `axis`, with `outer` steps of that axis outside it: for an axis that joins a sequence
    and the batch inside it, `outer` is the sequence's length. `sizes` are those of the result. Reshaping keeps the
    order of elements, so as many of them must lie before one step of the batch as did. Between two axes the batch
    may join either, and only later nodes can show which one; the last axis, the features, is the least likely to
    grow, because weights are made for its size. Several `rows` have one place, if any.
    """
    before = _product((*data[:axis], outer))
    if before is None:
        return []
    for place, size in enumerate(sizes):
        done = _product(sizes[:place])
        if done is None or size is None:
            return [(place, 1)] if done == before else []
        if size % rows:
            continue  # the batch does not lie in this axis
        if done == before:
            right, left = (place, 1), (place - 1, sizes[place - 1] or 1)
            if size == 1 or place == 0 or rows > 1:
                return [right]
            return [left, right] if place == len(sizes) - 1 else [right, left]
        if done < before < done * size and before % done == 0:
            return [(place, before // done)]
    return []


def _product(sizes: Sizes) -> int | None:
    known = [size for size in sizes if size is not None]
    return prod(known) if len(known) == len(sizes) else None
