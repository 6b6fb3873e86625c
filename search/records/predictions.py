"""`predictions.jsonl` of a run: what the simulator predicts after all trials, for its report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from loadgen.files import write_atomically
from search.record import Record
from search.records.run_files import read_records
from search.records.trial import ConfigRecord

PREDICTIONS_FILE = "predictions.jsonl"

Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PredictedRecord(Record):
    """One line: the best prediction of one batch size and instance count, or that of the answer or the default."""

    schema_version: Literal[1] = 1
    config: ConfigRecord
    rate_per_s: Figure = Field(description="The predicted capacity; 0: no rate meets the SLO.")
    curve: tuple[tuple[Figure, Figure], ...] = Field(
        default=(),
        description="Rates in requests per second and ms at the first limit's quantile, of the answer and the "
        "default.",
    )


def write_predictions(directory: Path, records: Iterable[PredictedRecord]) -> None:
    """Write the predictions of a run, instead of those that it had before it was resumed."""
    lines = [record.model_dump_json() + "\n" for record in records]
    write_atomically(directory / PREDICTIONS_FILE, "".join(lines))


def read_predictions(directory: Path) -> tuple[PredictedRecord, ...]:
    """Return the predictions of a run; empty if there is no such file. Raises BadInput if it is damaged."""
    return read_records(directory / PREDICTIONS_FILE, PredictedRecord, what="a prediction")
