"""The two half precisions: their types, ranges, and what rounding to them loses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import TensorProto

HalfName = Literal["fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A half precision. `unit` is its unit roundoff: what rounding loses at most, relative to a normal number."""

    name: HalfName
    onnx_type: int
    dtype: np.dtype[Any]
    largest: float
    unit: float


@cache
def half_named(name: HalfName) -> Half:
    """fp16 has 11 significant bits and ends at 65504; bf16 has 8 and the range of fp32."""
    import ml_dtypes
    from onnx import TensorProto

    if name == "fp16":
        return Half(
            name=name, onnx_type=TensorProto.FLOAT16, dtype=np.dtype(np.float16), largest=65504.0, unit=2.0**-11
        )
    dtype = np.dtype(ml_dtypes.bfloat16)
    largest = (2 - 2.0**-7) * 2.0**127
    return Half(name=name, onnx_type=TensorProto.BFLOAT16, dtype=dtype, largest=largest, unit=2.0**-8)


def rounding_error(values: NDArray[np.float32], half: Half) -> float:
    """What rounding to `half` loses of these values, relative to their root mean square; inf beyond its range.

    A single value beyond the range counts as one at its end: exporters write -3.4e38 where they mean "never".
    """
    if not values.size:
        return 0.0
    values = _saturated(values, half) if values.size == 1 else values
    with np.errstate(over="ignore"):
        back = values.astype(half.dtype).astype(np.float64)
    if not np.array_equal(np.isfinite(back), np.isfinite(values)):
        return np.inf
    finite = np.isfinite(back)
    exact = values[finite].astype(np.float64)
    size = float(np.square(exact).sum())
    lost = float(np.square(back[finite] - exact).sum())
    return float(np.sqrt(lost / size)) if size > 0 else 0.0


def in_half(weight: TensorProto, half: Half, name: str) -> TensorProto:
    """The weight in half precision under a new name; finite numbers stay finite."""
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    return numpy_helper.from_array(_saturated(values, half).astype(half.dtype), name)


def without_overflow(weight: TensorProto, half: Half) -> TensorProto:
    """The fp32 weight; a single number beyond the range of `half`, such as a mask's -3.4e38, becomes its end.

    Cast it would be infinite, and a row that is masked altogether NaN.
    """
    from onnx import numpy_helper

    values = numpy_helper.to_array(weight)
    if values.size != 1 or np.array_equal(values, _saturated(values, half), equal_nan=True):
        return weight
    return numpy_helper.from_array(_saturated(values, half).astype(values.dtype), weight.name)


def _saturated(values: NDArray[Any], half: Half) -> NDArray[Any]:
    return np.where(np.isfinite(values), np.clip(values, -half.largest, half.largest), values)
