"""Write the model that is served: what Triton cannot carry changed, and the batch as it is, rewritten, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model_repo.spec import weights_name
from optimizer.batching.proof import Disproved, check_runs_whole, prove_batching
from optimizer.batching.rewrite import BATCH, free_batch
from optimizer.errors import ShapeError, UnsupportedModel
from optimizer.model.checks import check_runs
from optimizer.model.files import Graph, external_files, load_proto, load_weights, write_model
from optimizer.model.graph_inputs import InputType, renamed, unused, with_input_types
from optimizer.model.graph_shapes import is_small
from optimizer.model.onnx_model import OLDEST_RUNNABLE_OPSET, Model, ModelTensor, claimed_batch, in_files
from optimizer.model.ort_child import Tensors
from optimizer.model.shapes import require_shapes, shape_flags
from optimizer.model.weights import opset_of

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto


_FREE_CONSTANTS = 4
"""From this version of ONNX's format on, constants need not be listed as inputs."""

_RESHAPE = 5
"""From this opset on, Reshape takes the shape as an input."""


def carried(
    path: Path, work_dir: Path, input_types: Mapping[str, InputType] | None = None
) -> tuple[Graph, tuple[str, ...]]:
    """Return the file, or a rewritten one of its name in `work_dir`; and what was changed, in sentences.

    Raises ModelError, UnsafeModel, OSError, and UnsupportedModel for `input_types` that it cannot have.
    """
    proto = load_proto(path)
    notes = (
        *_with_free_constants(proto),
        *with_input_types(proto, input_types or {}),
        *_without_dictionaries(proto),
        *_without_scalars(proto),
    )
    if notes:
        path, external = work_dir / "carried" / path.name, external_files(proto, path.parent)
        write_model(proto, path, external)
    return Graph(path.absolute(), proto), notes


def _with_free_constants(proto: ModelProto) -> Iterator[str]:
    """Raise the version of a file that has constants as later versions do; ONNX Runtime loads it as it is."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    if proto.ir_version < _FREE_CONSTANTS and constants - {value.name for value in proto.graph.input}:
        yield f"Its format is {_FREE_CONSTANTS}, not {proto.ir_version}: not all of its constants are inputs."
        proto.ir_version = _FREE_CONSTANTS


def _without_dictionaries(proto: ModelProto) -> Iterator[str]:
    """Replace each ZipMap by its input, a row of probabilities for each row of the model's first input."""
    from onnx import TensorProto, helper

    graph, outputs = proto.graph, {value.name: value for value in proto.graph.output}
    constants = {tensor.name for tensor in graph.initializer}
    first = next((value for value in graph.input if value.name not in constants), None)
    for node in graph.node:
        if (node.domain, node.op_type) != ("ai.onnx.ml", "ZipMap") or node.output[0] not in outputs:
            continue
        labels = [label for attribute in node.attribute for label in (*attribute.ints, *attribute.strings)]
        value = outputs[node.output[0]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [None, len(labels)]))
        rows = first.type.tensor_type.shape.dim[:1] if first is not None else ()
        if rows:
            value.type.tensor_type.shape.dim[0].CopyFrom(rows[0])
        node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
        if not opset_of(proto):
            proto.opset_import.append(helper.make_opsetid("", 13))
        yield f"{value.name} is served as a tensor, with a column for each of its {len(labels)} labels."


def _without_scalars(proto: ModelProto) -> Iterator[str]:
    """Give each scalar input and output an axis of size 1."""
    graph = proto.graph
    if opset_of(proto) < _RESHAPE:
        return
    constants = {tensor.name for tensor in graph.initializer}
    for value in filter(_is_scalar, graph.input):
        if value.name not in constants:
            inner = renamed(graph, value.name, f"{value.name}_scalar", produced=False)
            graph.node.insert(0, _reshape(graph, value.name, inner, []))
            yield _widened(value)
    made = {name for node in graph.node for name in node.output}
    inputs = {value.name for value in graph.input} - constants
    for value in filter(_is_scalar, graph.output):
        if value.name in inputs:
            _widened(value)
        elif value.name in made:
            inner = renamed(graph, value.name, f"{value.name}_scalar", produced=True)
            graph.node.append(_reshape(graph, inner, value.name, [1]))
            yield _widened(value)
    names = {value.name for value in (*graph.input, *graph.output)}
    for at in reversed([at for at, value in enumerate(graph.value_info) if value.name in names]):
        del graph.value_info[at]


def _is_scalar(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return value.type.WhichOneof("value") == "tensor_type" and tensor.HasField("shape") and not tensor.shape.dim


def _widened(value: ValueInfoProto) -> str:
    value.type.tensor_type.shape.dim.add().dim_value = 1
    return f"{value.name}, a scalar, is served as a tensor of one value."


def _reshape(graph: GraphProto, source: str, result: str, sizes: list[int]) -> NodeProto:
    from onnx import TensorProto, helper

    shape = unused(graph, f"{source}_to_{result}")
    graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [len(sizes)], sizes))
    return helper.make_node("Reshape", [source, shape], [result])


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
    proof = disproved = ""
    try:
        proof = prove_batching(
            reference.path,
            candidate.path,
            candidate.all_inputs,
            given=given,
            rows=reference.fixed_rows,
            tolerance=ROW_TOLERANCE_LOW_PRECISION if coarse else ROW_TOLERANCE,
            same_level=coarse,
        )
    except Disproved as why:
        disproved = str(why)
    served = current if disproved else candidate
    for left in {current.path, candidate.path} - {served.path, reference.path}:
        left.unlink()
    if disproved:
        return _unbatched(current, disproved, notes, given)
    action: Action = "kept" if candidate.path == reference.path else "rewritten"
    return Batching(model=candidate, action=action, reason=" ".join([f"{did}: {proof}.", *notes]))


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
        fix = "Give other sizes with --shape (exporters may fix some that the file calls dynamic), or values with "
        fix += "--input-data."
        if baked := re.search(r"requested shape:\{(\d+)", str(error)):
            rows = int(baked[1])
            with suppress(Disproved):
                check_runs_whole(model.path, [_single(one, rows) for one in model.all_inputs], given)
                fix = f"Add {shape_flags(replace(model, batch='none'), rows=rows)}, which a Reshape takes."
        raise ShapeError(f"The model does not run as it is: {error}.", fix) from error
    reason = " ".join([f"Served without batching: {why}.", *notes])
    return Batching(model=unbatched, action="unbatched", reason=reason)


def _single(tensor: ModelTensor, rows: int = 1) -> ModelTensor:
    leading = tensor.sized[:1]
    if not leading or not isinstance(leading[0], str) or not _BATCH_NAME.search(leading[0]):
        return tensor
    return replace(tensor, sample_dims=(rows, *tensor.sized[1:]))


def _why_no_batch(model: Model) -> str:
    """Return the reason, which lists the leading dimensions of all inputs and outputs if they differ."""
    if claimed_batch(model.all_inputs, model.all_outputs) != "none":
        return "its samples have the leading size that --shape gives"
    tensors = (*model.all_inputs, *model.all_outputs)
    listed = ", ".join(f"{tensor.name}: {tensor.dims[0] if tensor.dims else 'none'}" for tensor in tensors)
    return f"the leading dimensions of its inputs and outputs are not one batch ({listed})"
