"""Which nodes of a graph may work in half precision, and why the others may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizer.half import rounding_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import GraphProto, NodeProto, TensorProto

    from optimizer.half import Half

FLOAT = 1
"""onnx.TensorProto.FLOAT"""

DELICATE = {
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Cos", "Sin", "Exp", "Log", "Pow",
    "Reciprocal", "Softplus", "Sqrt", "CumSum", "CumProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "LogSoftmax", "LpNormalization",
    "LpPool", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "RMSNormalization",
    "LRN", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "Det", "DFT", "STFT", "MelWeightMatrix",
}  # fmt: skip
"""Sums over many elements and functions with a steep slope: they lose digits or overflow.

Softmax and LayerNormalization are not among them: ONNX Runtime and TensorRT read and write half but compute these
in fp32 inside, and an attention whose softmax is fp32 is no longer run as one fused kernel.
"""

EXACT = {
    "ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "RoiAlign", "MaxRoiPool", "Unique", "NonZero", "OneHot",
    "Range", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "GridSample", "AffineGrid", "CastLike",
    "Multinomial", "Bernoulli", "RandomNormalLike", "RandomUniformLike", "EyeLike", "Upsample", "Celu",
    "DynamicQuantizeLinear", "Hardmax", "Mod", "Floor", "Ceil", "Round", "Sign", "IsInf", "IsNaN",
}  # fmt: skip
"""Choices, coordinates and comparisons, where a rounded value gives another answer, and what has no half form."""

READS_ANY_TYPE = {"Cast", "Shape", "Size"}
"""They take whatever type a tensor has, and their result does not depend on it."""

HEAVY = {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention", "DeformConv",
}  # fmt: skip
"""Worth a cast of their inputs. Others stay in fp32 where all they read is fp32."""

FLOAT_POSITIONS = {"Resize": {1, 2}}
"""Inputs that the operator wants in fp32 whatever the type of its data."""

NORMALIZATIONS = {"LayerNormalization", "BatchNormalization"}
Q_DQ = {"QuantizeLinear", "DequantizeLinear"}
OPSET_OF_HALF_SCALES = 19

SAFE_SHARE = 1 / 8
"""Share of the range that magnitudes seen in samples may reach: other inputs give larger ones."""

LEADS_TO_SOFTMAX = {"Add", "Sub", "Mul", "Div", "Where", "Neg", "Cast", "Expand", "Unsqueeze", "Reshape"}

LOSS = 4.0
"""How many units of rounding a weight may lose; ordinary ones lose half a unit, and tiny ones (an epsilon) all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingPlan:
    """`low`: for each node whether it works in half; `half_tensors`: what these give; `kept`: node -> why not."""

    low: tuple[bool, ...]
    half_tensors: frozenset[str]
    kept: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    half: Half
    types: Mapping[str, int]
    weight_errors: Mapping[str, float]  # rounding_error of each fp32 weight
    peaks: Mapping[str, float]
    keep: Collection[str]
    opset: int


def plan_halving(
    graph: GraphProto,
    half: Half,
    *,
    types: Mapping[str, int],
    weights: Mapping[str, TensorProto],
    half_inputs: bool,
    peaks: Mapping[str, float],
    keep: Collection[str],
    opset: int,
) -> HalvingPlan:
    """Decide node by node, in the graph's order. The arguments are those of `casting.cast_to_half`."""
    from onnx import numpy_helper

    errors = {name: rounding_error(numpy_helper.to_array(weight), half) for name, weight in weights.items()}
    masked = _before_softmax(graph)
    telling = {name: peak for name, peak in peaks.items() if name not in masked}
    facts = _Facts(half=half, types=types, weight_errors=errors, peaks=telling, keep=keep, opset=opset)
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
    """What a softmax reads, back to the products: masks make it huge and negative, and that does no harm there."""
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
    """Why the node must stay in fp32, in words; "" where it need not."""
    names = [name for name in (*node.input, *node.output) if name]
    nested = any(attribute.g.node or attribute.graphs for attribute in node.attribute)
    reasons = {
        "asked for": bool({node.name, node.op_type} & set(facts.keep)),
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
    """Whether what is known of the values forbids half precision."""
    peak = max((facts.peaks.get(name, 0.0) for name in names), default=0.0)
    if not peak <= SAFE_SHARE * facts.half.largest:
        return f"magnitudes reach {peak:.3g}"
    for name in node.input:
        error = facts.weight_errors.get(name, 0.0)
        if error > LOSS * facts.half.unit:
            return f"rounding {name} loses {error:.0%}" if error < 1 else f"{name} does not survive rounding"
    return ""


def _worth_it(node: NodeProto, facts: _Facts, half_tensors: Collection[str]) -> bool:
    """Not for a cheap node all of whose inputs are fp32 results: it would only add casts and lose digits."""
    if node.op_type in HEAVY:
        return True
    floats = [name for name in node.input if facts.types.get(name) == FLOAT and name not in facts.weight_errors]
    return not floats or any(name in half_tensors for name in floats)
