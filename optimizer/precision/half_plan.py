"""Decide which nodes of a graph may run in half precision, and why the others may not.

The decision rests on the ranges of fp16 and bf16, on rounding errors of the weights, and on the largest values
inside the model on samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.processes import scratch_folder
from optimizer.errors import RunFailed
from optimizer.model.files import write_model
from optimizer.model.graph_shapes import computed_from_inputs, tensor_types
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import run_model
from optimizer.model.samples import Samples
from optimizer.model.weights import inlined

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


HalfName = Literal["fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A half precision. `unit` is its unit roundoff: the largest rounding error relative to a normal number."""

    name: HalfName
    onnx_type: int
    dtype: np.dtype[Any]
    largest: float
    unit: float


@cache
def half_named(name: HalfName) -> Half:
    """Return the half precision of that name.

    fp16 has 11 significant bits and ends at 65504; bf16 has 8 and the range of fp32.
    """
    import ml_dtypes
    from onnx import TensorProto

    if name == "fp16":
        return Half(
            name=name, onnx_type=TensorProto.FLOAT16, dtype=np.dtype(np.float16), largest=65504.0, unit=2.0**-11
        )
    dtype = np.dtype(ml_dtypes.bfloat16)
    largest = (2 - 2.0**-7) * 2.0**127
    return Half(name=name, onnx_type=TensorProto.BFLOAT16, dtype=dtype, largest=largest, unit=2.0**-8)


AT_ONCE = 1 << 16
"""Weights are rounded 65,536 at a time, which stay in the processor's cache: the 23 million of an embedding, at
once, take four times as long."""


def rounding_error(values: NDArray[np.float32], half: Half) -> float:
    """Return the error of rounding values to `half`, relative to their root mean square; inf beyond its range.

    A single value beyond the range counts as one at its end: exporters write -3.4e38 for "never".
    """
    values = (_saturated(values, half) if values.size == 1 else values).reshape(-1)
    size = lost = 0.0
    for start in range(0, values.size, AT_ONCE):
        some = values[start : start + AT_ONCE]
        with np.errstate(over="ignore"):
            back = some.astype(half.dtype).astype(np.float64)
        finite = np.isfinite(back)
        if not np.array_equal(finite, np.isfinite(some)):
            return np.inf
        exact = some[finite].astype(np.float64)
        size += float(np.square(exact).sum())
        lost += float(np.square(back[finite] - exact).sum())
    return float(np.sqrt(lost / size)) if size > 0 else 0.0


def in_half(weight: TensorProto, half: Half, name: str) -> TensorProto:
    """Return the weight in half precision under a new name; finite numbers stay finite."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    return numpy_helper.from_array(_saturated(values, half).astype(half.dtype), name)


def without_overflow(weight: TensorProto, half: Half) -> TensorProto:
    """Return the fp32 weight; a single number beyond the range of `half` is replaced by the end of the range.

    A cast would make such a number, a mask's -3.4e38 for example, infinite, and a row that is masked altogether
    NaN.
    """
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    if values.size != 1 or np.array_equal(values, _saturated(values, half), equal_nan=True):
        return weight
    return numpy_helper.from_array(_saturated(values, half).astype(values.dtype), weight.name)


def _saturated(values: NDArray[Any], half: Half) -> NDArray[Any]:
    return np.where(np.isfinite(values), np.clip(values, -half.largest, half.largest), values)


FLOAT = 1
"""The number of the element type fp32, onnx.TensorProto.FLOAT."""

DELICATE = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Cos", "Sin", "Exp", "Log", "Pow",
    "Reciprocal", "Softplus", "Sqrt", "CumSum", "CumProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "LogSoftmax", "LpNormalization",
    "LpPool", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "RMSNormalization",
    "LRN", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "Det", "DFT", "STFT", "MelWeightMatrix",
}  # fmt: skip
"""Operators that stay in fp32: sums over many elements and functions with a steep slope lose digits or overflow.

Softmax and LayerNormalization are not among them: ONNX Runtime and TensorRT read and write half but compute these
in fp32 inside, and an attention whose softmax is fp32 is no longer run as one fused kernel.
"""

EXACT = {
    "ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "RoiAlign", "MaxRoiPool", "Unique", "NonZero", "OneHot",
    "Range", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "GridSample", "AffineGrid", "CastLike",
    "Multinomial", "Bernoulli", "RandomNormalLike", "RandomUniformLike", "EyeLike", "Upsample", "Celu",
    "DynamicQuantizeLinear", "Hardmax", "Mod", "Floor", "Ceil", "Round", "Sign", "IsInf", "IsNaN",
}  # fmt: skip
"""Operators that stay in fp32: choices, coordinates and comparisons, whose result changes if a value is rounded,
and operators without a half form."""

READS_ANY_TYPE = {"Cast", "Shape", "Size"}
"""Operators that take a tensor of any type, and whose result does not depend on the type."""

HEAVY = {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention", "DeformConv",
}  # fmt: skip
"""Operators that are worth a cast of their inputs. Others stay in fp32 if all results that they read are fp32."""

FLOAT_POSITIONS = {"Resize": {1, 2}}
"""Positions of inputs that the operator needs in fp32, for any type of its data."""

NORMALIZATIONS = {"LayerNormalization", "BatchNormalization"}
Q_DQ = {"QuantizeLinear", "DequantizeLinear"}
OPSET_OF_HALF_SCALES = 19

SAFE_SHARE = 1 / 8
"""A node stays in fp32 if magnitudes seen in samples exceed 1/8 of the range: other inputs give larger ones."""

LEADS_TO_SOFTMAX = {"Add", "Sub", "Mul", "Div", "Where", "Neg", "Cast", "Expand", "Unsqueeze", "Reshape"}

LOSS = 4.0
"""A node stays in fp32 if rounding a weight loses more than 4 units of rounding; ordinary weights lose half a
unit, and tiny ones (an epsilon) all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingPlan:
    """The result of `plan_halving`: `low` is True for each node that works in half.

    `half_tensors`: the tensors that become half; `kept`: for each node that must stay in fp32, the reason.
    """

    low: tuple[bool, ...]
    half_tensors: frozenset[str]
    kept: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    half: Half
    types: Mapping[str, int]
    weight_errors: Mapping[str, float]  # rounding_error of each fp32 weight
    peaks: Mapping[str, float]
    opset: int


def plan_halving(
    graph: GraphProto,
    half: Half,
    *,
    types: Mapping[str, int],
    weights: Mapping[str, TensorProto],
    half_inputs: bool,
    peaks: Mapping[str, float],
    opset: int,
) -> HalvingPlan:
    """Decide node by node, in the graph's order. `types` are those of its tensors, by `tensor_types`."""
    from onnx import numpy_helper

    errors = {name: rounding_error(numpy_helper.to_array(weight), half) for name, weight in weights.items()}
    masked = _before_softmax(graph)
    telling = {name: peak for name, peak in peaks.items() if name not in masked}
    facts = _Facts(half=half, types=types, weight_errors=errors, peaks=telling, opset=opset)
    half_tensors = {value.name for value in graph.input} if half_inputs else set()
    outputs = {value.name for value in graph.output}
    low: list[bool] = []
    kept: dict[str, str] = {}
    for node in graph.node:
        reason = _reason_to_keep(node, facts, outputs) if _computes_floats(node, types) else ""
        works_low = _computes_floats(node, types) and not reason and _worth_it(node, facts, half_tensors)
        low.append(works_low)
        if reason:
            kept[node.name or node.output[0]] = reason
        if works_low:
            half_tensors.update(name for name in node.output if types.get(name) == FLOAT)
    return HalvingPlan(
        low=tuple(low),
        half_tensors=frozenset(name for name in half_tensors if types.get(name) == FLOAT),
        kept=kept,
    )


def _before_softmax(graph: GraphProto) -> set[str]:
    """Return the tensors from a softmax back to the products.

    Masks make them huge and negative, and that does no harm there.
    """
    makers = {name: node for node in graph.node for name in node.output}
    found: set[str] = set()
    open_names = [node.input[0] for node in graph.node if node.op_type == "Softmax"]
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        found.add(name)
        if name in makers and makers[name].op_type in LEADS_TO_SOFTMAX:
            open_names.extend(makers[name].input)
    return found


def _computes_floats(node: NodeProto, types: Mapping[str, int]) -> bool:
    return node.op_type not in READS_ANY_TYPE and any(types.get(name) == FLOAT for name in node.input)


def _reason_to_keep(node: NodeProto, facts: _Facts, outputs: Collection[str]) -> str:
    """Return the reason why the node must stay in fp32, in words; "" if there is none."""
    names = [name for name in (*node.input, *node.output) if name]
    nested = any(attribute.g.node or attribute.graphs for attribute in node.attribute)
    reasons = {
        "not a plain ONNX operator": node.domain not in {"", "ai.onnx"} or nested,
        "the types of its tensors are not known": any(name not in facts.types for name in names),
        f"{node.op_type} loses digits or overflows": node.op_type in DELICATE
        or (node.op_type == "Softmax" and node.output[0] in outputs),
        f"{node.op_type} gives other answers for rounded values": node.op_type in EXACT,
        "it gives statistics too": node.op_type in NORMALIZATIONS and len(node.output) > 1,
        f"scales are fp32 before opset {OPSET_OF_HALF_SCALES}": node.op_type in Q_DQ
        and facts.opset < OPSET_OF_HALF_SCALES,
    }
    return next((reason for reason, holds in reasons.items() if holds), "") or _unsafe_values(node, names, facts)


def _unsafe_values(node: NodeProto, names: Collection[str], facts: _Facts) -> str:
    """Return the reason why known values forbid half precision, in words; "" if there is none."""
    peak = max((facts.peaks.get(name, 0.0) for name in names), default=0.0)
    if not peak <= SAFE_SHARE * facts.half.largest:
        return f"magnitudes reach {peak:.3g}"
    for name in node.input:
        error = facts.weight_errors.get(name, 0.0)
        if error > LOSS * facts.half.unit:
            return f"rounding {name} loses {error:.0%}" if error < 1 else f"{name} does not survive rounding"
    return ""


def _worth_it(node: NodeProto, facts: _Facts, half_tensors: Collection[str]) -> bool:
    """False for a cheap node all of whose inputs are fp32 results: half would only add casts and lose digits."""
    if node.op_type in HEAVY:
        return True
    floats = [name for name in node.input if facts.types.get(name) == FLOAT and name not in facts.weight_errors]
    return not floats or any(name in half_tensors for name in floats)


PEAK_SAMPLES = 8
"""Magnitudes inside the model are observed on at most 8 samples."""


def observed_peaks(model: Model, samples: Samples) -> dict[str, float]:
    """Return the largest magnitude in each fp32 result inside the model, over some samples; empty if that fails.

    If samples differ a lot, others will give larger ones.
    """
    import onnx

    proto = inlined(model.graph.own())
    types = tensor_types(proto)
    results = computed_from_inputs(proto.graph) & {name for node in proto.graph.node for name in node.output}
    watched = {name: f"{name}__peak" for name in results if types.get(name) == FLOAT}
    for name, peak in watched.items():
        size, make = f"{peak}_size", onnx.helper.make_node
        proto.graph.node.append(make("Abs", [name], [size], name=f"{peak}/abs"))
        proto.graph.node.append(make("ReduceMax", [size], [peak], name=f"{peak}/max", keepdims=0))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(peak, FLOAT, []))
    with scratch_folder("peaks") as folder:
        try:
            write_model(proto, folder / "model.onnx", dict(model.external))
            seen = run_model(folder / "model.onnx", samples.first(PEAK_SAMPLES).feeds(1))
        except (RunFailed, OSError, ValueError):
            return {}
    return {name: max(float(result[peak]) for result in seen) for name, peak in watched.items()}
