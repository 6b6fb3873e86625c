"""The load that new pods must stand before traffic moves to them: `loadtest` at the certified rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.order import LatencyLimit
    from model_repo.spec import Protocol, ServingConfig
    from search.demand import DemandRecord
    from search.records import RecommendationRecord

PORTS: dict[Protocol, int] = {"http": 8000, "grpc": 8001}
"""Of Triton, as it comes."""

LEAST_S = 30
LONGER = 3.0
"""How much longer than the run's own confirmation: some violations by bad luck need more requests to decide."""

TRACE_FILE, LENGTHS_FILE, FILES_FOLDER = "trace.txt", "lengths.txt", "/etc/loadtest"
MOST_BYTES = 900_000
"""Of all files of a smoke test: a ConfigMap holds 1 MiB."""

HEAD_START_S = 60
"""What a job may take besides the load: pulling its image, preparing payloads, warming up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """One load run and its verdict. Exit code 0: every limit was kept; 99: one was broken; 96, 98: not decided."""

    model_name: str
    rate_per_s: float
    limits: tuple[LatencyLimit, ...]
    duration_s: int
    shapes: tuple[str, ...]  # `NAME:D1,D2`, for dimensions that the model leaves open
    traffic: tuple[str, ...] = ()  # options that say how requests come in and how much each carries
    files: tuple[str, ...] = ()  # that it reads in `FILES_FOLDER`
    protocol: Protocol = "http"

    def url(self, host: str) -> str:
        """Where a Triton on its usual ports answers this load."""
        return f"{self.protocol}://{host}:{PORTS[self.protocol]}"

    def arguments(self, url: str) -> list[str]:
        """The command line after `loadtest`."""
        return [
            url,
            f"--model={self.model_name}",
            f"--rate={self.rate_per_s:.6g}",
            *(limit.option for limit in self.limits),
            f"--duration={self.duration_s}s",
            *(f"--shape={shape}" for shape in self.shapes),
            *self.traffic,
            "--fail-fast",
            "--yes",
        ]

    @property
    def deadline_s(self) -> int:
        """When a job that has not answered is given up."""
        return 2 * self.duration_s + HEAD_START_S


def smoke_for(found: RecommendationRecord, config: ServingConfig) -> Smoke:
    """The smoke test of a recommendation, as long as its certificate says that a decision takes."""
    certificate = found.winner.certificate
    assert certificate is not None
    shapes = (
        (spec.name, spec.concrete_shape)
        for spec in config.engine.inputs
        if -1 in spec.shape and spec.concrete_shape is not None
    )
    demand = found.demand
    files = {TRACE_FILE: demand.trace, LENGTHS_FILE: demand.lengths}
    return Smoke(
        model_name=config.engine.model_name,
        rate_per_s=certificate.rate_per_s,
        limits=found.slo.limits,
        duration_s=max(LEAST_S, 5 * math.ceil(LONGER * certificate.seconds / 5)),
        shapes=tuple(f"{name}:{','.join(str(size) for size in shape)}" for name, shape in shapes if shape),
        traffic=traffic_options(
            demand,
            trace=f"{FILES_FOLDER}/{TRACE_FILE}",
            input_data=demand.lengths and f"{FILES_FOLDER}/{LENGTHS_FILE}",
        ),
        files=tuple(name for name, kept in files.items() if kept is not None),
        protocol=demand.protocol,
    )


def traffic_options(demand: DemandRecord, *, trace: str, input_data: str | None) -> tuple[str, ...]:
    """The traffic of a promise as options of `loadtest`, which finds the trace, if there is one, at `trace`."""
    options = []
    if demand.trace is not None:
        options.append(f"--trace={trace}")
    elif demand.arrivals != "poisson":
        options.append(f"--arrivals={demand.arrivals}")
    if demand.rows_per_request > 1:
        options.append(f"--batch-size={demand.rows_per_request}")
    if input_data is not None:
        options.append(f"--input-data={input_data}")
    if demand.shared_memory != "none":
        options.append(f"--shared-memory={demand.shared_memory}")
    return tuple(options)


def smoke_file(text: str, most_bytes: int = MOST_BYTES) -> str:
    """As much of a trace, or of lengths, as a ConfigMap holds: the first lines."""
    kept = text[:most_bytes]
    return kept if kept == text else kept[: kept.rfind("\n") + 1]


def quantile_name(quantile: float) -> str:
    """`p99` for 0.99, `p999` for 0.999."""
    digits = f"{quantile:.6f}".removeprefix("0.").rstrip("0")
    return f"p{digits.ljust(2, '0')}"
