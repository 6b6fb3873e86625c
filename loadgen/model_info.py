"""What a model takes and gives, from the server's own metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMPY_TYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
    "BF16": np.float32,  # numpy has none; cut to 16 bits when sent
    "BYTES": np.object_,
}  # fmt: skip

MOST_RANK = 32
"""Numpy 1 has no arrays of more dimensions."""

_MOST_TENSORS = 1000
_LONGEST_NAME = 1000
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class Unusable(ValueError):
    """Something in a server's document is not what the protocol has there; the message says which value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output as the server describes it; -1 is a free dimension. The batch is in the shape."""

    name: str
    datatype: str  # of the KServe v2 protocol: FP32, INT64, BYTES...
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The inputs that a request must carry and the outputs that come back.

    `max_batch_size` 0: the model takes no batches, and a shape holds no batch dimension. None: the server does
    not say (it is no Triton, or hides its configuration).
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int | None

    @property
    def batched(self) -> bool:
        """Whether the first dimension of every input is the batch."""
        if self.max_batch_size is not None:
            return self.max_batch_size > 0
        return all(tensor.shape[:1] == (-1,) for tensor in self.inputs)


def model_info(metadata: object, config: object = None) -> ModelInfo:
    """Metadata (`GET /v2/models/M`) and configuration (`.../config`, None where there is none) taken together.

    Inputs that the configuration calls optional are left out. Raises Unusable.
    """
    described, configured = _object(metadata, "the metadata"), _object(config or {}, "the configuration")
    optional = {
        entry.get("name")
        for entry in map(_an_input, _list(configured, "input"))
        if entry.get("optional") and isinstance(entry.get("name"), str)
    }
    inputs = [_tensor(entry) for entry in _list(described, "inputs")]
    outputs = [_tensor(entry) for entry in _list(described, "outputs")]
    names = [tensor.name for tensor in inputs]
    if len(set(names)) < len(names):
        raise Unusable("two inputs have the same name")
    return ModelInfo(
        name=_name(described),
        inputs=tuple(tensor for tensor in inputs if tensor.name not in optional),
        outputs=tuple(outputs),
        max_batch_size=whole_number(configured.get("max_batch_size", 0), least=0) if configured else None,
    )


def whole_number(value: object, *, least: int | None = None) -> int:
    """An integer, which gRPC's JSON has as digits in a text. Raises Unusable for anything else."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise Unusable(f"{_short(value)} is no whole number of 64 bits")
    if least is not None and value < least:
        raise Unusable(f"{value} is less than {least}")
    return value


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unusable(f"{what} is no JSON object: {_short(value)}")
    return value


def _an_input(entry: object) -> Mapping[str, Any]:
    return _object(entry, "an input in the configuration")


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise Unusable(f"{key} is no list: {_short(entries)}")
    if len(entries) > _MOST_TENSORS:
        raise Unusable(f"{len(entries):,} {key}, over {_MOST_TENSORS:,}")
    return entries


def _tensor(entry: object) -> Tensor:
    described = _object(entry, "an input or output")
    name, datatype, shape = _name(described), described.get("datatype"), described.get("shape", [])
    if not isinstance(datatype, str):
        raise Unusable(f"{name} has the datatype {_short(datatype)}")
    if not isinstance(shape, list) or len(shape) > MOST_RANK:
        rank = f"{len(shape)} dimensions, over {MOST_RANK}" if isinstance(shape, list) else _short(shape)
        raise Unusable(f"{name} has the shape {rank}")
    return Tensor(
        name=name, datatype=datatype[:_LONGEST_NAME], shape=tuple(whole_number(size, least=-1) for size in shape)
    )


def _name(described: Mapping[str, Any]) -> str:
    name = described.get("name")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise Unusable(f"a name is {_short(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Unusable(f"a name is no text in UTF-8: {name!a}") from None
    return name


def _short(value: object) -> str:
    """A value as far as it fits into a message; of nested ones no more than their kind."""
    return ascii(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
