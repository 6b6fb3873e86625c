"""Records of the difference between the fp32 model and each competing precision."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from search.record import Record, passing_over


class OutputAccuracyRecord(Record):
    """One output of a variant against fp32, over all inputs. Formulas: `optimizer/accuracy/metrics.py`."""

    _earlier = passing_over("top1_lower_bound")

    output: str
    batch_size: int = Field(ge=1)
    passed: bool
    sqnr_db: float | None = Field(description="Signal to quantization noise; null if `exact`, or without signal.")
    exact: bool = Field(description="True if every element is equal.")
    cosine: float | None = Field(description="Cosine similarity; null if the output holds no floats.")
    max_relative_error: float | None = Field(description="Largest |r - y| / (|r| + 0.01 rms(r)).")
    top1_agreement: float | None = Field(
        description="Share of inputs with the same best class, or of equal elements if there are no floats; "
        "null if the output does not look like a classifier's."
    )
    non_finite: int = Field(description="Number of elements that are NaN, infinite or missing.")


class AccuracyRecord(Record):
    """A variant's results compared with those of the fp32 model. Passed means close, not equally accurate."""

    _earlier = passing_over("first_node")

    precision: str
    runner: str = Field(description="The library that computed the variant, such as `onnxruntime-cpu`.")
    level: Literal["strict", "standard", "off"]
    passed: bool
    reason: str = Field(description="The figure that missed its threshold; empty if none did.")
    inputs: int
    input_source: Literal["given", "synthetic"]
    note: str = Field(description="Why there were fewer inputs than intended; empty if there were enough.")
    outputs: tuple[OutputAccuracyRecord, ...]

    @property
    def least_sqnr_db(self) -> float | None:
        """The SQNR of the output that is furthest from fp32; None if every output is equal, or has no signal."""
        return min((output.sqnr_db for output in self.outputs if output.sqnr_db is not None), default=None)
