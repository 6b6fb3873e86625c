"""The messages between master and workers on other machines, in values that msgpack supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from loadgen.errors import PlanError
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

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

_DATA_BYTES_MAX = 64_000_000
_COLUMNS = ("scheduled_ns", "sent_ns", "done_ns")


def plan_to_message(plan: LoadPlan) -> Message:
    """Return all of a plan."""
    return asdict(plan)


def plan_from_message(message: Mapping[str, Any]) -> LoadPlan:
    """Return the plan of a message. Raises PlanError for values that no plan has."""
    arrivals = dict(message["arrivals"])
    for name in ("levels", "times_s"):
        arrivals[name] = tuple(arrivals[name])
    return LoadPlan(**{**message, "arrivals": Arrivals(**arrivals)})


def rows_to_message(log: RequestLog) -> Message:
    """Return the rows as raw little-endian bytes, one column after the other: 25 bytes per request."""
    columns = {name: getattr(log, name).astype("<i8").tobytes() for name in _COLUMNS}
    return {**columns, "outcome": log.outcome.astype(np.uint8).tobytes()}


def rows_from_message(message: Mapping[str, Any]) -> RequestLog:
    """Return the rows of a message."""
    columns = {name: np.frombuffer(message[name], "<i8").astype(np.int64) for name in _COLUMNS}
    return RequestLog(**columns, outcome=np.frombuffer(message["outcome"], np.uint8))


def target_to_message(target: Target) -> Message:
    """Return the target without the values of its headers: each worker has its own."""
    return {
        "url": target.url,
        "model_name": target.model_name,
        "model_version": target.model_version,
        "header_names": [name for name, _ in target.headers],
        "ca_cert": None if target.ca_cert is None else target.ca_cert.read_bytes(),
        "insecure": target.insecure,
    }


def payload_to_message(payload: Payload) -> Message:
    """Return the payload with its data. Raises PlanError if the data is too large for a message."""
    file = payload.data_file
    if file is not None and file.stat().st_size > _DATA_BYTES_MAX:
        raise PlanError(
            f"{file} holds {file.stat().st_size} bytes, and at most {_DATA_BYTES_MAX} travel to the workers.\n"
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
