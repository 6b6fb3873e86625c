"""The inputs of a graph: other names, and fp32 that requests carry as UINT8 or FP16."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from loadgen.errors import BadInput
from optimizer.errors import UnsupportedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto


@dataclass(frozen=True, slots=True, kw_only=True)
class InputType:
    """What requests carry of an fp32 input: the model computes `scale` times the value, plus `offset`."""

    datatype: Literal["uint8", "fp16"]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def text(self) -> str:
        """The type as `--input-type` takes it after the input's name."""
        plain = (self.scale, self.offset) == (1.0, 0.0)
        return self.datatype if plain else f"{self.datatype}:{self.scale:.9g},{self.offset:.9g}"

    def value(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what the model computes of a request's values, in fp32."""
        import numpy as np

        return array.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)


def input_types_from_texts(texts: Iterable[str]) -> dict[str, InputType]:
    """Return `NAME:uint8`, `NAME:fp16` or `NAME:TYPE:SCALE,OFFSET` texts by name. Raises BadInput."""
    return dict(_from_text(text) for text in texts)


def _from_text(text: str) -> tuple[str, InputType]:
    datatype: Literal["uint8", "fp16"] = "uint8" if ":uint8" in text else "fp16"
    name, _, rest = text.rpartition(f":{datatype}")
    try:
        numbers = [float(number) for number in rest.removeprefix(":").split(",")] if rest else []
    except ValueError:
        numbers = [math.nan]
    sound = all(map(math.isfinite, numbers)) and len(numbers) <= 2 and numbers[:1] != [0.0]
    if not name or rest[:1] not in {"", ":"} or not sound:
        raise BadInput(
            f"--input-type {text!r} is no name with a type.",
            "Give NAME:uint8 or NAME:fp16; with a scale and an offset --input-type image:uint8:0.0039,0",
        )
    scale, offset = (*numbers, *(1.0, 0.0)[len(numbers) :])
    return name, InputType(datatype=datatype, scale=scale, offset=offset)


def with_input_types(proto: ModelProto, types: Mapping[str, InputType]) -> Iterator[str]:
    """Change the types of these inputs, and cast, scale and shift them first. Yields what was done, in sentences.

    Raises UnsupportedModel for a name that is no fp32 input.
    """
    from onnx import TensorProto, helper

    graph = proto.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    for name, wanted in types.items():
        floats = [one for one, value in inputs.items() if value.type.tensor_type.elem_type == TensorProto.FLOAT]
        if name not in floats:
            raise UnsupportedModel(
                f"--input-type {name}:{wanted.text}: the model has no fp32 input {name!r}.",
                f"Its fp32 inputs are {', '.join(floats)}." if floats else "It has no fp32 inputs.",
            )
        nodes = [helper.make_node("Cast", [name], [""], to=TensorProto.FLOAT)]
        for operator, number, neutral in (("Mul", wanted.scale, 1.0), ("Add", wanted.offset, 0.0)):
            if number != neutral:
                constant = unused(graph, f"{name}_{operator.lower()}")
                graph.initializer.append(helper.make_tensor(constant, TensorProto.FLOAT, [], [number]))
                nodes.append(helper.make_node(operator, ["", constant], [""]))
        nodes[-1].output[0] = renamed(graph, name, f"{name}_fp32", produced=False)
        for before, node in pairwise(nodes):
            before.output[0] = node.input[0] = unused(graph, f"{name}_{node.op_type.lower()}_input")
        for node in reversed(nodes):
            graph.node.insert(0, node)
        onnx_type = TensorProto.UINT8 if wanted.datatype == "uint8" else TensorProto.FLOAT16
        inputs[name].type.tensor_type.elem_type = onnx_type
        yield f"Requests carry {name} as {wanted.text}, and the model casts it."


def renamed(graph: GraphProto, name: str, new: str, *, produced: bool) -> str:
    """Return `new`, which all nodes read instead of `name`, and which its node writes if it is produced."""
    from optimizer.model.checks import all_nodes

    new = unused(graph, new)
    for node in all_nodes(graph):
        for names in (node.input, *([node.output] if produced else [])):
            for at, one in enumerate(names):
                if one == name:
                    names[at] = new
    return new


def unused(graph: GraphProto, name: str) -> str:
    """Return the name, or one like it that no node, input or constant has."""
    from optimizer.model.checks import all_nodes

    taken = {one for node in all_nodes(graph) for one in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.initializer)}
    while name in taken:
        name += "_"
    return name
