"""Read models of any size with all their weights into memory, and write them back to files."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.files import flush_folder
from loadgen.processes import scratch_folder
from model_repo.spec import weights_name
from optimizer.model.files import Graph, all_tensors, load_weights

if TYPE_CHECKING:
    from onnx import ModelProto


INLINE_LIMIT_BYTES = 1 << 30
"""Models with more than 1 GiB of weights keep them in a second file: protobuf ends at 2 GiB, and some of its users
before."""

WEIGHTS_FILE = weights_name(0)

FLOATS = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "DOUBLE": "fp64"}
"""ONNX's names of floating-point types -> ours."""

QUANTIZED = {
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}
"""Operators of models that compute in int8 or fp8."""


def inlined(proto: ModelProto) -> ModelProto:
    """Return the graph with its local functions inlined."""
    from onnx import inliner

    return inliner.inline_local_functions(proto) if proto.functions else proto


def read_with_weights(graph: Graph) -> ModelProto:
    """Return the graph, local functions inlined, with every weight in memory, for the caller to change.

    It may hold more than 2 GiB, so it must not be serialized as it is.
    """
    proto = inlined(graph.own())
    load_weights(proto, graph.path.parent)
    return proto


def opset_of(proto: ModelProto) -> int:
    """Return the opset of the standard operators; 0 if there are none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), default=0)


def number_format(proto: ModelProto) -> str:
    """Return the number format in which the model computes as it is, such as fp32.

    It is that of most of the weights, or of the first input with a known one; int8 or fp8 if it is quantized.
    """
    from onnx import TensorProto

    tensors = list(all_tensors(proto))
    name_of = TensorProto.DataType.Name
    if any(node.op_type in QUANTIZED for node in proto.graph.node):
        eighths = any(name_of(tensor.data_type).startswith("FLOAT8") for tensor in tensors)
        return "fp8" if eighths else "int8"
    elements: Counter[str] = Counter()
    for tensor in tensors:
        elements[FLOATS.get(name_of(tensor.data_type), "")] += math.prod(tensor.dims)
    del elements[""]
    if elements:
        return elements.most_common(1)[0][0]
    inputs = (FLOATS.get(name_of(value.type.tensor_type.elem_type)) for value in proto.graph.input)
    return next(filter(None, inputs), "fp32")


def weight_bytes(proto: ModelProto) -> int:
    """Return the size in bytes of the weights that lie in the proto itself."""
    return sum(len(tensor.raw_data) or 4 * len(tensor.float_data) for tensor in all_tensors(proto))


def at_opset(proto: ModelProto, opset: int) -> ModelProto:
    """Return the model in that opset or a later one; unchanged if ONNX cannot convert it, or beyond 1 GiB.

    TensorRT takes operators in types that only later opsets list; ONNX Runtime does not.
    """
    import onnx

    if opset_of(proto) >= opset or weight_bytes(proto) > INLINE_LIMIT_BYTES:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except (RuntimeError, onnx.version_converter.ConvertError):
        return proto


def save_whole(proto: ModelProto, folder: Path, *, inline_limit_bytes: int = INLINE_LIMIT_BYTES) -> Path:
    """Write `folder/model.onnx`, large weights next to it, and return its path.

    The folder appears complete, in place of an older one.
    """
    import onnx

    external = weight_bytes(proto) > inline_limit_bytes
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("entry", folder.parent) as draft:
        onnx.save_model(proto, draft / "model.onnx", save_as_external_data=external, location=WEIGHTS_FILE)
        flush_folder(draft)
        draft.rename(folder)
    return folder / "model.onnx"
