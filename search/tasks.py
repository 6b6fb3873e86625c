"""What coordinator and workers write into the study they share: its order, a trial's task, and who works on it.

Whoever reaches the database can write there, so what is read is checked before it is used: types, lengths, ranges.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from loadgen.user_errors import BadInput
from search.record import Record, Sha256, Version
from search.records import ObjectiveRecord, Slo
from search.why import WhyRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.trial import FrozenTrial

ORDER, PROFILE, CLOSED, WORKER_PREFIX = "order", "profile", "closed", "worker "
"""User attributes of the study. `closed` is true once the coordinator needs nothing more; `worker NAME` holds a
worker's hardware, or null when it has left."""

TASK, RECORD, WORKER, WITHDRAWN = "task", "record", "worker", "withdrawn"
"""User attributes of a trial: what to measure (TaskRecord), what was found (TrialRecord), by whom, and whether the
coordinator took it back."""


MOST_RATE_PER_S = 4e6
"""Higher rates are refused: no server answers so many, and the requests of a run take memory before it begins."""

MOST_LIMIT_MS = 1e8
MOST_SECONDS = 1e8
MOST_FURTHER_LIMITS = 8


def _in_rates(rate_per_s: float) -> float:
    if not 0 <= rate_per_s <= MOST_RATE_PER_S:
        raise ValueError(f"{rate_per_s:g}/s is no rate to measure at")
    return rate_per_s


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that are not printable")
    return text


Line = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_printable)]
Rate = Annotated[float, AfterValidator(_in_rates)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS)]


class OrderRecord(Record):
    """What a worker has to know before it can measure anything."""

    tritune_version: Version
    run: Line = Field(description="Whose study it is: the coordinator's host and run directory.")
    hardware: Line = Field(description="What the study is about; other machines measure nothing for it.")
    model_sha256: Sha256
    slo: Slo
    objective: ObjectiveRecord = ObjectiveRecord()
    seed: int = Field(ge=0, le=2**31)
    settings: dict[str, Any] = Field(description="How to measure; see `optimizer.worker_settings`.")

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        limits = [limit.limit_ms for limit in self.slo.limits]
        if len(limits) > MOST_FURTHER_LIMITS or max(limits) > MOST_LIMIT_MS:
            raise ValueError("its latency limits are out of range")
        if self.objective.rate_per_s is not None:
            _in_rates(self.objective.rate_per_s)
        return self


class TaskRecord(Record):
    """One configuration to measure. Without a prediction the edge is searched for."""

    why: WhyRecord
    best_per_s: Rate | None = Field(default=None, description="The best rate so far; less need not be found.")
    elapsed_s: Seconds = Field(description="Of the run's budget, when this was asked for.")
    budget_s: Seconds

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        predicted = self.why.prediction
        if predicted is not None:
            _in_rates(predicted.rate_per_s)
            if not (0 <= predicted.sd <= MOST_SD and math.isfinite(predicted.simulated_per_s)):
                raise ValueError(f"{predicted.sd:g} is no standard error of a prediction")
        return self


MOST_SD = 10.0


def task_of(frozen: FrozenTrial) -> TaskRecord | None:
    """The task of a trial in the queue; None if it has none that can be carried out."""
    try:
        return TaskRecord.model_validate(frozen.user_attrs.get(TASK))
    except ValidationError:
        return None


@contextmanager
def reading(study: str) -> Iterator[None]:
    """What keeps the block from reading or changing a study, other than its database being away, as BadInput.

    The database is parsed by Optuna, which takes for granted that Optuna wrote it.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadInput(
            f"The study {study} holds something that Optuna cannot read ({type(error).__name__}).",
            "Start the search again with another --study NAME; somebody may have changed this one.",
        ) from error
