"""Inputs to try a model on: given ones, or random ones where none are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loadgen.model_info import NUMPY_TYPES
from loadgen.random_inputs import random_tensor
from optimizer.onnx_files import load_proto

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from onnx import GraphProto

    from optimizer.onnx_model import Model, ModelTensor
    from optimizer.onnx_run import Tensors

VOCABULARY_INPUTS = ("INT32", "INT64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs for a model; the first axis of every array counts the samples, and what follows is one request.

    `batched` says whether requests can be joined along a batch axis.
    """

    arrays: Mapping[str, NDArray[Any]]  # (count, *request shape without the batch)
    source: Literal["given", "synthetic"]
    batched: bool

    def __post_init__(self) -> None:
        counts = {name: len(array) for name, array in self.arrays.items()}
        if len(set(counts.values())) != 1 or not all(counts.values()):
            raise ValueError(f"inputs need one sample at least and equally many: {counts}")

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(next(iter(self.arrays.values())))

    def first(self, count: int) -> Samples:
        """The first `count` samples, or all if there are fewer."""
        return self._picked(slice(None, count))

    def _picked(self, which: slice) -> Samples:
        return replace(self, arrays={name: array[which] for name, array in self.arrays.items()})

    def parted(self, *, every: int) -> tuple[Samples, Samples]:
        """Two parts without a common sample: the second has each `every`-th; one sample alone is in both."""
        if self.count < 2:
            return self, self
        second = self._picked(slice(None, None, every))
        mask = np.arange(self.count) % every != 0
        return replace(self, arrays={name: array[mask] for name, array in self.arrays.items()}), second

    def feeds(self, batch_size: int) -> list[Tensors]:
        """The samples as the model takes them, `batch_size` at a time; a last batch may be smaller.

        Without a batch axis every sample is a feed of its own, whatever `batch_size`.
        """
        if not self.batched:
            return [{name: array[row] for name, array in self.arrays.items()} for row in range(self.count)]
        return [
            {name: array[start : start + batch_size] for name, array in self.arrays.items()}
            for start in range(0, self.count, batch_size)
        ]


def feeds_for(model: Model, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
    """The same feeds in the types that the model takes: a variant's inputs may be fp16."""
    types = {tensor.name: NUMPY_TYPES[tensor.datatype] for tensor in model.all_inputs}
    return [{name: array.astype(types[name], copy=False) for name, array in feed.items()} for feed in feeds]


def synthetic_samples(model: Model, count: int, *, seed: int) -> Samples:
    """Random requests: normal floats; integers that look up a table are drawn from all of it, others are 0 or 1.

    Needs all shapes (`with_shapes`). Same seed, same samples.
    """
    random = np.random.default_rng(seed)
    rows = _table_rows(load_proto(model.path).graph)
    batched = model.batch != "none"
    arrays = {
        tensor.name: _random(random, tensor, count, rows.get(tensor.name), batched=batched)
        for tensor in model.all_inputs
    }
    return Samples(arrays=arrays, source="synthetic", batched=batched)


def request_shape(tensor: ModelTensor, *, batched: bool) -> tuple[int, ...]:
    """The shape of one request's input, without the batch."""
    return tuple(int(size) for size in (tensor.sized[1:] if batched else tensor.sized))


def _random(
    random: np.random.Generator, tensor: ModelTensor, count: int, rows: int | None, *, batched: bool
) -> NDArray[Any]:
    shape = (count, *request_shape(tensor, batched=batched))
    if rows is not None and tensor.datatype in VOCABULARY_INPUTS:
        return random.integers(0, rows, size=shape).astype(f"int{tensor.datatype[3:]}")
    return random_tensor(random, tensor.datatype, shape)


def _table_rows(graph: GraphProto) -> dict[str, int]:
    """For inputs that choose rows of a constant table (Gather), how many rows the smallest such table has."""
    sizes = {tensor.name: tensor.dims for tensor in graph.initializer}
    rows: dict[str, int] = {}
    for node in graph.node:
        if node.op_type != "Gather" or node.input[0] not in sizes:
            continue
        if any(attribute.name == "axis" and attribute.i != 0 for attribute in node.attribute):
            continue
        name = node.input[1]
        rows[name] = min(rows.get(name, sizes[node.input[0]][0]), sizes[node.input[0]][0])
    return rows
