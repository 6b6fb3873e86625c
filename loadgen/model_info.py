"""What a model takes and gives, from the server's own metadata."""

from __future__ import annotations

import math
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

    @property
    def least_answer_bytes(self) -> int:
        """No answer with data is shorter: a byte for each number of the smallest outputs; texts may be empty."""
        numbers = [tensor.shape for tensor in self.outputs if tensor.datatype != "BYTES"]
        return sum(math.prod(max(1, size) for size in shape) for shape in numbers)


def model_info(metadata: Mapping[str, Any], config: Mapping[str, Any] | None) -> ModelInfo:
    """Metadata (`GET /v2/models/M`) and configuration (`.../config`, None where there is none) taken together.

    Inputs that the configuration calls optional are left out.
    """
    config = config or {}
    optional = {entry["name"] for entry in config.get("input", ()) if entry.get("optional")}
    return ModelInfo(
        name=str(metadata["name"]),
        inputs=tuple(_tensor(entry) for entry in metadata.get("inputs", ()) if entry["name"] not in optional),
        outputs=tuple(_tensor(entry) for entry in metadata.get("outputs", ())),
        max_batch_size=int(config.get("max_batch_size", 0)) if config else None,
    )


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    return Tensor(
        name=str(entry["name"]),
        datatype=str(entry["datatype"]),
        shape=tuple(int(size) for size in entry.get("shape", ())),
    )
