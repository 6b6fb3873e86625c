"""What coordinator and workers write into the study they share: its order, a trial's task, and who works on it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from search.record import Record
from search.records import ObjectiveRecord, Slo
from search.why import WhyRecord

ORDER, PROFILE, CLOSED, WORKER_PREFIX = "order", "profile", "closed", "worker "
"""User attributes of the study. `closed` is true once the coordinator needs nothing more; `worker NAME` holds a
worker's hardware, or null when it has left."""

TASK, RECORD, WORKER, WITHDRAWN = "task", "record", "worker", "withdrawn"
"""User attributes of a trial: what to measure (TaskRecord), what was found (TrialRecord), by whom, and whether the
coordinator took it back."""


class OrderRecord(Record):
    """What a worker has to know before it can measure anything."""

    tritune_version: str
    run: str = Field(description="Whose study it is: the coordinator's host and run directory.")
    hardware: str = Field(description="What the study is about; other machines measure nothing for it.")
    model_sha256: str
    slo: Slo
    objective: ObjectiveRecord = ObjectiveRecord()
    seed: int
    settings: dict[str, Any] = Field(description="The coordinator's configuration, without secrets.")


class TaskRecord(Record):
    """One configuration to measure. Without a prediction the edge is searched for."""

    why: WhyRecord
    best_per_s: float | None = Field(default=None, description="The best rate so far; less need not be found.")
    elapsed_s: float = Field(description="Of the run's budget, when this was asked for.")
    budget_s: float
