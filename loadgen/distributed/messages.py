"""The two messages of a load test on several machines: the master's orders, and the workers' reports.

Each is a JSON document. It is checked as a whole before it is used: exact types, no unknown keys, finite numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from loadgen.errors import PlanError, first_problem
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending.plan_run import LoadJob

ROW = np.dtype([("scheduled_ns", "<i8"), ("sent_ns", "<i8"), ("done_ns", "<i8"), ("outcome", "u1")])
"""A request in `Report.rows`: times in ns from the start of the run."""

Task = Literal["clock", "prepare", "statistics", "start", "stop"]

_DATA_BYTES_MAX = 64_000_000


class _Message(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64"
    )

    run: NonNegativeInt  # 0: unknown


class Order(_Message):
    """The master's order to a worker, which answers each but "stop" with reports.

    "prepare" has the other fields: shard `part` of `parts` of the job, the contents of its files, the names of
    its headers, whose values each worker has, and if the worker needs a `client_cert` of its own. "start" has
    `origin_ns`, by the worker's clock.
    """

    do: Task
    job: LoadJob | None = None
    part: NonNegativeInt = 0
    parts: PositiveInt = 1
    header_names: tuple[str, ...] = ()
    ca_cert: bytes | None = None
    client_cert: bool = False
    data: bytes | None = None
    origin_ns: NonNegativeInt = 0


class Report(_Message):
    """A worker's answer: its clock, the server's counters, or requests and at last the result; empty if prepared.

    `failure` is the class and the text of an error.
    """

    here_ns: NonNegativeInt = 0
    statistics: dict[str, Any] | None = None
    rows: bytes = b""
    result: ShardResult | None = None
    failure: tuple[str, str] | None = None


def order_of_job(run: int, job: LoadJob, parts: int) -> Order:
    """Return the order to prepare the first shard. Raises PlanError if the data is too large for a message."""
    target, file = job.target, job.payload.data_file
    if target.query:
        raise PlanError("the query of the address may hold a key, and keys go to no worker.\nLeave --master out.")
    if file is not None and file.is_dir():
        raise PlanError(f"{file} is a folder, and one file travels to the workers.\nGive samples as .npz or JSON.")
    if file is not None and file.stat().st_size > _DATA_BYTES_MAX:
        raise PlanError(
            f"{file} holds {file.stat().st_size} bytes, and at most {_DATA_BYTES_MAX} travel to the workers.\n"
            "Use fewer samples."
        )
    name = None if file is None else Path(f"samples{file.suffix}")
    return Order(
        run=run,
        do="prepare",
        job=replace(
            job,
            target=replace(target, headers=(), ca_cert=None, client_cert=None, client_key=None, metrics_url=None),
            payload=replace(job.payload, data_file=name),
        ),
        parts=parts,
        header_names=tuple(key for key, _ in target.headers),
        ca_cert=None if target.ca_cert is None else target.ca_cert.read_bytes(),
        client_cert=target.client_cert is not None,
        data=None if file is None else file.read_bytes(),
    )


def rows_of(log: RequestLog) -> bytes:
    """Return the requests for a report, 25 bytes each."""
    rows = np.empty(len(log), ROW)
    for name in ROW.names or ():
        rows[name] = getattr(log, name)
    return rows.tobytes()


def refusal(sender: str, error: Exception) -> Report:
    """Return the failure for a message that does not fit."""
    reason = first_problem(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
    problem = f"{sender} sent a message that does not fit: {reason}."
    return Report(run=0, failure=("WorkerDied", f"{problem}\nUse the same version of tritune on all machines."))
