"""Precision variants of a model: the same function with other number formats, written into the ONNX graph.

`variant_from_model` makes them. tf32 needs no graph of its own: it is a switch of the engine that runs fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadgen.processes import scratch_folder
from optimizer.model.files import Graph, external_files
from optimizer.model.onnx_model import Model, ModelTensor, in_files
from optimizer.model.samples import Samples
from optimizer.model.weights import at_opset, opset_of, read_with_weights, save_whole
from optimizer.precision.half_cast import HalfGraph, cast_to_half, rounding_in_fp32
from optimizer.precision.half_plan import OPSET_OF_HALF_SCALES, HalfName, half_named
from optimizer.precision.names import CalibrationMethod, Device, IoPrecision, Precision

if TYPE_CHECKING:
    from onnx import ModelProto


OPSET_OF_BF16 = 22
"""The first opset in which convolutions and pooling take bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model in one precision. `model` is the one that is served.

    `stand_in` gives the same results, up to the order of sums, on a CPU; it is `model` itself if ONNX Runtime has
    CPU operators for it. If not `optimizable`, ONNX Runtime's optimizer turns it into a graph that ONNX Runtime
    cannot run. `kept` are the nodes that stayed in fp32 although the precision is lower, and why.
    """

    precision: Precision
    model: Model
    stand_in: Model
    optimizable: bool = True
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """The options of variants. `calibration` is for int8 and fp8; `peaks` are magnitudes seen inside the model.

    On a GPU the nodes that int8 and fp8 leave alone are fp16; on a CPU they are fp32.
    """

    work_dir: Path
    device: Device = "cpu"
    io_precision: IoPrecision = "keep"
    calibration: Samples | None = None
    calibration_method: CalibrationMethod = "percentile"
    peaks: Mapping[str, float] = field(default_factory=dict)


def variant_from_model(model: Model, precision: Precision, options: VariantOptions) -> Variant:
    """Return `model` (fp32, batch settled, shapes known) in `precision`.

    New files go to a folder of `options.work_dir`. Raises UnsupportedModel if there is no such variant.
    """
    match precision:
        case "fp32" | "tf32":
            return Variant(precision=precision, model=model, stand_in=model)
        case "fp16":
            return _fp16(model, options)
        case "bf16":
            return _bf16(model, options)
        case "int8" | "fp8":
            return _quantized(precision, model, options)


def _fp16(model: Model, options: VariantOptions) -> Variant:
    graph = _cast(read_with_weights(model.graph), "fp16", options)
    done = _saved(model, graph.proto, options, name="fp16", half_io=_half_io(options))
    return Variant(precision="fp16", model=done, stand_in=done, kept=graph.kept)


def _bf16(model: Model, options: VariantOptions) -> Variant:
    """Return the bf16 variant. Its inputs and outputs stay fp32: numpy, and so most clients, know no bf16."""
    plain = replace(options, io_precision="keep")

    done = _cast(at_opset(read_with_weights(model.graph), OPSET_OF_BF16), "bf16", plain)
    rounding = replace(done, proto=deepcopy(done.proto))
    rounding_in_fp32(rounding, half_named("bf16"))
    return Variant(
        precision="bf16",
        model=_saved(model, done.proto, options, name="bf16"),
        stand_in=_saved(model, rounding.proto, options, name="bf16-in-fp32"),
        kept=done.kept,
    )


def _quantized(precision: Literal["int8", "fp8"], model: Model, options: VariantOptions) -> Variant:
    from optimizer.precision.quantize import quantize

    assert options.calibration is not None
    with scratch_folder(precision, options.work_dir) as folder:
        modern = at_opset(read_with_weights(model.graph), OPSET_OF_HALF_SCALES)
        path = quantize(
            save_whole(modern, folder / "modern"),
            folder,
            precision=precision,
            device=options.device,
            samples=options.calibration,
            method=options.calibration_method,
        )
        proto = read_with_weights(Graph(path))
        if options.device == "cpu":
            done = _saved(model, proto, options, name=precision)
            return Variant(precision=precision, model=done, stand_in=done)
        graph = _cast(proto, "fp16", options)
    done = _saved(model, graph.proto, options, name=precision, half_io=_half_io(options))
    optimizable = precision != "fp8"  # ONNX Runtime moves fp8 across operators that know no fp8
    return Variant(precision=precision, model=done, stand_in=done, optimizable=optimizable, kept=graph.kept)


def _half_io(options: VariantOptions) -> bool:
    return options.io_precision == "fp16"


def _cast(proto: ModelProto, half: HalfName, options: VariantOptions) -> HalfGraph:
    """Return `proto`, with its weights, in half precision."""
    return cast_to_half(proto, half_named(half), half_io=_half_io(options), peaks=options.peaks)


def _saved(model: Model, proto: ModelProto, options: VariantOptions, *, name: str, half_io: bool = False) -> Model:
    path = save_whole(proto, options.work_dir / f"{model.name}-{name}")
    saved = in_files(model, path, proto, external_files(proto, path.parent), opset=opset_of(proto))
    if not half_io:
        return saved
    inputs, outputs = (tuple(map(as_half, tensors)) for tensors in (model.all_inputs, model.all_outputs))
    return replace(saved, all_inputs=inputs, all_outputs=outputs)


def as_half(tensor: ModelTensor) -> ModelTensor:
    """Return the tensor in fp16 if it is fp32, else as it is."""
    return replace(tensor, datatype="FP16") if tensor.datatype == "FP32" else tensor
