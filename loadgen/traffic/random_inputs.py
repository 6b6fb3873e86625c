"""Draw random values for inputs, and check the memory that a request takes."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PayloadError
from loadgen.traffic.model_info import NUMPY_TYPES, ModelInfo, bytes_per_value

MAX_UNASKED_BYTES = 1 << 30
"""A larger request is sent only if the user gave the shapes that make it so large."""

_BYTES_PER_TEXT = 64  # a Python object and its reference in an array
_COPIES = 5  # of a request while it is built: the numbers as drawn, in their type, as bytes, and in a message


def check_request_size(info: ModelInfo, shapes: Mapping[str, tuple[int, ...]], asked: Collection[str]) -> None:
    """Raise PayloadError if a request takes too much memory. `asked`: the inputs whose shape the user gave."""
    sizes = {
        tensor.name: math.prod(shapes[tensor.name])
        * (_BYTES_PER_TEXT if tensor.datatype == "BYTES" else bytes_per_value(tensor.datatype))
        for tensor in info.inputs
    }
    if sum(size for name, size in sizes.items() if name not in asked) > MAX_UNASKED_BYTES:
        name = max((name for name in sizes if name not in asked), key=sizes.__getitem__)
        raise PayloadError(
            f"input {name} of {info.name} has the shape {list(shapes[name])}: a request would take "
            f"{_words(sum(sizes.values()))}, over {_words(MAX_UNASKED_BYTES)}.\n"
            f"If it has to be so large, ask for it: --shape {name}:... (without the batch)."
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if sum(sizes.values()) * _COPIES > memory:
        raise PayloadError(
            f"a request of {info.name} would take {_words(sum(sizes.values()))}, {_COPIES} times of which do not "
            f"fit into the {_words(memory)} of this machine.\nGive smaller shapes, or a smaller batch."
        )


def _words(size: int) -> str:
    return f"{min(size, 1 << 90) / (1 << 30):,.4g} GiB" if size >= 1 << 30 else f"{size:,} bytes"


def random_tensor(rng: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return values for any model: normal floats, integers 0 or 1 (ids, masks), the text `tritune`."""
    if datatype not in NUMPY_TYPES:
        raise PayloadError(f"the datatype {datatype} cannot be sent.\nKnown: {', '.join(NUMPY_TYPES)}.")
    if datatype == "BYTES":
        return np.full(shape, b"tritune", dtype=np.object_)
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        return rng.standard_normal(shape, dtype=np.float32).astype(NUMPY_TYPES[datatype])
    return rng.integers(0, 2, size=shape).astype(NUMPY_TYPES[datatype])
