"""`service_times.json` of a run: measured execution times, so that a resumed run need not measure them again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from loadgen.files import write_atomically
from loadgen.measurement.request_log import none_if_not_finite
from search.record import Record
from search.records.trial import ServiceTimesRecord
from search.simulator.server import SimulatedServer
from search.simulator.service_times import ServiceCurve
from search.simulator.surrogate import Kind


def service_times_record(server: SimulatedServer) -> ServiceTimesRecord:
    """Return the figures of a simulated server at powers of two, and at its largest batch."""
    largest, busy = server.max_batch_size, server.instance_count
    service_s = server.mean_service_s
    sizes = sorted({2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest} | {largest})
    return ServiceTimesRecord(
        batch_sizes=tuple(sizes),
        one_busy_ms=tuple(float(1e3 * service_s[size, 1]) for size in sizes),
        all_busy_ms=tuple(float(1e3 * service_s[size, busy]) for size in sizes),
        overhead_ms=1e3 * server.overhead_s,
        let_through_per_s=none_if_not_finite(server.let_through_per_s),
    )


PROFILE_FILE = "service_times.json"


class CurveRecord(Record):
    """Execution times while `busy` instances work."""

    busy: int
    sizes: tuple[float, ...] = Field(description="Batch sizes, ascending.")
    seconds: tuple[float, ...] = Field(description="Execution time per batch size.")
    handover_s: float | None = Field(description="Time between two executions; null: not measured.")
    fit_error: float = Field(description="Relative rms distance of the measured times from the curve.")
    overhead_s: float = Field(description="Time of a request to an idle server outside its execution.")
    noise: tuple[float, ...] = Field(description="Factors by which single executions differ, mean 1.")
    let_through_per_s: float | None = Field(
        default=None, description="Highest rate of closed loops; null: not known."
    )
    larger: tuple[CurveRecord, ...] = Field(default=(), description="The same for larger requests, ascending.")


class KindRecord(CurveRecord):
    """The same of one engine with so many threads an instance."""

    engine: str
    threads: int
    cuda_graphs: bool


class ProfileRecord(Record):
    """All that was profiled."""

    schema_version: int = 1
    curves: tuple[KindRecord, ...]


def write_curves(directory: Path, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
    """Write the profile of a run; no file if it is empty."""
    if any(curves.values()):
        write_atomically(directory / PROFILE_FILE, profile_text(curves) + "\n")


def profile_text(curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> str:
    """Return the profile as JSON, for `curves_from_text`."""
    records = tuple(
        KindRecord(engine=engine, threads=threads, cuda_graphs=graphs, **_record(curve))
        for (engine, threads, graphs), by_busy in curves.items()
        for curve in by_busy.values()
    )
    return ProfileRecord(curves=records).model_dump_json(indent=1)


def read_curves(directory: Path) -> dict[Kind, dict[int, ServiceCurve]]:
    """Return the profile of an earlier run; empty if there is none that can be read: it is measured again."""
    try:
        return curves_from_text((directory / PROFILE_FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def curves_from_text(text: str | bytes) -> dict[Kind, dict[int, ServiceCurve]]:
    """Return the curves from the JSON of `profile_text`. Raises pydantic's ValidationError."""
    profile = ProfileRecord.model_validate_json(text)
    found: dict[Kind, dict[int, ServiceCurve]] = defaultdict(dict)
    for record in profile.curves:
        found[record.engine, record.threads, record.cuda_graphs][record.busy] = _curve(record)
    return found


def _record(curve: ServiceCurve) -> dict[str, Any]:
    known = none_if_not_finite(curve.let_through_per_s)
    return {**asdict(curve), "let_through_per_s": known, "larger": tuple(map(_record, curve.larger))}


def _curve(record: CurveRecord) -> ServiceCurve:
    plain = record.model_dump(exclude={"engine", "threads", "cuda_graphs", "larger"})
    plain["let_through_per_s"] = record.let_through_per_s or math.inf
    return ServiceCurve(**plain, larger=tuple(_curve(one) for one in record.larger))
