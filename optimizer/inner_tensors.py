"""Results on the way from a model's inputs to its outputs, made visible in a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizer.onnx_files import load_proto, write_model
from optimizer.shape_view import computed_from_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onnx import ModelProto

    from optimizer.onnx_model import Model


def common_inner_tensors(proto: ModelProto, reference: ModelProto) -> list[str]:
    """What both compute from their inputs under the same name, besides outputs, in the order of computation."""
    seen = computed_from_inputs(proto.graph) & {name for node in reference.graph.node for name in node.output}
    seen -= {value.name for value in proto.graph.output}
    return [node.output[0] for node in proto.graph.node if node.output[0] in seen]


def write_exposing(model: Model, names: Sequence[str], target: Path) -> None:
    """Write a copy of the model to `target`, with its external files beside it, that returns `names` too."""
    import onnx

    proto = load_proto(model.path)
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    write_model(proto, target, dict(model.external))
