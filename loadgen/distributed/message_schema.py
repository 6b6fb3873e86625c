"""The schema of every message between master and workers. Others are refused before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from loadgen.distributed import messages as kinds
from loadgen.errors import first_problem
from loadgen.spec.plan import ArrivalKind, SharedMemory
from loadgen.status import is_outcome

Schemas = Mapping[str, TypeAdapter[Any]]

_DROPPED = frozenset({"stats", "logs", "exception"})
"""Messages of Locust's workers that its master would merge into statistics, which are not used here."""

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    """Exact types, no unknown keys, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _OfRun(_Part):
    run: NonNegativeInt


class _Clock(_OfRun):
    here_ns: NonNegativeInt


class _Failed(_Part):
    run: NonNegativeInt | None
    error: str
    text: str


class _Rows(_Part):
    """Columns of equal length: requests in the order of the schedule, due, then sent, then done."""

    scheduled_ns: bytes
    sent_ns: bytes
    done_ns: bytes
    outcome: bytes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        count = len(self.outcome)
        columns = (self.scheduled_ns, self.sent_ns, self.done_ns)
        if any(len(column) != 8 * count for column in columns):
            raise ValueError(f"columns of {[len(column) for column in columns]} bytes and {count} outcomes")
        scheduled, sent, done = (np.frombuffer(column, "<i8") for column in columns)
        in_order = np.all(scheduled[1:] >= scheduled[:-1]) and (not count or scheduled[0] >= 0)
        if not in_order or np.any(sent < scheduled) or np.any(done < sent):
            raise ValueError("a request was sent before it was due, or done before it was sent")
        if not all(is_outcome(number) for number in set(self.outcome)):
            raise ValueError("an outcome that does not exist")
        return self


class _RowsOfRun(_OfRun):
    rows: _Rows


class _Result(_Part):
    rows: NonNegativeInt
    overloaded: bool
    wall_s: NonNegative
    cpu_s: NonNegative
    bytes_sent: NonNegativeInt
    bytes_received: NonNegativeInt
    connections_opened: NonNegativeInt
    error_example: str | None


class _Done(_OfRun):
    result: _Result


class _Statistics(_OfRun):
    statistics: dict[str, Any] | None


class _Heartbeat(_Part):
    state: Literal["ready", "spawning", "running"]
    current_cpu_usage: NonNegative
    current_memory_usage: NonNegativeInt


class _Arrivals(_Part):
    kind: ArrivalKind
    cv: float
    levels: list[float]
    start: float
    end: float
    times_s: list[float]


class _Plan(_Part):
    rate_per_s: Positive
    duration_s: Positive
    seed: NonNegativeInt
    arrivals: _Arrivals
    timeout_s: Positive
    max_in_flight: int | None
    most_send_lag_ms: Positive | None


class _Target(_Part):
    url: str
    model_name: str
    model_version: str
    header_names: list[str]
    ca_cert: bytes | None
    insecure: bool


class _Payload(_Part):
    batch_size: int
    shapes: dict[str, list[int]]
    data: bytes | None
    data_name: str | None
    seed: NonNegativeInt
    shared_memory: SharedMemory


class _Prepare(_OfRun):
    part: NonNegativeInt
    parts: Annotated[int, Field(ge=1)]
    plan: _Plan
    target: _Target
    payload: _Payload
    limit_ms: Positive | None


class _Start(_OfRun):
    origin_ns: NonNegativeInt


class _OfTarget(_OfRun):
    target: _Target


class _Ack(_Part):
    index: NonNegativeInt


_NOTHING = TypeAdapter(None)

FROM_WORKER: Schemas = {
    "client_ready": TypeAdapter(str),
    "client_stopped": _NOTHING,
    "heartbeat": TypeAdapter(_Heartbeat),
    "quit": _NOTHING,
    kinds.CLOCK: TypeAdapter(_Clock),
    kinds.PREPARED: TypeAdapter(_OfRun),
    kinds.FAILED: TypeAdapter(_Failed),
    kinds.ROWS: TypeAdapter(_RowsOfRun),
    kinds.DONE: TypeAdapter(_Done),
    kinds.STATISTICS: TypeAdapter(_Statistics),
}

FROM_MASTER: Schemas = {
    "ack": TypeAdapter(_Ack),
    "heartbeat": _NOTHING,
    "quit": _NOTHING,
    "reconnect": _NOTHING,
    kinds.CLOCK: TypeAdapter(_OfRun),
    kinds.PREPARE: TypeAdapter(_Prepare),
    kinds.START: TypeAdapter(_Start),
    kinds.STOP: TypeAdapter(_OfRun),
    kinds.STATISTICS: TypeAdapter(_OfTarget),
}


def is_dropped(kind: object) -> bool:
    """True for messages that Locust sends on its own and that are not used here."""
    return isinstance(kind, str) and kind in _DROPPED


def problem_of(kind: object, data: object, schemas: Schemas) -> str | None:
    """Return the reason to refuse a message; None if it fits."""
    schema = schemas.get(kind) if isinstance(kind, str) else None
    if schema is None:
        return f"a message of the kind {str(kind)[:40]!r} is not known"
    try:
        schema.validate_python(data, strict=True)
    except ValidationError as error:
        return f"{kind}: {first_problem(error)}"
    return None
