"""How long an engine's layers take and how much they have to do, read from what profilers write. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from optimizer.engine_layers import BYTES_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optimizer.engine_layers import Layer
    from search.engine_profile import Bound

BYTES_OF_TYPE = {
    "float": 4, "float16": 2, "bfloat16": 2, "double": 8, "bool": 1, "int8": 1, "uint8": 1, "int16": 2,
    "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float8e4m3fn": 1, "float8e5m2": 1,
}  # fmt: skip
"""An element, by ONNX Runtime's name of its type."""

EXPLAINED_SHARE = 0.25
"""Of a layer's time that its arithmetic or its bytes must take at the ceiling to be what holds it up."""

_PRODUCTS = ("MatMul", "Gemm")
_OPAQUE = (
    "Attention", "LSTM", "GRU", "RNN", "Einsum", "If", "Loop", "Scan",
    "Softmax", "Norm", "Exp", "Log", "Erf", "Gelu", "Tanh", "Sigmoid", "Swish", "Silu", "Pow", "Sqrt",
    "Sin", "Cos", "Resize", "TopK", "NonMaxSuppression",
)  # fmt: skip
"""Parts of names of operators that have more to do than their shapes say. Steep functions among them: on a CPU an
exponential takes as long as dozens of multiplications."""

Shapes = list[tuple[int, tuple[int, ...]]]
"""(bytes of an element, shape) of each tensor, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """A layer's mean ms in one execution. `flops` and `bytes_moved` are what it has to do; None: not known.

    `weight_bytes` is the part of the bytes that is the same for every batch size.
    """

    name: str
    operator: str
    ms: float
    flops: float | None = None
    bytes_moved: float | None = None
    weight_bytes: float = 0.0


def layers_from_trace(trace: Sequence[Mapping[str, Any]], *, executions: int) -> tuple[LayerTime, ...]:
    """The layers of the last `executions` runs in ONNX Runtime's profile, in the order of computation.

    A node that runs others inside (`If`, `Loop`) counts without them. Times are means over the executions.
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
    """Each event's duration without those inside of it; the events come by start, the outer before the inner."""
    own = [float(event["dur"]) for event in kernels]
    around: list[int] = []
    for index, event in enumerate(kernels):
        while around and event["ts"] >= kernels[around[-1]]["ts"] + kernels[around[-1]]["dur"]:
            around.pop()
        if (
            around
            and event["dur"]
            and event["ts"] + event["dur"] <= (kernels[around[-1]]["ts"] + kernels[around[-1]]["dur"])
        ):
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
    """Multiplications and additions of one execution; 0 for what only passes over its elements, None: not known.

    Convolutions and matrix products, quantized and fused ones too, by what their shapes say.
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
    """The kernel is the first further input with as many axes as the data: scales and biases have fewer."""
    kernel = next((shape for shape in inputs[1:] if len(shape) == len(inputs[0]) and len(shape) > 2), None)
    if kernel is None or not outputs:
        return None
    return 2.0 * math.prod(inputs[0] if transposed else outputs[0]) * math.prod(kernel[1:])


def with_work(times: Iterable[LayerTime], works: Iterable[LayerTime]) -> tuple[LayerTime, ...]:
    """The layers of `times` with what the layers of the same names in `works` have to do."""
    known = {layer.name: layer for layer in works}
    return tuple(replace(known[layer.name], ms=layer.ms) if layer.name in known else layer for layer in times)


def with_work_of_nodes(
    layers: Iterable[LayerTime], described: Iterable[Layer], nodes: Mapping[str, LayerTime], *, batch_size: int
) -> tuple[LayerTime, ...]:
    """TensorRT's layers with what they have to do: its own tensors, and the ONNX nodes that went into them.

    `nodes` are those of the fp32 model at batch 1, by name. A node that became several layers counts in the one
    that is named after it, else in the first. Layers that are not described keep what is known of them.
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
    """The one layer in which each node counts."""
    owners: dict[str, str] = {}
    for layer in described:
        for node in layer.nodes:
            if node not in owners or (node in layer.name and node not in owners[node]):
                owners[node] = layer.name
    return owners


def bound_of(layer: LayerTime, *, flops_per_s: float | None, bytes_per_s: float | None) -> Bound:
    """What holds the layer up, at these ceilings."""
    if layer.flops is None or layer.bytes_moved is None or not flops_per_s or not bytes_per_s:
        return "unknown"
    arithmetic_ms = 1000 * layer.flops / flops_per_s
    bytes_ms = 1000 * layer.bytes_moved / bytes_per_s
    if not max(arithmetic_ms, bytes_ms) >= EXPLAINED_SHARE * layer.ms:
        return "overhead"
    return "arithmetic" if arithmetic_ms >= bytes_ms else "bytes"


Name = TypeVar("Name", bound=str)


def shares(parts: Iterable[tuple[Name, float]]) -> dict[Name, float]:
    """Each name's part of the whole, the largest first; empty where the whole is nothing."""
    sums: dict[Name, float] = defaultdict(float)
    for name, value in parts:
        sums[name] += value
    whole = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return {name: value / whole for name, value in ordered} if whole > 0 else {}
