"""The two messages of a load test on several machines: the master's order, and the worker's report on it.

Each is a JSON document. It is checked as a whole before it is used: exact types, no unknown keys, finite numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from loadgen.errors import PlanError, first_problem
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending.plan_run import LoadJob

MESSAGE = "tritune"
"""What Locust calls both."""

ROW = np.dtype([("scheduled_ns", "<i8"), ("sent_ns", "<i8"), ("done_ns", "<i8"), ("outcome", "u1")])
"""A request in `Report.rows`: times in ns from the start of the run."""

Task = Literal["clock", "prepare", "statistics", "start", "look", "stop"]

PIECE_BYTES = 1_000_000
_DATA_BYTES_MAX = 64_000_000


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64"
    )

    number: NonNegativeInt = 0  # of the order, and of the report on it; 0: a report on whatever was asked


class Order(_Message):
    """What the master wants of a worker, which sends shard `part` of `parts`.

    "prepare" has the job, in which headers have no values, and its files, of which the job has the names alone.
    "start" has `origin_ns`, by the worker's clock; "look" asks for the requests from the first `known` on.
    """

    do: Task
    part: NonNegativeInt = 0
    parts: PositiveInt = 1
    known: NonNegativeInt = 0
    origin_ns: int = 0
    job: LoadJob | None = None
    files: dict[str, bytes] = {}


class Report(_Message):
    """What came of an order: the clock, the server's counters, or requests and, with the last of them, the result.

    `failure` is the class and the text of an error.
    """

    here_ns: NonNegativeInt = 0
    statistics: dict[str, Any] | None = None
    rows: bytes = b""
    result: ShardResult | None = None
    failure: tuple[str, str] | None = None


def job_to_send(job: LoadJob) -> tuple[LoadJob, dict[str, bytes]]:
    """Return the job without secrets and paths, and the files it needs. Raises PlanError if it cannot travel."""
    target, data = job.target, job.payload.data_file
    if target.query:
        raise PlanError("the query of the address may hold a key, and keys go to no worker.\nLeave --master out.")
    if data is not None and data.is_dir():
        raise PlanError(f"{data} is a folder, and one file travels to the workers.\nGive samples as .npz or JSON.")
    if data is not None and data.stat().st_size > _DATA_BYTES_MAX:
        raise PlanError(
            f"{data} holds {data.stat().st_size} bytes, and at most {_DATA_BYTES_MAX} travel to the workers.\n"
            "Use fewer samples."
        )
    files: dict[str, bytes] = {}

    def sent(path: Path | None, name: str) -> Path | None:
        if path is None:
            return None
        files[name] = path.read_bytes()
        return Path(name)

    travelling = replace(
        target,
        headers=tuple((name, "") for name, _ in target.headers),
        ca_cert=sent(target.ca_cert, "authority.pem"),
        client_cert=None if target.client_cert is None else Path("own.pem"),
        client_key=None,
        metrics_url=None,
    )
    payload = replace(job.payload, data_file=sent(data, f"samples{(data or Path()).suffix}"))
    return replace(job, target=travelling, payload=payload), files


def pieces_of(order: Order) -> Iterator[bytes]:
    """Yield the document in pieces of 1 MB, so that a socket need not take more; the last one is shorter."""
    document = order.model_dump_json().encode()
    for at in range(0, len(document) + 1, PIECE_BYTES):
        yield document[at : at + PIECE_BYTES]


def rows_of(log: RequestLog) -> bytes:
    """Return the requests for a report, 25 bytes each."""
    rows = np.empty(len(log), ROW)
    for name in ROW.names or ():
        rows[name] = getattr(log, name)
    return rows.tobytes()


def refusal(sender: str, error: ValidationError) -> Report:
    """Return the failure for a message that does not fit."""
    problem = f"{sender} sent a message that does not fit: {first_problem(error)}."
    return Report(failure=("WorkerDied", f"{problem}\nUse the same version of tritune on all machines."))
