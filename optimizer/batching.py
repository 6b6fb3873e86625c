"""What can be served of the batch dimension that a model claims: as it is, rewritten, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadgen.scratch import scratch_folder
from optimizer.batch_proof import Disproved, check_runs_whole, prove_batching
from optimizer.batch_rewrite import BATCH, free_batch
from optimizer.errors import ShapeError, UnsupportedModel
from optimizer.inner_tensors import common_inner_tensors, write_exposing
from optimizer.onnx_check import check_runs
from optimizer.onnx_files import load_proto, load_weights, sha256_of, write_model
from optimizer.onnx_model import OLDEST_RUNNABLE_OPSET, read_model
from optimizer.served_model import served_model
from optimizer.shape_view import is_small
from optimizer.shapes import require_shapes, with_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from optimizer.batch_proof import Proof
    from optimizer.onnx_model import Model, ModelTensor

TOLERANCE = 1e-3
TOLERANCE_LOW_PRECISION = 3e-2
"""Half precision rounds at 1e-3, and quantized values tip over to the next step."""
_LOW_PRECISION = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinear")
PROBES = 64
_BATCH_NAME = re.compile(r"batch|^(?:n|b|bs)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """What was done about the batch. `model` is what to serve, its `batch` now a fact: `dynamic` or `none`."""

    model: Model
    action: Literal["kept", "rewritten", "unbatched"]
    reason: str  # a sentence or two for the user


def read_settled(path: Path, shapes: Mapping[str, tuple[int, ...]], work_dir: Path) -> tuple[Model, Batching]:
    """Return the user's own model, with sizes, and what is served of it.

    Raises what `read_model`, `with_shapes` and `dynamic_batch` raise.
    """
    model = with_shapes(read_model(path), shapes)
    batching = dynamic_batch(model, work_dir)
    return model, replace(batching, model=served_model(batching.model, work_dir))


def dynamic_batch(model: Model, work_dir: Path) -> Batching:
    """The model as it can be batched, proven by running it; unbatched, with the reason, where that is not sound.

    Needs all shapes (`with_shapes`). Rewritten files go to `work_dir`, the user's own stays as it is. Raises
    ShapeError where a leading dimension that varies turns out not to be a batch and has no size, and
    UnsupportedModel for an old opset that cannot be converted.
    """
    require_shapes(model)
    work_dir.mkdir(parents=True, exist_ok=True)
    current, notes = modernized(model, work_dir)
    if current.batch == "none":
        return _unbatched(current, _why_no_batch(current), notes)
    reference = model if _runs(model) else current
    if current.batch == "dynamic":
        return _proven_or_not(reference, current, current, "Its leading dimension is a batch", notes)
    proto = _with_small_constants(current)
    freed = free_batch(proto, [tensor.name for tensor in current.all_inputs])
    rewritten = _written(current, proto, work_dir / f"{model.name}-batched.onnx")
    did = "Its batch, fixed at 1 in the file, was made dynamic" + (f" (freed: {freed})" if freed else "")
    return _proven_or_not(reference, current, _with_batch(rewritten), did, notes)


def modernized(model: Model, work_dir: Path) -> tuple[Model, list[str]]:
    """The same model in a form that ONNX Runtime runs well, and what was changed about it, in words.

    Operators older than opset 7 are converted. Constants that are also inputs, as old exporters wrote them, become
    constants alone: otherwise ONNX Runtime neither folds nor fuses them.
    """
    proto = load_proto(model.path)
    notes = []
    if not _runs(model):
        proto = _converted(model, proto)
        notes.append(f"Converted from opset {model.opset} to {OLDEST_RUNNABLE_OPSET}.")
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    if len(inputs) < len(proto.graph.input):
        del proto.graph.input[:]
        proto.graph.input.extend(inputs)
        proto.ir_version = max(proto.ir_version, 4)  # the first in which constants need not be inputs
        notes.append("Constants that the file lists as inputs are constants now.")
    if not notes:
        return model, notes
    written = _written(model, proto, work_dir / f"{model.name}-modern.onnx")
    check_runs(written.path, proto)
    return written, notes


def _runs(model: Model) -> bool:
    """Whether ONNX Runtime has operators of its opset; 0 stands for no standard operators at all."""
    return model.opset == 0 or model.opset >= OLDEST_RUNNABLE_OPSET


def _converted(model: Model, proto: ModelProto) -> ModelProto:
    import onnx

    try:
        return onnx.version_converter.convert_version(proto, OLDEST_RUNNABLE_OPSET)
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        raise UnsupportedModel(
            f"{model.path} has opset {model.opset}, ONNX Runtime needs {OLDEST_RUNNABLE_OPSET} or later, and "
            f"converting it failed: {' '.join(str(error).split())[:200]}",
            "Export it again with a newer opset.",
        ) from error


def _written(model: Model, proto: ModelProto, target: Path) -> Model:
    external = write_model(proto, target, dict(model.external))
    return replace(
        model,
        path=target.absolute(),
        external=tuple((location, file.absolute()) for location, file in external.items()),
        opset=model.opset if _runs(model) else OLDEST_RUNNABLE_OPSET,
        size_bytes=target.stat().st_size + sum(file.stat().st_size for file in external.values()),
        sha256=sha256_of(target, external),
    )


def _with_small_constants(model: Model) -> ModelProto:
    """The graph with the values of its small constants, wherever the file keeps them."""
    proto = load_proto(model.path)
    load_weights(proto, model.path.parent, wanted=is_small)
    return proto


def _with_batch(model: Model) -> Model:
    def named(tensor: ModelTensor) -> ModelTensor:
        return replace(tensor, dims=(BATCH, *tensor.dims[1:]), sample_dims=(BATCH, *tensor.sized[1:]))

    return replace(
        model,
        batch="dynamic",
        all_inputs=tuple(map(named, model.all_inputs)),
        all_outputs=tuple(map(named, model.all_outputs)),
    )


def _proven_or_not(reference: Model, fallback: Model, candidate: Model, did: str, notes: list[str]) -> Batching:
    """`candidate` if it gives what `reference` gives, else `fallback` without batching."""
    proof = _prove(reference, candidate)
    unused = {fallback.path, candidate.path} - {(candidate if proof.holds else fallback).path, reference.path}
    for path in unused:
        path.unlink()
    if not proof.holds:
        return _unbatched(fallback, proof.reason, notes)
    return Batching(
        model=candidate,
        action="kept" if candidate.path == reference.path else "rewritten",
        reason=" ".join([f"{did}: {proof.reason}.", *notes]),
    )


def _prove(reference: Model, candidate: Model) -> Proof:
    with scratch_folder("probe") as folder:

        def probes() -> tuple[Path, Path, list[str]]:
            inner = common_inner_tensors(load_proto(candidate.path), load_proto(reference.path))
            names = inner[:: -max(1, len(inner) // PROBES)][::-1]
            copies = [Path(folder, kind, "model.onnx") for kind in ("reference", "candidate")]
            for model, copy in zip((reference, candidate), copies, strict=True):
                write_exposing(model, names, copy)
            return copies[0], copies[1], names

        coarse = _is_low_precision(load_proto(candidate.path))
        return prove_batching(
            reference.path,
            candidate.path,
            candidate.all_inputs,
            tolerance=TOLERANCE_LOW_PRECISION if coarse else TOLERANCE,
            same_level=coarse,
            probes=probes,
        )


def _is_low_precision(proto: ModelProto) -> bool:
    from onnx import TensorProto

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    if any(tensor.data_type in half for tensor in proto.graph.initializer):
        return True
    return any(node.op_type.startswith(_LOW_PRECISION) for node in proto.graph.node)


def _unbatched(model: Model, why: str, notes: list[str]) -> Batching:
    """Without batching, a leading dimension needs a size like any other; one that is named like a batch gets 1."""
    unbatched = replace(model, batch="none", all_inputs=tuple(map(_single, model.all_inputs)))
    try:
        require_shapes(unbatched)
    except ShapeError as error:
        raise ShapeError(f"The leading dimension is not a batch: {why}. {error.what}", error.fix) from error
    try:
        check_runs_whole(unbatched.path, unbatched.all_inputs)
    except Disproved as error:
        raise ShapeError(
            f"The model does not run as it is: {error}.",
            "Give other sizes with --shape; exporters may fix some that the file calls dynamic.",
        ) from error
    reason = " ".join([f"Served without batching: {why}.", *notes])
    return Batching(model=unbatched, action="unbatched", reason=reason)


def _single(tensor: ModelTensor) -> ModelTensor:
    leading = tensor.sized[:1]
    if not leading or not isinstance(leading[0], str) or not _BATCH_NAME.search(leading[0]):
        return tensor
    return replace(tensor, sample_dims=(1, *tensor.sized[1:]))


def _why_no_batch(model: Model) -> str:
    """The first tensor that shows that the leading dimensions are not one batch."""
    leading = [(tensor.name, tensor.dims[0] if tensor.dims else "none") for tensor in model.all_inputs]
    results = [(tensor.name, tensor.dims[0] if tensor.dims else "none") for tensor in model.all_outputs]
    listed = ", ".join(f"{name}: {dim}" for name, dim in (*leading, *results))
    return f"the leading dimensions of its inputs and outputs are not one batch ({listed})"
