"""Models with all their weights in memory, whatever their size, and back to files."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from loadgen.scratch import scratch_folder
from model_repo.spec import weights_name
from optimizer.onnx_files import all_tensors, load_proto, load_weights

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from optimizer.onnx_model import Model

INLINE_LIMIT_BYTES = 1 << 30
"""Larger models keep their weights in a second file: protobuf ends at 2 GiB, and some of its users before."""

WEIGHTS_FILE = weights_name(0)


def read_graph(model: Model) -> ModelProto:
    """The graph as the file has it, local functions inlined, without the weights that lie in other files."""
    from onnx import inliner

    proto = load_proto(model.path)
    return inliner.inline_local_functions(proto) if proto.functions else proto


def read_with_weights(model: Model) -> ModelProto:
    """The graph and every weight, in memory. May hold more than 2 GiB, so it must not be serialized as it is."""
    proto = read_graph(model)
    load_weights(proto, model.path.parent)
    return proto


def opset_of(proto: ModelProto) -> int:
    """The opset of the standard operators; 0 where there are none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), default=0)


def weight_bytes(proto: ModelProto) -> int:
    """The size of the weights that lie in the proto itself."""
    return sum(len(tensor.raw_data) or 4 * len(tensor.float_data) for tensor in all_tensors(proto))


def at_opset(proto: ModelProto, opset: int) -> ModelProto:
    """The model in that opset or a later one; as it is where ONNX has no way there, or beyond 1 GiB.

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
    """Write `folder/model.onnx`, large weights beside it; the folder appears whole, in place of an older one."""
    import onnx

    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("weights", folder.parent) as draft:
        external = weight_bytes(proto) > inline_limit_bytes
        onnx.save_model(proto, draft / "model.onnx", save_as_external_data=external, location=WEIGHTS_FILE)
        for file in draft.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder / "model.onnx"
