"""The records that coordinator and workers share in a study: its job, the tasks of trials, the workers.

Every user of the database can write there, so records are checked when they are read: types, lengths, ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from loadgen.errors import BadInput
from search.record import Record, Sha256, Version
from search.records.slo import ObjectiveRecord, Slo
from search.records.trial import WhyRecord

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


ORDER, PROFILE, CLOSED, WORKER_PREFIX = "order", "profile", "closed", "worker "
"""User attributes of the study. `closed` is true once the coordinator needs no more trials; `worker NAME` holds a
worker's hardware, or null when it has left."""

TASK, RECORD, WORKER, WITHDRAWN = "task", "record", "worker", "withdrawn"
"""User attributes of a trial: its task (TaskRecord), its result (TrialRecord), its worker, and true if the
coordinator took it back."""

MAX_RATE_PER_S = 4e6
"""Higher rates are refused: no server answers so many, and the requests of a run take memory before it starts."""

MAX_LIMIT_MS = 1e8
MAX_SECONDS = 1e8
MAX_FURTHER_LIMITS = 8


def _in_rates(rate_per_s: float) -> float:
    if not 0 <= rate_per_s <= MAX_RATE_PER_S:
        raise ValueError(f"{rate_per_s:g}/s is no rate to measure at")
    return rate_per_s


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that are not printable")
    return text


Line = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]
Rate = Annotated[float, AfterValidator(_in_rates)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class WorkerJob(Record):
    """The job of a study: all that a worker needs before it can measure."""

    tritune_version: Version
    run: Line = Field(description="Whose study it is: the coordinator's host and run directory.")
    hardware: Line = Field(description="The study's subject; other machines measure nothing for it.")
    model_sha256: Sha256
    slo: Slo
    objective: ObjectiveRecord = ObjectiveRecord()
    seed: int = Field(ge=0, le=2**31)
    settings: dict[str, Any] = Field(description="How to measure; see `optimizer.run.worker_settings`.")

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        limits = [limit.limit_ms for limit in self.slo.limits]
        if len(limits) > MAX_FURTHER_LIMITS or max(limits) > MAX_LIMIT_MS:
            raise ValueError("its latency limits are out of range")
        if self.objective.rate_per_s is not None:
            _in_rates(self.objective.rate_per_s)
        return self


class TaskRecord(Record):
    """One configuration to measure. Without a prediction its capacity is searched for."""

    why: WhyRecord
    best_per_s: Rate | None = Field(default=None, description="The best rate so far; less need not be found.")
    elapsed_s: Seconds = Field(description="Of the run's budget, when this was asked for.")
    budget_s: Seconds

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        predicted = self.why.prediction
        if predicted is not None:
            _in_rates(predicted.rate_per_s)
            if not (0 <= predicted.sd <= MAX_SD and math.isfinite(predicted.simulated_per_s)):
                raise ValueError(f"{predicted.sd:g} is no standard error of a prediction")
        return self


MAX_SD = 10.0


def task_of(frozen: FrozenTrial) -> TaskRecord | None:
    """Return the task of a queued trial; None if it has no valid one."""
    try:
        return TaskRecord.model_validate(frozen.user_attrs.get(TASK))
    except ValidationError:
        return None


@contextmanager
def reading(study: str) -> Iterator[None]:
    """Turn errors of a study that Optuna cannot parse into BadInput; an unreachable database is not such an error.

    Optuna assumes that only Optuna writes to its database.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadInput(
            f"The study {study} holds something that Optuna cannot read ({type(error).__name__}).",
            "Start the search again with another --study NAME; this one may have been changed by another program.",
        ) from error
