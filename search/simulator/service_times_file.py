"""`service_times.json` of a run: measured execution times, so that a resumed run need not measure them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from loadgen.files import write_atomically
from loadgen.measurement.request_log import none_if_not_finite
from search.record import Record
from search.records.trial import ServiceTimesRecord
from search.simulator.server import Simulated
from search.simulator.service_times import ServiceCurve
from search.simulator.surrogate import Kind


def service_times_record(server: Simulated) -> ServiceTimesRecord:
    """Return the figures of a simulated server at powers of two, and at its largest batch.

    The execution times of an ensemble are those of the model that saturates first.
    """
    slowest = server.slowest
    largest, busy, service_s = slowest.max_batch_size, slowest.instance_count, slowest.mean_service_s
    sizes = sorted({2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest} | {largest})
    return ServiceTimesRecord(
        model=slowest.name,
        batch_sizes=tuple(sizes),
        one_busy_ms=tuple(float(1e3 * service_s[size, 1]) for size in sizes),
        all_busy_ms=tuple(float(1e3 * service_s[size, busy]) for size in sizes),
        overhead_ms=1e3 * server.overhead_s,
        let_through_per_s=none_if_not_finite(server.let_through_per_s),
    )


PROFILE_FILE = "service_times.json"


class ProfileRecord(Record):
    """All that was profiled: curves, each with its kind."""

    schema_version: Literal[3] = 3
    curves: tuple[tuple[Kind, ServiceCurve], ...]


def write_curves(directory: Path, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
    """Write the profile of a run; no file if it is empty."""
    if any(curves.values()):
        write_atomically(directory / PROFILE_FILE, profile_text(curves) + "\n")


def profile_text(curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> str:
    """Return the profile as JSON, for `curves_from_text`."""
    pairs = tuple((kind, curve) for kind, by_busy in curves.items() for curve in by_busy.values())
    return ProfileRecord(curves=pairs).model_dump_json(indent=1)


def read_curves(directory: Path) -> dict[Kind, dict[int, ServiceCurve]]:
    """Return the profile of an earlier run; empty if there is none that can be read: it is measured again."""
    try:
        return curves_from_text((directory / PROFILE_FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def curves_from_text(text: str | bytes) -> dict[Kind, dict[int, ServiceCurve]]:
    """Return the curves from the JSON of `profile_text`. Raises pydantic's ValidationError."""
    found: dict[Kind, dict[int, ServiceCurve]] = defaultdict(dict)
    for kind, curve in ProfileRecord.model_validate_json(text).curves:
        found[kind][curve.busy] = curve
    return found
