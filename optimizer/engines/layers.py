"""The precision in which an engine really computes, read from the engine inspector's description."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

_LAYER = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: (?P<inputs>.*?), Outputs: (?P<rest>.*)$"
)
_TENSOR = re.compile(r"Dimensions: \[([^\]]*)\], Format/Datatype: ([^}]*)")
_FORMAT = re.compile(r"Format/Datatype: ([^}]*)")
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_PRECISIONS = (  # the first pattern that TensorRT's text for a tensor's format contains
    ("bf16", re.compile(r"bfloat16|bf16", re.IGNORECASE)),
    ("fp16", re.compile(r"\bhalf\b|\bfp16\b", re.IGNORECASE)),
    ("fp8", re.compile(r"\bfp8\b|\be4m3\b", re.IGNORECASE)),
    ("int8", re.compile(r"\bint8\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\bfloat\b|\bfp32\b", re.IGNORECASE)),
)

BYTES_OF = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an engine: the precisions of its inputs, and the ONNX nodes that it contains.

    `tensors` are (precision or None, dimensions) of the tensors that it reads and writes, -1 for the batch.
    """

    name: str
    kind: str
    precisions: frozenset[str]
    nodes: tuple[str, ...]
    tensors: tuple[tuple[str | None, tuple[int, ...]], ...] = ()

    def bytes_moved(self, batch_size: int) -> int | None:
        """Return the bytes that it reads and writes without its weights; None if more than the batch is open.

        An element of a type that is not in `BYTES_OF` counts as four bytes.
        """
        if any(size < 0 for _, dims in self.tensors for size in dims[1:]):
            return None
        return sum(
            BYTES_OF.get(precision or "", 4) * math.prod(batch_size if size < 0 else size for size in dims)
            for precision, dims in self.tensors
        )


def layers_from_description(text: str) -> tuple[Layer, ...]:
    """Return the layers from the inspector's one-line format, also used in the builder's log; skip other lines."""
    found = (_LAYER.match(line.strip()) for line in text.splitlines())
    return tuple(
        Layer(
            name=match["name"],
            kind=match["kind"],
            precisions=frozenset(filter(None, map(_precision, _FORMAT.findall(match["inputs"])))),
            nodes=tuple(_NODE.findall(match["rest"])),
            tensors=tuple(
                (_precision(words), tuple(int(size) for size in dims.split(",") if size.strip()))
                for dims, words in _TENSOR.findall(f"{match['inputs']} {match['rest']}")
            ),
        )
        for match in found
        if match
    )


def executed_precisions(layers: tuple[Layer, ...], nodes: frozenset[str], wanted: str) -> Mapping[str, int]:
    """Return the number of these ONNX nodes per executed precision, the `wanted` one first.

    A node that TensorRT split or fused counts as `wanted` if any layer with a part of it reads that precision.
    If no layer names any of the nodes, all layers are counted instead.
    """
    by_node: dict[str, set[str]] = {}
    for layer in layers:
        for node in nodes.intersection(layer.nodes):
            by_node.setdefault(node, set()).update(layer.precisions)
    seen = list(by_node.values()) or [set(layer.precisions) for layer in layers if layer.precisions]
    counts = Counter(wanted if wanted in found else min(found, default="unknown") for found in seen)
    return dict(sorted(counts.items(), key=lambda item: (item[0] != wanted, item[0])))


def _precision(words: str) -> str | None:
    return next((name for name, pattern in _PRECISIONS if pattern.search(words)), None)
