"""How close to fp32 each competing precision came, as a run's files say it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from search.record import Record


class OutputAccuracyRecord(Record):
    """One output of a variant against fp32, over all inputs. See `optimizer/closeness.py` for the formulas."""

    output: str
    batch_size: int = Field(ge=1)
    passed: bool
    sqnr_db: float | None = Field(
        description="Signal to quantization noise; null where `exact`, or without signal."
    )
    exact: bool = Field(description="Every element is the same.")
    cosine: float | None = Field(description="Null: the output holds no floats.")
    max_relative_error: float | None = Field(description="Largest |r - y| / (|r| + 0.01 rms(r)).")
    top1_agreement: float | None = Field(
        description="Share of inputs with the same best class, or of equal elements where there are no floats; "
        "null: the output does not look like a classifier's."
    )
    top1_lower_bound: float | None = Field(description="With 95 % confidence (Clopper-Pearson).")
    non_finite: int = Field(description="Elements that are NaN, infinite or missing.")


class AccuracyRecord(Record):
    """A variant's results against those of the fp32 model. A pass says close, not equally accurate."""

    precision: str
    runner: str = Field(description="What computed the variant, such as `onnxruntime-cpu`.")
    level: Literal["strict", "standard", "off"]
    passed: bool
    reason: str = Field(description="What missed its threshold; empty where nothing did.")
    first_node: str | None = Field(description="Where the error starts, if it was looked for.")
    inputs: int
    input_source: Literal["given", "synthetic"]
    note: str = Field(description="Why there were fewer inputs than there should be; empty where there were not.")
    outputs: tuple[OutputAccuracyRecord, ...]

    @property
    def least_sqnr_db(self) -> float | None:
        """Of the output that is furthest from fp32; None: every output is equal, or has no signal."""
        return min((output.sqnr_db for output in self.outputs if output.sqnr_db is not None), default=None)
