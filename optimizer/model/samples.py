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
from model_repo.spec import TensorSpec
from optimizer.model.onnx_model import Model, ModelTensor
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


def requests_from_data(payload: Payload, inputs: Sequence[TensorSpec], *, batched: bool) -> list[Tensors]:
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
        raise BadInput(f"--input-data: {what}", fix) from error


def given_samples(model: Model, data: Path | None, count: int) -> Samples | None:
    """Return at most `count` samples of the load's input data, from all over it; None if there are no samples.

    They have the commonest of the shapes, and finite values if any have. Texts are arrays of `str`. Raises
    BadInput for data that the model does not take.
    """
    if data is None or data.suffix == SUFFIX:
        return None
    batched = model.batch != "none"
    shapes = {one.name: one.concrete_shape for one in model.inputs if -1 in one.shape and one.concrete_shape}
    found = requests_from_data(Payload(data_file=data, shapes=shapes), model.inputs, batched=batched)
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
    arrays = {
        tensor.name: _random(random, tensor, count, rows.get(tensor.name), batched=batched)
        for tensor in model.all_inputs
    }
    return Samples(arrays=arrays, source="synthetic", batched=batched)


def request_shape(tensor: ModelTensor, *, batched: bool) -> tuple[int, ...]:
    """Return the shape of one request's input, without the batch."""
    return tuple(int(size) for size in (tensor.sized[1:] if batched else tensor.sized))


def _random(
    random: np.random.Generator, tensor: ModelTensor, count: int, rows: int | None, *, batched: bool
) -> NDArray[Any]:
    shape = (count, *request_shape(tensor, batched=batched))
    if rows is not None and tensor.datatype in VOCABULARY_INPUTS:
        return random.integers(0, rows, size=shape).astype(f"int{tensor.datatype[3:]}")
    return random_tensor(random, tensor.datatype, shape)


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
    """Return the samples in `path`: an array per input, whose first axis counts them. Nothing is unpickled.

    Raises BadInput for missing or unknown names, numbers of samples that differ, shapes and types that do not fit,
    values that are not finite, and a model that takes strings.
    """
    where = f"--calibration-data {path}"
    if model.takes_texts:
        raise BadInput(
            f"{where}: a model that takes strings runs in fp32 alone, which needs no calibration.",
            "Leave it out. Samples for the load, and for the proof of the batch, go to --input-data.",
        )
    arrays = _arrays(path, where)
    names = [tensor.name for tensor in model.all_inputs]
    wrong = [name for name in names if name not in arrays] or [name for name in arrays if name not in names]
    if wrong:
        does = "has no array" if wrong[0] in names else "has an array the model takes no input for,"
        raise BadInput(
            f"{where} {does} {wrong[0]!r}; it holds {', '.join(arrays) or 'nothing'}.",
            f"Name the arrays like the model's inputs: {', '.join(names)}.",
        )
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise BadInput(
            f"{where} holds different numbers of samples, or none ({listed}).",
            "The first axis of every array counts the samples, so give all arrays the same first size.",
        )
    batched = model.batch != "none"
    checked = {
        tensor.name: _fitting(where, tensor, arrays[tensor.name], batched=batched) for tensor in model.all_inputs
    }
    return Samples(arrays=checked, source="given", batched=batched)


def _arrays(path: Path, where: str) -> dict[str, NDArray[Any]]:
    try:
        if not path.exists():
            raise BadInput(f"{where} does not exist.", "Check the path.")
        if path.is_dir():
            files = (file for file in sorted(path.glob("*.npy")) if file.is_file())
            return {file.stem: np.load(file, allow_pickle=False) for file in files}
        if not path.is_file():
            raise OSError("it is not a file")
        with path.open("rb") as file:  # numpy would leave it open if it is damaged
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise OSError("it is a single array without a name")
            return {name: loaded[name] for name in loaded.files}
    except BadInput:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds of errors for a damaged file
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(
            f"{where} cannot be read: {why}",
            "Write it with numpy.savez(PATH, INPUT=array, ...), or a folder of INPUT.npy files, without objects.",
        ) from error


def _fitting(where: str, tensor: ModelTensor, array: NDArray[Any], *, batched: bool) -> NDArray[Any]:
    dims = tensor.dims[1:] if batched else tensor.dims
    sizes = array.shape[1:]
    fits = len(sizes) == len(dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, sizes, strict=True)
    )
    if not fits:
        raise BadInput(
            f"{where}: a sample of {tensor.name} has shape {_shape(sizes)}, the model takes {_shape(dims)}.",
            "Save the samples as the model takes them, one after the other along a new first axis.",
        )
    wanted = np.dtype(NUMPY_TYPES[tensor.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.argwhere(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0, 0])
        raise BadInput(
            f"{where}: sample {bad} of {tensor.name} holds NaN or infinite values.",
            "Leave such samples out: one of them would spoil every range that is derived.",
        )
    if array.dtype != wanted and not (array.dtype.kind in "fiu" and wanted.kind == "f"):
        same_kind = array.dtype.kind in "iu" and wanted.kind in "iu"
        if not same_kind or not np.array_equal(array, array.astype(wanted)):
            raise BadInput(
                f"{where}: {tensor.name} is {array.dtype}, the model takes {tensor.datatype}.",
                f"Save it as numpy.{wanted.name}.",
            )
    return np.ascontiguousarray(array, dtype=wanted)


def _shape(sizes: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"
