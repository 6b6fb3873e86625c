"""Read a model's inputs and outputs from the server's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PayloadError
from loadgen.json_values import Unusable, json_list, json_object, short, whole_number

NUMPY_TYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
    "BF16": np.float32,  # numpy has none; cut to 16 bits when sent
    "BYTES": np.object_,
}  # fmt: skip


def bytes_per_value(datatype: str) -> int:
    """Return the bytes that an element takes in a message; of a text the least, and 1 for an unknown type."""
    if datatype in ("BYTES", "BF16"):
        return 4 if datatype == "BYTES" else 2  # a text has a prefix of four bytes
    return int(np.dtype(NUMPY_TYPES.get(datatype, np.uint8)).itemsize)


Parameter = bool | int | str
"""The value of a parameter of a request."""

MAX_RANK = 32
"""A tensor of more dimensions is refused: NumPy 1 has no such arrays."""

_LONGEST_NAME = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output of a model; -1 is a free dimension. The batch is in the shape."""

    name: str
    datatype: str  # of the KServe v2 protocol: FP32, INT64, BYTES...
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise Unusable(f"{self.name} has the shape {len(self.shape)} dimensions, over {MAX_RANK}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The inputs that a request must carry, those that it may, and the outputs that come back.

    `max_batch_size` 0: the model takes no batches, and a shape has no batch dimension. None: unknown (the server
    is not Triton, or hides its configuration); `unconfigured` then has the server's reason, and `whole_shapes` is
    True if shapes are taken to have no batch dimension although the first one is free. If not `all_outputs`,
    requests ask for `outputs` by name, and others need not come back. `instances` execute it. Each request carries
    `parameters`.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int | None
    optional: tuple[Tensor, ...] = ()
    instances: int = 1
    unconfigured: str = ""
    whole_shapes: bool = False
    all_outputs: bool = True
    parameters: tuple[tuple[str, Parameter], ...] = ()

    def carried_by(self, tensors: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return the inputs that a request with these tensors carries, in the model's order."""
        return tuple(tensor for tensor in (*self.inputs, *self.optional) if tensor.name in tensors)

    @property
    def batched(self) -> bool:
        """True if the first dimension of every input is the batch."""
        if self.max_batch_size is not None:
            return self.max_batch_size > 0
        return not self.whole_shapes and all(tensor.shape[:1] == (-1,) for tensor in self.inputs)


def model_info(metadata: object, config: object = None) -> ModelInfo:
    """Combine metadata (`GET /v2/models/M`) and configuration (`.../config`, None if there is none).

    Of a model whose configuration marks all inputs as optional, all are needed. NVIDIA Dynamo's shapes have no
    batch, as in the configuration, also those of tensors that this leaves out. Raises Unusable, and PayloadError
    for a model that single requests say nothing about.
    """
    described, configured = json_object(metadata, "the metadata"), json_object(config or {}, "the configuration")
    _check_kind(_name(described), configured)
    optional = {
        entry.get("name")
        for entry in map(_an_input, json_list(configured, "input"))
        if entry.get("optional") and isinstance(entry.get("name"), str)
    }
    most_rows = whole_number(configured.get("max_batch_size", 0), least=0) if configured else None
    inputs, outputs = ([*map(_tensor, json_list(described, name))] for name in ("inputs", "outputs"))
    ranks = _ranks(configured) if most_rows else {}
    if any(len(tensor.shape) == ranks.get(tensor.name) for tensor in (*inputs, *outputs)):
        inputs, outputs = (
            [replace(one, shape=(-1, *one.shape)) for one in tensors] for tensors in (inputs, outputs)
        )
    names = [tensor.name for tensor in inputs]
    if len(set(names)) < len(names):
        raise Unusable("two inputs have the same name")
    needed = tuple(tensor for tensor in inputs if tensor.name not in optional)
    return ModelInfo(
        name=_name(described),
        inputs=needed or tuple(inputs),
        optional=tuple(tensor for tensor in inputs if tensor.name in optional) if needed else (),
        outputs=tuple(outputs),
        max_batch_size=most_rows,
        instances=max(1, sum(map(_instances, json_list(configured, "instance_group")))),
    )


def _check_kind(name: str, configured: Mapping[str, Any]) -> None:
    """Raise PayloadError for a model whose requests belong to sequences, or have any number of answers."""
    decoupled = json_object(configured.get("model_transaction_policy") or {}, "its policy").get("decoupled")
    if decoupled or configured.get("sequence_batching") is not None:
        kind = (
            "decoupled (a request may get many answers)" if decoupled else "a sequence model (of joint requests)"
        )
        raise PayloadError(
            f"{name} is {kind}; loadtest sends single requests, with one answer each.\n"
            "Load a model that takes such requests; perf_analyzer sends sequences and streams."
        )


def _ranks(configured: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of dimensions of each tensor in the configuration, which leaves the batch out."""
    entries = [*map(_an_input, json_list(configured, "input")), *map(_an_input, json_list(configured, "output"))]
    return {str(one.get("name")): len(one["dims"]) for one in entries if isinstance(one.get("dims"), list)}


def _instances(entry: object) -> int:
    group = json_object(entry, "an instance group")
    return whole_number(group.get("count", 1), least=0) * max(1, len(json_list(group, "gpus")))


def _an_input(entry: object) -> Mapping[str, Any]:
    return json_object(entry, "an input or output in the configuration")


def _tensor(entry: object) -> Tensor:
    """Return a tensor of the metadata."""
    described = json_object(entry, "an input or output")
    name, datatype, shape = _name(described), described.get("datatype"), described.get("shape", [])
    if not isinstance(datatype, str) or len(datatype) > _LONGEST_NAME:
        raise Unusable(f"{name} has the datatype {short(datatype)}")
    if not isinstance(shape, list):
        raise Unusable(f"{name} has the shape {short(shape)}")
    sizes = tuple(whole_number(size, least=-1) for size in shape)
    return Tensor(name=name, datatype=protocol_type(datatype), shape=sizes)


def protocol_type(written: str) -> str:
    """Return a datatype as the protocol writes it; some servers use small letters, or names of a configuration."""
    plain = written.upper().removeprefix("TYPE_")
    return "BYTES" if plain == "STRING" else plain


def _name(described: Mapping[str, Any]) -> str:
    name = described.get("name")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise Unusable(f"a name is {short(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Unusable(f"a name is not UTF-8: {name!a}") from None
    return name


def texts_in(data: bytes) -> list[bytes]:
    """Return the texts of a tensor of type BYTES, each after its length in four bytes; none for other bytes."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found if at == len(data) else []


def numbers_in(data: bytes, datatype: str) -> NDArray[Any]:
    """Return the flat values of a tensor of numbers; BF16 becomes float32. Raises LookupError, ValueError."""
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.dtype(NUMPY_TYPES[datatype]).newbyteorder("<"))
