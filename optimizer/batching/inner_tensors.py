"""Expose the intermediate results of a model as outputs of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.model.files import write_model
from optimizer.model.graph_shapes import computed_from_inputs
from optimizer.model.onnx_model import Model

if TYPE_CHECKING:
    from onnx import ModelProto


def common_inner_tensors(proto: ModelProto, reference: ModelProto) -> list[str]:
    """Return the tensors that both models compute under the same name, in order of computation.

    They depend on the inputs of `proto`; its outputs are left out.
    """
    seen = computed_from_inputs(proto.graph) & {name for node in reference.graph.node for name in node.output}
    seen -= {value.name for value in proto.graph.output}
    return [node.output[0] for node in proto.graph.node if node.output[0] in seen]


def write_exposing(model: Model, names: Sequence[str], target: Path) -> None:
    """Write a copy of the model to `target`, with its external files next to it, that returns `names` too."""
    import onnx

    proto = model.graph.own()
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    write_model(proto, target, dict(model.external))
