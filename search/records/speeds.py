"""`machine_speed.jsonl` of a run: how fast the machine was while load was sent, for its report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from search.record import Record
from search.records.run_files import append_line, read_records

SPEEDS_FILE = "machine_speed.jsonl"


class SpeedsRecord(Record):
    """One line: the speeds in one load run whose executions could be replayed."""

    schema_version: Literal[1] = 1
    began_unix_s: float
    speeds: tuple[float, ...] = Field(
        description="Mean speed in each second of the run; 1 is usual for the machine and this configuration."
    )


def keep_speeds(directory: Path, record: SpeedsRecord) -> None:
    """Append the speeds in a load run to the file of the run's directory."""
    append_line(directory / SPEEDS_FILE, record.model_dump_json())


def read_speeds(directory: Path) -> tuple[SpeedsRecord, ...]:
    """Return the speeds of all load runs; empty if there is no such file. Raises BadInput if it is damaged."""
    return read_records(directory / SPEEDS_FILE, SpeedsRecord, what="a machine's speed")
