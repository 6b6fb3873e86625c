"""Values for inputs of which only the type and the shape are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.errors import PayloadError
from loadgen.model_info import NUMPY_TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def random_tensor(rng: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Values that any model can take: normal floats, integers 0 or 1 (ids, masks), the text `tritune`."""
    if datatype not in NUMPY_TYPES:
        raise PayloadError(f"{datatype} is no datatype that can be sent.\nKnown: {', '.join(NUMPY_TYPES)}.")
    if datatype == "BYTES":
        return np.full(shape, b"tritune", dtype=np.object_)
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        return rng.standard_normal(shape, dtype=np.float32).astype(NUMPY_TYPES[datatype])
    return rng.integers(0, 2, size=shape).astype(NUMPY_TYPES[datatype])
