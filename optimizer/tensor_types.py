"""The element types of a graph's tensors, as ONNX infers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def type_name(kind: int) -> str:
    """`FLOAT` for 1, `tensor of type 99` for a number that ONNX does not know."""
    from onnx import TensorProto

    known = kind in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(kind)) if known else f"tensor of type {kind}"


def tensor_types(proto: ModelProto) -> dict[str, int]:
    """Element type (onnx.TensorProto.DataType) by the name of each tensor of the main graph whose type is known.

    Values are not looked at, so weights may be absent, and must be where the proto would pass 2 GiB.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(proto).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
    types.update({value.name: value.type.tensor_type.elem_type for value in inferred.input})
    types.update({tensor.name: tensor.data_type for tensor in inferred.initializer})
    return {name: kind for name, kind in types.items() if kind}
