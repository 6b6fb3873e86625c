"""The record of one load test: what `--output` and `--json` write, and what `--compare` reads back."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - read by pydantic
from typing import Literal

from pydantic import Field

from loadgen.finite import Count, FiniteModel
from loadgen.plan import SharedMemory  # noqa: TC001 - read by pydantic

SCHEMA_VERSION: Literal[1] = 1

Outcome = Literal["kept", "measured", "undecided", "worse", "untrustworthy", "broken", "interrupted"]
Answer = Literal["kept", "broken", "undecided"]

EXIT_CODES: dict[Outcome, int] = {
    "kept": 0,
    "measured": 0,
    "undecided": 96,
    "worse": 97,
    "untrustworthy": 98,
    "broken": 99,
    "interrupted": 130,
}


class Record(FiniteModel):
    """Base of all parts: frozen, unknown keys are refused, numbers are finite; null is unknown and never zero."""


class TargetRecord(Record):
    """What was loaded. Headers are named only: their values may be secrets."""

    url: str
    model_name: str
    model_version: str
    header_names: tuple[str, ...]
    certificate_checked: bool | None = Field(description="null: the connection was not encrypted.")


class LoadRecord(Record):
    """What was sent, as it was asked for."""

    kind: Literal["open", "closed"]
    arrivals: str
    rate_per_s: float | None = Field(description="null: closed loop.")
    concurrency: int | None
    max_in_flight: int | None
    duration_s: float
    warmup_s: float
    timeout_s: float
    most_send_lag_ms: float | None = Field(
        default=None, description="p99 of the send lag that was accepted; null: 1 ms, or 5 % of the limit."
    )
    seed: int
    processes: int
    machines: int = 1
    batch_size: int
    shapes: dict[str, tuple[int, ...]]
    input_data: str | None
    shared_memory: SharedMemory = Field(
        default="none", description="`system`: inputs waited in memory that the server shared with the client."
    )


class CheckRecord(Record):
    """One limit and what can be said about it. Times in ms; ratios of requests.

    `low` and `high` bound the true value with the test's confidence, corrected for the dependence between
    neighbouring requests; null where there were too few requests to bound it. `needed_s` is about how long a run
    would have to be to decide, null where that is not known or not needed.
    """

    name: str
    kind: Literal["latency", "errors"]
    quantile: float | None
    limit: float
    answer: Answer
    observed: float | None
    low: float | None
    high: float | None
    confidence: float
    requests: Count
    violations: Count
    reason: str
    needed_s: float | None


class BatchRecord(Record):
    """What Triton executed at one batch size: how often, and the mean ms of each stage of one execution."""

    batch_size: int
    executions: Count
    input_ms: float
    infer_ms: float
    output_ms: float


class ServerRecord(Record):
    """Triton's own view over the same seconds: mean ms of a request in each stage."""

    requests: Count
    failures: Count
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    total_ms: float
    mean_batch_size: float | None
    batches: tuple[BatchRecord, ...]


class GpuRecord(Record):
    """How busy the GPU was, on average over the run; its peak memory."""

    utilization: float | None
    memory_used_bytes: int | None
    power_w: float | None
    energy_j: float | None


class MeasurementRecord(Record):
    """The figures of the run. Latency counts from the scheduled send time; failed requests count at the
    time-out or later.
    """

    requests: Count
    failures: Count
    errors: dict[str, int]
    error_example: str | None
    planned_rate_per_s: float | None
    achieved_rate_per_s: float
    duration_s: float
    latency_min_ms: float | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_max_ms: float | None
    latency_p99_low_ms: float | None = Field(description="Bounds of p99; null: too few requests to bound it.")
    latency_p99_high_ms: float | None
    latency_p99_bounded_after_s: float | None = Field(
        default=None,
        description="About how long a run must be for an upper bound; null: there is one, or not known.",
    )
    interval_confidence: float
    service_p99_ms: float | None = Field(description="p99 from the actual send: blind to the client's own delay.")
    send_lag_p50_ms: float | None
    send_lag_p99_ms: float | None
    bytes_sent: Count
    bytes_received: Count
    client_cpu_share: float = Field(description="The busiest load process, 1.0 being one whole core.")
    client_cpu_s: float
    server: ServerRecord | None
    network_and_client_ms: float | None = Field(description="Mean client latency minus Triton's own time.")
    gpu: GpuRecord | None
    problems: tuple[str, ...] = Field(description="Not empty: nothing may be decided on this measurement.")
    percentiles_from: Literal["every request", "histogram"] = Field(
        default="every request",
        description="Exact, each a time that one request really had; or from HdrHistogram with three significant "
        "digits, where there were too many requests to keep every time.",
    )


class TimelineRecord(Record):
    """The run over time, in bins of `bin_s` seconds by scheduled time; one value a bin, null where it is empty."""

    bin_s: float
    start_s: tuple[float, ...]
    due_per_s: tuple[float, ...]
    failures: tuple[int, ...]
    p50_ms: tuple[float | None, ...]
    p99_ms: tuple[float | None, ...]
    max_ms: tuple[float | None, ...]


class CurveRecord(Record):
    """The latency distribution: a share of `quantile` of all requests took at most `latency_ms`."""

    quantile: tuple[float, ...]
    latency_ms: tuple[float, ...]


class ProbeRecord(Record):
    """One load of a search for the highest rate."""

    rate_per_s: float
    seconds: float
    requests: Count
    violations: Count
    latency_ms: float | None = Field(description="The limit's quantile.")
    answer: str


class CapacityRecord(Record):
    """The highest rate that keeps the limit. `certified_rate_per_s` null: no rate was confirmed."""

    quantile: float
    certified_rate_per_s: float | None
    estimate_per_s: float | None
    low_per_s: float | None
    high_per_s: float | None
    lone_latency_ms: float | None = Field(description="Median at a rate so low that requests hardly meet.")
    undecided: bool = Field(description="No rate was confirmed, but one might have been with more load.")
    seconds: float
    probes: tuple[ProbeRecord, ...]
    reason: str


class ComparisonRecord(Record):
    """One figure beside the baseline's. The ratio's bounds hold with the tests' confidence."""

    figure: str
    unit: str
    baseline: float
    now: float
    ratio: float
    ratio_low: float | None = Field(description="null: one of the two could not be bounded on that side.")
    ratio_high: float | None
    answer: Literal["worse", "better", "no difference seen"]


class LoadTestRecord(Record):
    """Everything that one load test found out."""

    schema_version: Literal[1] = SCHEMA_VERSION
    tool: str
    started_at: datetime
    outcome: Outcome
    exit_code: int
    reasons: tuple[str, ...] = Field(description="Why this outcome, in sentences; the first is the headline.")
    notes: tuple[str, ...]
    target: TargetRecord
    load: LoadRecord
    checks: tuple[CheckRecord, ...]
    measurement: MeasurementRecord | None
    curve: CurveRecord | None
    timeline: TimelineRecord | None
    capacity: CapacityRecord | None
    baseline: str | None
    comparison: tuple[ComparisonRecord, ...]
