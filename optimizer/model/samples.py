"""Inputs to try a model on: random, those of the load, or given as an .npz file or a folder of .npy files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import BadInput, LoadError
from loadgen.spec.plan import Payload
from loadgen.traffic.model_info import NUMPY_TYPES, ModelInfo, Tensor
from loadgen.traffic.payloads import request_tensors
from loadgen.traffic.random_inputs import random_tensor
from loadgen.traffic.samples import SUFFIX
from model_repo.spec import TensorSpec, chosen_shapes
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import Tensors
from search.choices import LARGEST_BATCH

if TYPE_CHECKING:
    from onnx import GraphProto


VOCABULARY_INPUTS = ("INT32", "INT64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Inputs for a model; the first axis of every array counts the samples, the other axes are one request.

    `batched` is True if requests can be joined along a batch axis.
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
        """The number of samples."""
        return len(next(iter(self.arrays.values())))

    def first(self, count: int) -> Samples:
        """Return the first `count` samples, or all if there are fewer."""
        return self._picked(slice(None, count))

    def repeated(self, count: int) -> Samples:
        """Return so many samples; after the last one they begin again."""
        return self.first(count) if count <= self.count else self._picked(np.arange(count) % self.count)

    def _picked(self, which: slice | NDArray[Any]) -> Samples:
        return replace(self, arrays={name: array[which] for name, array in self.arrays.items()})

    def parted(self, *, every: int) -> tuple[Samples, Samples]:
        """Return two parts without a common sample: the second has each `every`-th; a single sample is in both."""
        if self.count < 2:
            return self, self
        second = self._picked(slice(None, None, every))
        return self._picked(np.arange(self.count) % every != 0), second

    def feeds(self, batch_size: int) -> list[Tensors]:
        """Return the samples as the model takes them, `batch_size` at a time; the last batch may be smaller.

        Without a batch axis, every sample is a feed of its own for any `batch_size`.
        """
        if not self.batched:
            return [{name: array[row] for name, array in self.arrays.items()} for row in range(self.count)]
        return [
            {name: array[start : start + batch_size] for name, array in self.arrays.items()}
            for start in range(0, self.count, batch_size)
        ]


def feeds_for(model: Model, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
    """Return the same feeds in the types that the model takes: a variant's inputs may be fp16."""
    types = {tensor.name: NUMPY_TYPES[tensor.datatype] for tensor in model.all_inputs}
    return [{name: array.astype(types[name], copy=False) for name, array in feed.items()} for feed in feeds]


def requests_from_data(
    payload: Payload, inputs: Sequence[TensorSpec], *, batched: bool, option: str = "--input-data"
) -> list[Tensors]:
    """Return the requests that the load makes of its input data. Raises BadInput if the inputs do not take it."""
    first = (-1,) if batched else ()
    info = ModelInfo(
        name="the model",
        inputs=tuple(
            Tensor(name=spec.name, datatype=spec.datatype, shape=(*first, *spec.shape)) for spec in inputs
        ),
        outputs=(),
        max_batch_size=LARGEST_BATCH if batched else 0,
    )
    try:
        return request_tensors(info, payload)
    except LoadError as error:
        what, _, fix = str(error).partition("\n")
        raise BadInput(f"{option}: {what}", fix) from error


def given_samples(model: Model, data: Path | None, count: int) -> Samples | None:
    """Return at most `count` samples of the load's input data, from all over it; None if there are no samples.

    They have the commonest of the shapes, and finite values if any have. Texts are arrays of `str`. Raises
    BadInput for data that the model does not take.
    """
    if data is None or data.suffix == SUFFIX:
        return None
    batched = model.batch != "none"
    payload = Payload(data_file=data, shapes=chosen_shapes(model.inputs))
    found = requests_from_data(payload, model.inputs, batched=batched)
    finite = [one for one in found if all(np.isfinite(x).all() for x in one.values() if x.dtype.kind == "f")]
    by_shape: dict[Any, list[Tensors]] = {}
    for one in finite or found:
        by_shape.setdefault(tuple((name, one[name].shape) for name in sorted(one)), []).append(one)
    alike = max(by_shape.values(), key=len)
    number = min(count, len(alike))
    picked = [alike[at * len(alike) // number] for at in range(number)]
    join = np.concatenate if batched else np.stack
    arrays = {name: join([_as_text(one[name], data) for one in picked]) for name in picked[0]}
    return Samples(arrays=arrays, source="given", batched=batched)


def _as_text(array: NDArray[Any], data: Path) -> NDArray[Any]:
    """Return an array of bytes or texts as ONNX Runtime takes it, others as they are. Raises BadInput."""
    if array.dtype != np.object_:
        return array
    try:
        texts = [one.decode() if isinstance(one, bytes) else one for one in array.ravel()]
    except UnicodeDecodeError as error:
        raise BadInput(
            f"--input-data {data}: {error}.", "Convert its texts to UTF-8, as ONNX has them."
        ) from error
    return np.array(texts, dtype=str).reshape(array.shape)


def synthetic_samples(model: Model, count: int, *, seed: int) -> Samples:
    """Return random requests.

    Floats are normal; integers that look up a table are drawn from all of it, others are 0 or 1. Needs all shapes
    (`with_shapes`). The same seed gives the same samples.
    """
    random = np.random.default_rng(seed)
    rows = _table_rows(model.graph.outline.graph)
    batched = model.batch != "none"
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in model.all_inputs:
        shape = (count, *(int(size) for size in (tensor.sized[1:] if batched else tensor.sized)))
        if tensor.name in rows and tensor.datatype in VOCABULARY_INPUTS:
            drawn = random.integers(0, rows[tensor.name], size=shape)
            arrays[tensor.name] = drawn.astype(NUMPY_TYPES[tensor.datatype])
        else:
            arrays[tensor.name] = random_tensor(random, tensor.datatype, shape)
    return Samples(arrays=arrays, source="synthetic", batched=batched)


def _table_rows(graph: GraphProto) -> dict[str, int]:
    """Return the number of rows of the smallest constant table that each input chooses from (Gather)."""
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


def samples_from_data(path: Path, model: Model) -> Samples:
    """Return the samples for the calibration in `path`, which are in the form of `--input-data`.

    Raises BadInput for samples that the model does not take, that have different shapes, or values that are not
    finite, and for a model that takes strings.
    """
    where = f"--calibration-data {path}"
    if model.takes_texts:
        raise BadInput(
            f"{where}: a model that takes strings runs in fp32 alone, which needs no calibration.",
            "Leave it out. Samples for the load, and for the proof of the batch, go to --input-data.",
        )
    if path.suffix == SUFFIX:
        raise BadInput(f"{where} holds lengths, and ranges are those of real values.", "Give samples, as an .npz.")
    batched = model.batch != "none"
    found = requests_from_data(Payload(data_file=path), model.inputs, batched=batched, option="--calibration-data")
    for name in found[0]:
        for number, one in enumerate(found):
            if one[name].shape != found[0][name].shape:
                raise BadInput(
                    f"{where}: sample {number} of {name} differs in shape from the first.", "Give all one shape."
                )
            if one[name].dtype.kind == "f" and not np.isfinite(one[name]).all():
                raise BadInput(
                    f"{where}: sample {number} of {name} holds NaN or infinite values.",
                    "Leave such samples out: one of them would spoil every range that is derived.",
                )
    join = np.concatenate if batched else np.stack
    return Samples(
        arrays={name: join([one[name] for one in found]) for name in found[0]}, source="given", batched=batched
    )
