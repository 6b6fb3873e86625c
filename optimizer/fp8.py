"""fp8 (E4M3) from a symmetric int8 Q/DQ graph: the same places and ranges, other numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import NodeProto, TensorProto

LARGEST_INT8 = 127.0
LARGEST_E4M3 = 448.0


def int8_to_fp8(path: Path, source: Path) -> None:
    """Rewrite the Q/DQ graph at `path`, which was made of the fp32 model at `source`, in place.

    Scales shrink by 127 / 448 so that the same range is covered; weights are rounded from their fp32 values.
    """
    import onnx

    proto, weights = onnx.load_model(path), _weights(source)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    done: set[str] = set()
    for node in proto.graph.node:
        if node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
            continue
        values, scale, zero = tensors.get(node.input[0]), tensors[node.input[1]], tensors[node.input[2]]
        if scale.name not in done:
            shrunk = onnx.numpy_helper.to_array(scale) * np.float32(LARGEST_INT8 / LARGEST_E4M3)
            scale.CopyFrom(onnx.numpy_helper.from_array(shrunk, scale.name))
        if values is not None and values.name not in done:
            exact = weights[values.name.removesuffix("_quantized")]
            scaled = exact / _along(onnx.numpy_helper.to_array(scale), _axis(node), exact.ndim)
            values.CopyFrom(_e4m3(np.clip(scaled, -LARGEST_E4M3, LARGEST_E4M3), values.name))
        if zero.name not in done:
            zero.CopyFrom(_e4m3(np.zeros(tuple(zero.dims)), zero.name))
        done.update((scale.name, zero.name, node.input[0] if values is not None else ""))
    del proto.graph.value_info[:]
    large = any(file != path for file in path.parent.iterdir())
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(proto, path, save_as_external_data=large, location=f"{path.name}.data")


def _weights(source: Path) -> dict[str, NDArray[np.float32]]:
    import onnx

    graph = onnx.load_model(source).graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


def _axis(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


def _along(scale: NDArray[np.float32], axis: int, rank: int) -> NDArray[np.float32]:
    """The scale, one number or one for each channel, ready to divide a tensor of that rank."""
    if scale.ndim == 0:
        return scale
    shape = [1] * rank
    shape[axis] = -1
    return scale.reshape(shape)


def _e4m3(values: NDArray[np.floating[Any]], name: str) -> TensorProto:
    import ml_dtypes
    import onnx

    return onnx.numpy_helper.from_array(values.astype(ml_dtypes.float8_e4m3fn), name)
