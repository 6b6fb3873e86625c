"""The smoke test that new pods must pass before they get traffic: `loadtest` at the certified rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import Protocol, ServingConfig, chosen_shapes
from search.records.recommendation import RecommendationRecord
from search.records.slo import WorkloadRecord

PORTS: dict[Protocol, int] = {"http": 8000, "grpc": 8001}
"""The ports on which Triton listens by default."""

SHORTEST_RUN_S = 30
"""A smoke test sends load for at least 30 s."""

CONFIRMATION_LENGTHS = 3.0
"""A smoke test is three times as long as the run's confirmation: more requests, so that violations by chance weigh
less."""

TRACE_FILE, LENGTHS_FILE, FILES_FOLDER = "trace.txt", "lengths.txt", "/etc/loadtest"
MAX_BYTES = 900_000
"""The files of a smoke test have at most 900 kB together: a ConfigMap holds 1 MiB."""

HEAD_START_S = 60
"""A job may take 60 s more than twice the time of its load: to pull its image, prepare payloads and warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """One load run and its verdict. Exit code 0: all limits met; 99: one violated; 96, 98: inconclusive."""

    model_name: str
    rate_per_s: float
    limits: tuple[LatencyLimit, ...]
    duration_s: int
    shapes: tuple[str, ...]  # `NAME:D1,D2`, for dimensions that the model leaves open
    traffic: tuple[str, ...] = ()  # options for the arrivals and the size of requests
    files: tuple[str, ...] = ()  # names of the files that it reads in `FILES_FOLDER`
    protocol: Protocol = "http"

    def url(self, host: str) -> str:
        """Return the URL for this load of a Triton on its usual ports."""
        return f"{self.protocol}://{host}:{PORTS[self.protocol]}"

    def arguments(self, url: str) -> list[str]:
        """Return the command line after `loadtest`."""
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
        """Return the seconds after which a job without a result is given up."""
        return 2 * self.duration_s + HEAD_START_S


def run_length_s(certified_in_s: float) -> int:
    """Return the seconds of a load run that repeats a certificate which took these seconds."""
    return max(SHORTEST_RUN_S, 5 * math.ceil(CONFIRMATION_LENGTHS * certified_in_s / 5))


def smoke_for(found: RecommendationRecord, config: ServingConfig) -> Smoke:
    """Return the smoke test of a recommendation; its length follows from the certificate's."""
    certificate = found.winner.certificate
    assert certificate is not None
    shapes = chosen_shapes(config.engine.inputs)
    workload = found.workload
    files = {TRACE_FILE: workload.trace, LENGTHS_FILE: workload.lengths}
    return Smoke(
        model_name=config.engine.model_name,
        rate_per_s=certificate.rate_per_s,
        limits=found.slo.limits,
        duration_s=run_length_s(certificate.seconds),
        shapes=tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items()),
        traffic=traffic_options(
            workload,
            trace=f"{FILES_FOLDER}/{TRACE_FILE}",
            input_data=workload.lengths and f"{FILES_FOLDER}/{LENGTHS_FILE}",
        ),
        files=tuple(name for name, kept in files.items() if kept is not None),
        protocol=workload.protocol,
    )


CHECK_S = 60
"""Seconds of load of the README's check."""

CHECK_RATE_PER_S = 25.0
"""Most requests per second of the check: a port-forward carries them, and its own delay stays small."""

ENOUGH = 12.0
"""A quantile is decided when so many requests may be late: with fewer, a few at once leave it open."""


def check_for(smoke: Smoke, certified_rate_per_s: float) -> Smoke:
    """Return a check of a running server that decides within two minutes, at a low rate.

    It asks for the first limit, at the highest quantile that so few requests can decide. The certified rate is for
    the smoke test to check.
    """
    rate = min(CHECK_RATE_PER_S, 0.5 * certified_rate_per_s)
    first = smoke.limits[0]
    quantiles = (first.quantile, *(q for q in (0.95, 0.9, 0.5) if q < first.quantile))
    decided = (q for q in quantiles if rate * CHECK_S * (1 - q) >= ENOUGH)
    limit = replace(first, quantile=next(decided, quantiles[-1]))
    # Without files, which are where the smoke test runs, and without recorded arrivals.
    traffic = tuple(option for option in smoke.traffic if option.startswith("--batch-size"))
    return replace(smoke, rate_per_s=rate, limits=(limit,), duration_s=CHECK_S, traffic=traffic)


def traffic_options(workload: WorkloadRecord, *, trace: str, input_data: str | None) -> tuple[str, ...]:
    """Return the certified traffic as options of `loadtest`, which reads the trace, if any, at `trace`."""
    options = []
    if workload.trace is not None:
        options.append(f"--trace={trace}")
    elif workload.arrivals != "poisson":
        options.append(f"--arrivals={workload.arrivals}")
    if workload.rows_per_request > 1:
        options.append(f"--batch-size={workload.rows_per_request}")
    if input_data is not None:
        options.append(f"--input-data={input_data}")
    if workload.shared_memory != "none":
        options.append(f"--shared-memory={workload.shared_memory}")
    return tuple(options)


def smoke_file(text: str, most_bytes: int = MAX_BYTES) -> str:
    """Return the first lines of a trace or of lengths, as many as a ConfigMap holds."""
    kept = text[:most_bytes]
    return kept if kept == text else kept[: kept.rfind("\n") + 1]
