"""Time and work of an engine's layers, read from the output of profilers. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from optimizer.engines.builder import BYTES_OF, Layer
from search.records.recommendation import Bound

BYTES_OF_TYPE = {
    "float": 4, "float16": 2, "bfloat16": 2, "double": 8, "bool": 1, "int8": 1, "uint8": 1, "int16": 2,
    "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float8e4m3fn": 1, "float8e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by ONNX Runtime's name of its type."""

EXPLAINED_SHARE = 0.25
"""Arithmetic or memory traffic bounds a layer if it takes at least 25 % of the layer's time at the ceiling. If
neither does, the layer's time is overhead."""

_PRODUCTS = ("MatMul", "Gemm")
_OPAQUE = (
    "Attention", "LSTM", "GRU", "RNN", "Einsum", "If", "Loop", "Scan",
    "Softmax", "Norm", "Exp", "Log", "Erf", "Gelu", "Tanh", "Sigmoid", "Swish", "Silu", "Pow", "Sqrt",
    "Sin", "Cos", "Resize", "TopK", "NonMaxSuppression",
)  # fmt: skip
"""Parts of names of operators that do more work than their shapes show. Some compute exponentials and the like: on
a CPU, one takes as long as dozens of multiplications."""

Shapes = list[tuple[int, tuple[int, ...]]]
"""(bytes per element, shape) of each tensor, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """A layer's mean ms per execution. `flops` and `bytes_moved` are its work, None if not known.

    `weight_bytes` is the part of the bytes that is the same for every batch size.
    """

    name: str
    operator: str
    ms: float
    flops: float | None = None
    bytes_moved: float | None = None
    weight_bytes: float = 0.0


def layers_from_trace(trace: Sequence[Mapping[str, Any]], *, executions: int) -> tuple[LayerTime, ...]:
    """Return the layers of the last `executions` runs in ONNX Runtime's profile, in the order of computation.

    A node that contains others (`If`, `Loop`) counts without them. Times are means over the executions.
    """
    runs = sorted(event["ts"] for event in trace if event.get("name") == "model_run")[-executions:]
    if not runs:
        return ()
    kernels = sorted(
        (
            event
            for event in trace
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= runs[0]
        ),
        key=lambda event: (event["ts"], -event["dur"]),
    )
    own_us = _own_us(kernels)
    found: dict[str, LayerTime] = {}
    for event, us in zip(kernels, own_us, strict=True):
        name, arguments = event["name"].removesuffix("_kernel_time"), event["args"]
        ms = us / 1000 / len(runs)
        known = found.get(name)
        if known is None:
            inputs, outputs = (_shapes(arguments.get(f"{kind}_type_shape", ())) for kind in ("input", "output"))
            operator = str(arguments.get("op_name", "?"))
            found[name] = LayerTime(
                name=name,
                operator=operator,
                ms=ms,
                flops=flops_of(operator, [shape for _, shape in inputs], [shape for _, shape in outputs]),
                bytes_moved=float(sum(size * math.prod(shape) for size, shape in [*inputs, *outputs])),
                weight_bytes=float(arguments.get("parameter_size", 0)),
            )
        else:
            found[name] = replace(known, ms=known.ms + ms)
    return tuple(found.values())


def _own_us(kernels: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return each event's duration without the events inside it; they are sorted by start, outer ones first."""
    own = [float(event["dur"]) for event in kernels]
    ends = [event["ts"] + event["dur"] for event in kernels]
    around: list[int] = []
    for index, event in enumerate(kernels):
        while around and event["ts"] >= ends[around[-1]]:
            around.pop()
        if around and event["dur"] and ends[index] <= ends[around[-1]]:
            own[around[-1]] -= event["dur"]
        around.append(index)
    return [max(0.0, us) for us in own]


def _shapes(described: Iterable[Mapping[str, Sequence[int]]]) -> Shapes:
    return [
        (BYTES_OF_TYPE.get(kind, 0), tuple(map(int, shape)))
        for tensor in described
        for kind, shape in tensor.items()
    ]


def flops_of(operator: str, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]]) -> float | None:
    """Return the multiplications and additions of one execution; None if not known.

    Convolutions and matrix products, also quantized and fused ones, are counted by their shapes. Operators that
    only pass over their elements count as 0.
    """
    if operator != "Expand" and any(word in operator for word in _OPAQUE):
        return None
    if "Conv" in operator:
        return _convolution_flops(inputs, outputs, transposed="Transpose" in operator)
    if any(word in operator for word in _PRODUCTS):
        return 2.0 * math.prod(inputs[0]) * outputs[0][-1] if inputs and outputs and outputs[0] else None
    return 0.0


def _convolution_flops(
    inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], *, transposed: bool
) -> float | None:
    """Return the FLOPs of a convolution; None if its kernel is not found.

    The kernel is the first further input with as many axes as the data: scales and biases have fewer.
    """
    kernel = next((shape for shape in inputs[1:] if len(shape) == len(inputs[0]) and len(shape) > 2), None)
    if kernel is None or not outputs:
        return None
    return 2.0 * math.prod(inputs[0] if transposed else outputs[0]) * math.prod(kernel[1:])


def with_work(times: Iterable[LayerTime], works: Iterable[LayerTime]) -> tuple[LayerTime, ...]:
    """Return the layers of `times` with the work of the layers of the same names in `works`."""
    known = {layer.name: layer for layer in works}
    return tuple(replace(known[layer.name], ms=layer.ms) if layer.name in known else layer for layer in times)


def with_work_of_nodes(
    layers: Iterable[LayerTime], described: Iterable[Layer], nodes: Mapping[str, LayerTime], *, batch_size: int
) -> tuple[LayerTime, ...]:
    """Return TensorRT's layers with their work, from their own tensors and from the ONNX nodes in them.

    `nodes` are the nodes of the fp32 model at batch 1, by name. A node that became several layers counts in the
    one that is named after it, else in the first. Layers without a description are returned unchanged.
    """
    by_name = {layer.name: layer for layer in described}
    owners = _owners(by_name.values())
    found = []
    for layer in layers:
        known = by_name.get(layer.name)
        if known is None:
            found.append(layer)
            continue
        mine = [nodes[node] for node in dict.fromkeys(known.nodes) if node in nodes and owners[node] == known.name]
        flops = [node.flops for node in mine]
        narrowest = min((BYTES_OF[precision] for precision in known.precisions), default=4)
        own_bytes = known.bytes_moved(batch_size)
        weight_bytes = sum(node.weight_bytes for node in mine) * narrowest / 4
        found.append(
            replace(
                layer,
                operator=known.kind,
                flops=None if None in flops else batch_size * sum(value or 0.0 for value in flops),
                bytes_moved=None if own_bytes is None else own_bytes + weight_bytes,
                weight_bytes=weight_bytes,
            )
        )
    return tuple(found)


def _owners(described: Iterable[Layer]) -> dict[str, str]:
    """Return the name of the one layer in which each node counts."""
    owners: dict[str, str] = {}
    for layer in described:
        for node in layer.nodes:
            if node not in owners or (node in layer.name and node not in owners[node]):
                owners[node] = layer.name
    return owners


def bound_of(layer: LayerTime, *, flops_per_s: float | None, bytes_per_s: float | None) -> Bound:
    """Return the layer's bound at these ceilings; "unknown" if a figure is missing."""
    if layer.flops is None or layer.bytes_moved is None or not flops_per_s or not bytes_per_s:
        return "unknown"
    arithmetic_ms = 1000 * layer.flops / flops_per_s
    bytes_ms = 1000 * layer.bytes_moved / bytes_per_s
    if not max(arithmetic_ms, bytes_ms) >= EXPLAINED_SHARE * layer.ms:
        return "overhead"
    return "arithmetic" if arithmetic_ms >= bytes_ms else "bytes"


Name = TypeVar("Name", bound=str)


def shares(parts: Iterable[tuple[Name, float]]) -> dict[Name, float]:
    """Return each name's share of the sum, largest first; empty if the sum is 0."""
    sums: dict[Name, float] = defaultdict(float)
    for name, value in parts:
        sums[name] += value
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {name: value / whole for name, value in ordered} if whole > 0 else {}
