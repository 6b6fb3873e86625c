"""Samples from a file, cut into requests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.errors import PayloadError
from loadgen.lengths import SUFFIX, lengths_from_file, samples_of_lengths
from loadgen.model_info import NUMPY_TYPES, ModelInfo, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loadgen.plan import Payload

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Inputs and their shapes in one sample, by name."""


def samples_from_file(path: Path, info: ModelInfo, payload: Payload) -> list[dict[str, NDArray[Any]]]:
    """One request for every `batch_size` samples of the file that are picked, in order. Raises PayloadError.

    `.npz`: an array for each input, the first dimension counts the samples. `.json`: {"data": [sample, ...]}, a
    sample being {"input": nested lists} or {"input": {"content": flat list, "shape": [...]}}. `.txt`: a length a
    line, the size of all free dimensions; the values are random. Samples that do not fill a last batch begin again
    with the first.
    """
    if path.suffix == SUFFIX:
        found: Sequence[Mapping[str, Any]] = samples_of_lengths(lengths_from_file(path), info, payload.seed)
    else:
        found = _samples(path)
    picked = range(len(found)) if payload.picked is None else payload.picked
    samples = [(number, found[number]) for number in picked]
    if not samples:
        raise PayloadError(f"{path} is empty.\nGive at least one sample.")
    tensors = [
        {t.name: _fitting(path, number, sample, t, info) for t in info.inputs} for number, sample in samples
    ]
    if not info.batched:
        return tensors
    size = payload.batch_size
    count = -(-len(tensors) // size)
    batches = [[tensors[(size * turn + i) % len(tensors)] for i in range(size)] for turn in range(count)]
    try:
        return [{t.name: np.stack([sample[t.name] for sample in batch]) for t in info.inputs} for batch in batches]
    except ValueError as error:
        raise PayloadError(
            f"the samples of {path} differ in shape, so {size} of them make no batch.\n"
            "Use batch size 1, or pad them."
        ) from error


def shapes_in_file(path: Path) -> list[Shapes]:
    """The shape of each sample of a file: pairs of input and shape, by name. Raises PayloadError."""
    if path.suffix == SUFFIX:
        found: list[Shapes] = [(("length", (length,)),) for length in lengths_from_file(path)]
    else:
        found = [_shapes(path, number, sample) for number, sample in enumerate(_samples(path))]
    if not found:
        raise PayloadError(f"{path} is empty.\nGive at least one sample.")
    return found


def _shapes(path: Path, number: int, sample: Mapping[str, Any]) -> Shapes:
    try:
        return tuple(sorted((name, np.shape(values)) for name, values in sample.items()))
    except ValueError as error:
        raise PayloadError(
            f"sample {number} of {path} has lists of different lengths within a tensor.\nGive it one shape."
        ) from error


def _samples(path: Path) -> list[Mapping[str, Any]]:
    try:
        if not path.is_file():
            raise OSError("it is no file")
        return _from_npz(path) if path.suffix == ".npz" else _from_json(path)
    except Exception as error:  # a damaged file leads numpy, zipfile and json to errors of a dozen kinds
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise PayloadError(
            f"{path} holds no samples ({why}).\nGive an .npz or a JSON file, or a .txt of lengths."
        ) from error


def _from_npz(path: Path) -> list[Mapping[str, Any]]:
    with path.open("rb") as file:  # numpy would leave it open where it is damaged
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise TypeError("it is a single array without a name")
        columns = {name: arrays[name] for name in arrays.files}
    lengths = {name: len(values) if values.ndim else 0 for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the arrays hold different numbers of samples: {lengths}")
    return [{name: values[row] for name, values in columns.items()} for row in range(next(iter(lengths.values())))]


def _from_json(path: Path) -> list[Mapping[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    data = document["data"] if isinstance(document, dict) else document
    return [{name: _json_values(values) for name, values in sample.items()} for sample in data]


def _json_values(values: Any) -> Any:
    if isinstance(values, dict):
        content = np.asarray(values["content"])
        return content.reshape(values["shape"]) if "shape" in values else content
    return values


def _fitting(path: Path, number: int, sample: Mapping[str, Any], tensor: Tensor, info: ModelInfo) -> NDArray[Any]:
    """One sample's values for one input, in its type and shape; a flat list fits a shape of the same size."""
    own = tensor.shape[1:] if info.batched else tensor.shape
    if tensor.name not in sample:
        raise PayloadError(f"sample {number} of {path} has no input {tensor.name}.\nIt has {', '.join(sample)}.")
    try:
        if np.iscomplexobj(sample[tensor.name]):
            raise TypeError("it is complex")
        values = np.asarray(sample[tensor.name], dtype=NUMPY_TYPES[tensor.datatype])
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadError(
            f"sample {number} of {path}: {tensor.name} is no {tensor.datatype} ({error}).\nCheck the file."
        ) from error
    if len(values.shape) == len(own) and all(
        size in (-1, got) for size, got in zip(own, values.shape, strict=True)
    ):
        return values
    if -1 not in own and values.size == int(np.prod(own)):
        return values.reshape(own)
    raise PayloadError(
        f"sample {number} of {path}: {tensor.name} has shape {values.shape}, and the model takes {own}.\n"
        "A -1 is free; the batch is not part of a sample."
    )
