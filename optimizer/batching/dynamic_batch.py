"""Write the model that is served, with the batch dimension that it supports: as it is, rewritten, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model_repo.spec import weights_name
from optimizer.batching.proof import Disproved, check_runs_whole, prove_batching
from optimizer.batching.rewrite import BATCH, free_batch
from optimizer.errors import ShapeError, UnsupportedModel
from optimizer.model.checks import check_runs
from optimizer.model.files import Graph, load_weights, write_model
from optimizer.model.graph_shapes import is_small
from optimizer.model.onnx_model import OLDEST_RUNNABLE_OPSET, Model, ModelTensor, claimed_batch, in_files
from optimizer.model.ort_child import Tensors
from optimizer.model.shapes import require_shapes

if TYPE_CHECKING:
    from onnx import ModelProto


def served_model(model: Model, work_dir: Path) -> Model:
    """Return the model with its weights in `work_dir`, under names of ours; unchanged if they are there already.

    Triton's Python backend runs the `model.py` in a model's folder, and weights can have that name. They are
    copied, once per run: model repositories link to the copies. Links to the user's own files would keep the user
    from loading the model, since ONNX refuses weights with several links. `sha256` stays that of the user's files.
    Raises OSError.
    """
    folder = work_dir.absolute()
    own = tuple((weights_name(number), folder / weights_name(number)) for number in range(len(model.external)))
    if model.external == own:
        return model
    target = folder / f"{model.name}-served.onnx"
    proto = model.graph.own()
    files = write_model(proto, target, dict(model.external))
    return replace(model, graph=Graph(target, proto), external=tuple(files.items()))


ROW_TOLERANCE = 1e-3
ROW_TOLERANCE_LOW_PRECISION = 3e-2
"""Rows may differ by 1e-3 of the largest value, or by 3e-2 if the model has half-precision weights or quantized
operators: half precision rounds at 1e-3, and quantized values jump to the next step."""
_LOW_PRECISION = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinear")
_BATCH_NAME = re.compile(r"batch|^(?:n|b|bs)$", re.IGNORECASE)


Action = Literal["kept", "rewritten", "unbatched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The result for the batch. `model` is the model to serve; its `batch` is now proven: `dynamic` or `none`."""

    model: Model
    action: Action
    reason: str  # a sentence or two for the user


def dynamic_batch(model: Model, work_dir: Path, given: Sequence[Tensors] = ()) -> Batching:
    """Return the model with a batch, proven by running it; unbatched, with the reason, if a batch is not sound.

    `given` are samples for the proof, besides random ones; models that take texts need some. Needs all shapes
    (`with_shapes`). Rewritten files go to `work_dir`, the user's own stays as it is. Raises ShapeError if a
    leading dimension that varies turns out not to be a batch and has no size, and UnsupportedModel for an old
    opset that cannot be converted.
    """
    require_shapes(model)
    work_dir.mkdir(parents=True, exist_ok=True)
    current, notes = modernized(model, work_dir)
    candidate, did = current, "Its leading dimension is a batch"
    if current.batch == "fixed":
        proto = current.graph.own()
        load_weights(proto, current.path.parent, wanted=is_small)
        rows = current.fixed_rows
        freed = free_batch(proto, [tensor.name for tensor in current.all_inputs], rows)
        candidate = _with_batch(_written(current, proto, work_dir / f"{model.name}-batched.onnx"))
        single = f"requests have 1 row, or {rows} with --client-batch {rows}" if rows > 1 else ""
        more = "; ".join(filter(None, [freed and f"freed: {freed}", single]))
        did = f"Its batch, fixed at {rows} in the file, was made dynamic" + (f" ({more})" if more else "")
    if current.batch == "none":
        return _unbatched(current, _why_no_batch(current), notes, given)
    reference = model if _runs(model) else current
    coarse = _is_low_precision(candidate.graph.outline)
    proof = prove_batching(
        reference.path,
        candidate.path,
        candidate.all_inputs,
        given=given,
        rows=reference.fixed_rows,
        tolerance=ROW_TOLERANCE_LOW_PRECISION if coarse else ROW_TOLERANCE,
        same_level=coarse,
    )
    served = candidate if proof.holds else current
    for unused in {current.path, candidate.path} - {served.path, reference.path}:
        unused.unlink()
    if not proof.holds:
        return _unbatched(current, proof.reason, notes, given)
    action: Action = "kept" if candidate.path == reference.path else "rewritten"
    return Batching(model=candidate, action=action, reason=" ".join([f"{did}: {proof.reason}.", *notes]))


def modernized(model: Model, work_dir: Path) -> tuple[Model, list[str]]:
    """Return the same model in a form that ONNX Runtime runs well, and the changes in words.

    Operators older than opset 7 are converted. Constants that are also inputs, as old exporters wrote them, become
    constants only: otherwise ONNX Runtime neither folds nor fuses them.
    """
    proto, notes = model.graph.proto, []
    if not _runs(model):
        proto = _converted(model, proto)
        notes.append(f"Converted from opset {model.opset} to {OLDEST_RUNNABLE_OPSET}.")
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    if len(inputs) < len(proto.graph.input):
        inputs, proto = deepcopy(inputs), deepcopy(proto)
        del proto.graph.input[:]
        proto.graph.input.extend(inputs)
        proto.ir_version = max(proto.ir_version, 4)  # the first version in which constants need not be inputs
        notes.append("Constants that the file lists as inputs are constants now.")
    if not notes:
        return model, notes
    written = _written(model, proto, work_dir / f"{model.name}-modern.onnx")
    check_runs(written.path, proto)
    return written, notes


def _runs(model: Model) -> bool:
    """True if ONNX Runtime has operators of the model's opset; 0 stands for no standard operators at all."""
    return model.opset == 0 or model.opset >= OLDEST_RUNNABLE_OPSET


def _converted(model: Model, proto: ModelProto) -> ModelProto:
    import onnx

    errors = (RuntimeError, onnx.version_converter.ConvertError, onnx.shape_inference.InferenceError)
    try:
        return onnx.version_converter.convert_version(proto, OLDEST_RUNNABLE_OPSET)
    except errors as error:
        raise UnsupportedModel(
            f"{model.path} has opset {model.opset}, ONNX Runtime needs {OLDEST_RUNNABLE_OPSET} or later, and "
            f"converting it failed: {' '.join(str(error).split())[:200]}",
            "Export it again with a newer opset.",
        ) from error


def _written(model: Model, proto: ModelProto, target: Path) -> Model:
    external = write_model(proto, target, dict(model.external))
    opset = model.opset if _runs(model) else OLDEST_RUNNABLE_OPSET
    return in_files(model, target, proto, external, opset=opset)


def _with_batch(model: Model) -> Model:
    def named(tensor: ModelTensor) -> ModelTensor:
        return replace(tensor, dims=(BATCH, *tensor.dims[1:]), sample_dims=(BATCH, *tensor.sized[1:]))

    return replace(
        model,
        batch="dynamic",
        all_inputs=tuple(map(named, model.all_inputs)),
        all_outputs=tuple(map(named, model.all_outputs)),
    )


def _is_low_precision(proto: ModelProto) -> bool:
    from onnx import TensorProto

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    if any(tensor.data_type in half for tensor in proto.graph.initializer):
        return True
    return any(node.op_type.startswith(_LOW_PRECISION) for node in proto.graph.node)


def _unbatched(model: Model, why: str, notes: list[str], given: Sequence[Tensors]) -> Batching:
    """Return the model without batching; a leading dimension with a name like that of a batch gets size 1.

    Raises ShapeError if another leading dimension has no size, or if the model does not run.
    """
    unbatched = replace(model, batch="none", all_inputs=tuple(map(_single, model.all_inputs)))
    try:
        require_shapes(unbatched)
    except ShapeError as error:
        raise ShapeError(f"The leading dimension is not a batch: {why}. {error.what}", error.fix) from error
    try:
        check_runs_whole(unbatched.path, unbatched.all_inputs, given)
    except Disproved as error:
        raise ShapeError(
            f"The model does not run as it is: {error}.",
            "Give other sizes with --shape (exporters may fix some that the file calls dynamic), or values with "
            "--input-data.",
        ) from error
    reason = " ".join([f"Served without batching: {why}.", *notes])
    return Batching(model=unbatched, action="unbatched", reason=reason)


def _single(tensor: ModelTensor) -> ModelTensor:
    leading = tensor.sized[:1]
    if not leading or not isinstance(leading[0], str) or not _BATCH_NAME.search(leading[0]):
        return tensor
    return replace(tensor, sample_dims=(1, *tensor.sized[1:]))


def _why_no_batch(model: Model) -> str:
    """Return the reason, which lists the leading dimensions of all inputs and outputs if they differ."""
    if claimed_batch(model.all_inputs, model.all_outputs) != "none":
        return "its samples have the leading size that --shape gives"
    leading = [(tensor.name, tensor.dims[0] if tensor.dims else "none") for tensor in model.all_inputs]
    results = [(tensor.name, tensor.dims[0] if tensor.dims else "none") for tensor in model.all_outputs]
    listed = ", ".join(f"{name}: {dim}" for name, dim in (*leading, *results))
    return f"the leading dimensions of its inputs and outputs are not one batch ({listed})"
