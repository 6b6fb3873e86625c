"""The precisions (number formats) of a model, by their names on the command line."""

from __future__ import annotations

from typing import Literal, cast, get_args

from loadgen.errors import BadInput

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Device = Literal["cpu", "gpu"]

IoPrecision = Literal["keep", "fp16"]
"""The types of a model's fp32 inputs and outputs if it computes in fp16: unchanged, or fp16."""

CalibrationMethod = Literal["percentile", "entropy"]
"""The rule for ranges from calibration data: the percentile 99.99, or the least loss of information."""


def precisions_from_text(text: str) -> tuple[Precision, ...]:
    """Return the precisions in a text such as `fp32,int8`, without repetition. Raises BadInput."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PRECISIONS:
            raise BadInput(
                f"--precisions {text}: unknown precision {name!r}.", f"Choose from {', '.join(PRECISIONS)}."
            )
    return cast("tuple[Precision, ...]", tuple(dict.fromkeys(names)))
