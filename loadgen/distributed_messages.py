"""What master and workers on other machines say to each other, in values that msgpack can carry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.errors import PlanError
from loadgen.measurement import RequestLog
from loadgen.plan import Arrivals, LoadPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loadgen.plan import Payload, Target

Message = dict[str, Any]

CLOCK = "tritune_clock"
PREPARE = "tritune_prepare"
PREPARED = "tritune_prepared"
FAILED = "tritune_failed"
START = "tritune_start"
ROWS = "tritune_rows"
STOP = "tritune_stop"
DONE = "tritune_done"
STATISTICS = "tritune_statistics"

_MOST_DATA_BYTES = 64_000_000
_COLUMNS = ("scheduled_ns", "sent_ns", "done_ns")


def plan_to_message(plan: LoadPlan) -> Message:
    """All of a plan."""
    return asdict(plan)


def plan_from_message(message: Mapping[str, Any]) -> LoadPlan:
    """The inverse of `plan_to_message`. Raises PlanError for values that no plan has."""
    arrivals = dict(message["arrivals"])
    for name in ("levels", "times_s"):
        arrivals[name] = tuple(arrivals[name])
    return LoadPlan(**{**message, "arrivals": Arrivals(**arrivals)})


def rows_to_message(log: RequestLog) -> Message:
    """The rows as raw little-endian bytes, a column after the other: 25 bytes a request."""
    columns = {name: getattr(log, name).astype("<i8").tobytes() for name in _COLUMNS}
    return {**columns, "outcome": log.outcome.astype(np.uint8).tobytes()}


def rows_from_message(message: Mapping[str, Any]) -> RequestLog:
    """The inverse of `rows_to_message`."""
    columns = {name: np.frombuffer(message[name], "<i8").astype(np.int64) for name in _COLUMNS}
    return RequestLog(**columns, outcome=np.frombuffer(message["outcome"], np.uint8))


def target_to_message(target: Target) -> Message:
    """The target without the headers' values: each worker has its own."""
    return {
        "url": target.url,
        "model_name": target.model_name,
        "model_version": target.model_version,
        "header_names": [name for name, _ in target.headers],
        "ca_cert": None if target.ca_cert is None else target.ca_cert.read_bytes(),
        "insecure": target.insecure,
    }


def payload_to_message(payload: Payload) -> Message:
    """The payload with its data. Raises PlanError when that is more than a message should be."""
    file = payload.data_file
    if file is not None and file.stat().st_size > _MOST_DATA_BYTES:
        raise PlanError(
            f"{file} holds {file.stat().st_size} bytes, and at most {_MOST_DATA_BYTES} travel to the workers.\n"
            "Use fewer samples."
        )
    return {
        "batch_size": payload.batch_size,
        "shapes": {name: list(shape) for name, shape in payload.shapes.items()},
        "data": None if file is None else file.read_bytes(),
        "data_name": None if file is None else file.name,
        "seed": payload.seed,
        "shared_memory": payload.shared_memory,
    }
