"""The files of a run, as pydantic models: what is written, and what is accepted when it is read back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loadgen.finite import Count
from loadgen.order import LatencyLimit
from search.accuracy_record import AccuracyRecord
from search.demand import DemandRecord
from search.engine_profile import TimeUseRecord
from search.neighbours import NeighboursRecord
from search.prices import Term
from search.record import FolderName, ModelName, Rate, Record, Sha256, Version
from search.why import WhyRecord

ObjectiveName = Literal["cost", "latency", "energy"]

SCHEMA_VERSION: Literal[1] = 1


class ConfigRecord(Record):
    """A serving configuration; see Triton's model configuration for the terms."""

    engine: str = Field(description="Backend and precision, such as `onnxruntime-fp32`.")
    max_batch_size: int = Field(ge=0, description="0: the model is served without batching.")
    instance_count: int = Field(ge=1)
    dynamic_batching: bool
    max_queue_delay_us: int = Field(ge=0)
    preferred_batch_sizes: tuple[int, ...] = ()
    intra_op_threads: int = Field(ge=0, description="ONNX Runtime threads per instance; 0: one per core.")
    cuda_graph_batch_sizes: tuple[int, ...] = ()


class ServerTimingsRecord(Record):
    """Mean time of a request in each stage inside Triton, in ms, and how large batches were."""

    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    mean_batch_size: float | None
    response_ms: float | None = Field(
        default=None, description="The rest, from arrival to answer. null: an earlier version did not keep it."
    )


class GpuRecord(Record):
    """The GPUs that served during a run: mean utilization (0 to 1) and power, peak memory. null: nobody says."""

    utilization: float | None
    memory_used_bytes: int | None
    power_w: float | None
    energy_per_1000_inferences_j: float | None


class MeasurementRecord(Record):
    """One load run. Latency counts from the scheduled send time; null is unknown, never zero."""

    rate_per_s: Rate = Field(description="The planned request rate.")
    achieved_rate_per_s: float
    requests: int = Field(ge=0)
    failures: int = Field(ge=0)
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_mean_ms: float | None
    latency_max_ms: float | None
    send_lag_p99_ms: float | None
    server: ServerTimingsRecord | None
    network_and_client_ms: float | None = Field(
        description="Mean client latency minus Triton's own time for the request."
    )
    gpu: GpuRecord | None = Field(default=None, description="null without a GPU, or where it cannot be read.")
    problems: tuple[str, ...] = Field(description="Not empty: nothing may be decided on this measurement.")

    def latency_at_ms(self, quantile: float) -> float | None:
        """The latency at one of the quantiles that are kept; None for another, and where it is not known."""
        kept = {
            0.5: self.latency_p50_ms,
            0.9: self.latency_p90_ms,
            0.95: self.latency_p95_ms,
            0.99: self.latency_p99_ms,
            0.999: self.latency_p999_ms,
        }
        return kept.get(quantile)


class LimitCertificateRecord(Record):
    """What the confirming run said about one of several limits; the bounds of all hold together."""

    quantile: float = Field(gt=0, lt=1)
    limit_ms: float = Field(gt=0)
    latency_ms: float
    latency_low_ms: float
    latency_high_ms: float
    violations: Count


class CertificateRecord(Record):
    """A rate that kept every limit under a sequential test with fresh arrivals.

    `p99_low_ms` and `p99_high_ms` bound the latency at the first limit's quantile with the test's confidence,
    corrected for the dependence between neighbouring requests. With several limits, all bounds hold together with
    it. `runs` counts the confirmations that were passed, each with a seed of its own, the second one on a
    restarted server where there was time for it: requests, violations and seconds are those of all runs, latencies
    the worse of them, and the confidence is that of two runs that would both have to be wrong (ADR 7).
    """

    rate_per_s: Rate
    quantile: float = Field(default=0.99, gt=0, lt=1, description="Of the first limit.")
    p99_ms: float = Field(ge=0)
    p99_low_ms: float = Field(ge=0)
    p99_high_ms: float = Field(ge=0)
    confidence: float = Field(ge=0, le=1)
    requests: int = Field(ge=0)
    violations: int = Field(ge=0)
    seconds: float = Field(ge=0)
    runs: int = Field(ge=0)
    caveat: str | None = Field(default=None, description="What keeps the promise from being a firm one.")
    also: tuple[LimitCertificateRecord, ...] = Field(default=(), description="The limits after the first.")
    neighbours: NeighboursRecord | None = Field(default=None, description="During all attempts to confirm it.")

    @property
    def confirmed_again(self) -> bool:
        """Whether the rate was kept a second time, on a restarted server: without that it is no firm promise."""
        return self.runs > 1


class LoadRunRecord(Record):
    """One load run of a trial's search for its rate, and what it said about the limit."""

    rate_per_s: Rate
    latency_ms: float | None = Field(description="The limit's quantile; null where too much failed.")
    kept: bool
    trusted: bool = Field(description="False: the client was measured, not the server.")
    seconds: float | None = Field(default=None, description="Until the last answer.")
    requests: Count | None = Field(default=None, description="That counted, without those of the warm-up.")
    violations: Count | None = Field(default=None, description="Of them, over the limit or failed.")
    overloaded: bool | None = Field(default=None, description="More requests left than came back.")
    seed: int | None = Field(default=None, description="Of its arrivals.")
    problems: tuple[str, ...] = ()


class ReplayRecord(Record):
    """A load run's own arrivals, simulated: how much longer than profiled executions took, and what follows."""

    slowdown: float
    rate_per_s: float = Field(description="The rate at the limit with executions that take so long.")
    error: float | None = Field(description="Standard error of its logarithm; null: no rate keeps the limit.")


class TrialRecord(Record):
    """One line of `trials.jsonl`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    number: int
    config: ConfigRecord
    state: Literal["complete", "infeasible", "pruned", "failed"]
    reason: str
    rate_at_limit_per_s: float | None
    rate_low_per_s: float | None
    rate_high_per_s: float | None
    lone_latency_ms: float | None
    measurement: MeasurementRecord | None
    probes: Count
    loading_s: float
    load_s: float
    certificate: CertificateRecord | None
    load_runs: tuple[LoadRunRecord, ...] = ()
    memory_bytes: int | None = Field(
        default=None, description="Of the server and its models, at the most. Null: it could not be seen."
    )
    why: WhyRecord | None = Field(default=None, description="null: an earlier version did not keep it.")
    replay: ReplayRecord | None = Field(
        default=None, description="null: nothing was replayed, or followed from it."
    )
    pace: int = Field(default=0, ge=0, description="How often the machine had changed its speed before.")
    hardware: str | None = Field(default=None, description="What it was measured on.")
    worker: str | None = Field(default=None, description="Who measured it; null: the run itself.")
    neighbours: NeighboursRecord | None = Field(
        default=None, description="null: it could not be seen, or was not."
    )


class LimitRecord(Record):
    """At least `quantile` of all requests are answered within `limit_ms`."""

    limit_ms: float = Field(gt=0)
    quantile: float = Field(ge=0.5, lt=1)


class Slo(Record):
    """The promise to keep: at least `quantile` of all requests are answered within `limit_ms`.

    Latency counts from the moment a request was due to leave, and a failed request is over the limit.
    `confidence` is the least probability with which a kept promise, of all limits together, was not luck.
    """

    limit_ms: float = Field(gt=0)
    quantile: float = Field(default=0.99, ge=0.5, lt=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    also: tuple[LimitRecord, ...] = Field(default=(), description="Further latency limits, of other quantiles.")
    max_memory_bytes: int | None = Field(default=None, gt=0, description="Of the server and its models.")

    @property
    def limits(self) -> tuple[LatencyLimit, ...]:
        """Every latency limit, the first one first."""
        return (LatencyLimit(quantile=self.quantile, limit_ms=self.limit_ms), *self.further)

    @property
    def further(self) -> tuple[LatencyLimit, ...]:
        """The latency limits after the first."""
        return tuple(LatencyLimit(quantile=limit.quantile, limit_ms=limit.limit_ms) for limit in self.also)

    @property
    def text(self) -> str:
        """`p99 within 50 ms`; of several limits `p99 within 50 ms and p50 within 10 ms`."""
        return " and ".join(f"{limit.name} within {limit.limit_ms:g} ms" for limit in self.limits)


class ObjectiveRecord(Record):
    """What was asked for: `cost`, `latency` while one replica answers a rate, or `energy` per inference."""

    name: ObjectiveName = "cost"
    rate_per_s: float | None = Field(default=None, description="Where latencies were compared.")


class PriceRecord(Record):
    """What the machine costs, and who says so."""

    usd_per_hour: float = Field(gt=0)
    source: str
    as_of: str
    describes: str
    term: Term | None = Field(default=None, description="How the machine is bought; null: a price that was given.")
    other_terms_usd_per_hour: dict[Term, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="The same machine bought otherwise, where the price file says."
    )


class CostRecord(Record):
    """Money at the certified rate. Replicas and totals only where a rate to serve was given."""

    price: PriceRecord
    cost_per_million_inferences_usd: float = Field(ge=0)
    baseline_cost_per_million_inferences_usd: float | None
    rate_to_serve_per_s: Rate | None
    replicas: Annotated[int, Field(ge=1)] | None
    total_usd_per_hour: float | None
    energy_kwh_per_million_inferences: float | None = Field(
        default=None, description="Of the GPUs alone at the certified rate; null where power was not measured."
    )
    baseline_energy_kwh_per_million_inferences: float | None = None
    peak_rate_per_s: Rate | None = Field(default=None, description="The highest traffic to be ready for.")


class ModelRecord(Record):
    """The model that was optimized."""

    name: ModelName
    file: str
    sha256: Sha256
    opset: int
    batching: str = Field(description="What was done about the batch dimension, and why.")


class FrontierRecord(Record):
    """A load run that kept the limits, and that no other beat in rate and latency."""

    trial: int
    config: ConfigRecord
    rate_per_s: Rate
    latency_ms: float = Field(description="At the first limit's quantile.")
    certified: bool = Field(description="False: one short run, of which nothing is promised.")


class MachineRecord(Record):
    """Where it was measured. The answer holds for this machine and these versions."""

    cpu: str
    cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)
    gpus: tuple[str, ...]
    versions: dict[str, str]


class ServedRecord(Record):
    """What serving the winner took, as the last server of the run showed it. Null: it could not be seen."""

    replica_start_s: float | None = Field(ge=0, description="From nothing to a loaded model that answers.")
    memory_bytes: int | None = Field(ge=0, description="Of the server and its models, at the most.")


class SecondsRecord(Record):
    """Where the run's wall time went."""

    total: float
    load: float
    loading_models: float
    other: float


class RecommendationRecord(Record):
    """`recommendation.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    tritune_version: Version
    created_at: str = Field(pattern=r"^[0-9T:.Z+-]{10,40}$", description="ISO 8601, UTC.")
    model: ModelRecord
    slo: Slo
    objective: ObjectiveRecord = ObjectiveRecord()
    demand: DemandRecord = Field(default=DemandRecord(), description="The traffic that it holds for.")
    winner: TrialRecord
    baseline: TrialRecord | None
    gain: float | None = Field(description="The winner's certified rate over the baseline's.")
    cost: CostRecord
    alternatives: tuple[TrialRecord, ...]
    reason: str = Field(description="Why this configuration, in a sentence.")
    seconds: SecondsRecord
    machine: MachineRecord
    served: ServedRecord | None = None
    frontier: tuple[FrontierRecord, ...] = Field(default=(), description="With --pareto; rates rise.")
    neighbours: NeighboursRecord | None = Field(default=None, description="During all load of the run.")
    seed: int
    repository: FolderName = Field(description="The Triton model repository, relative to this file.")
    accuracy: tuple[AccuracyRecord, ...] = Field(
        default=(), description="Every precision that was judged; empty where fp32 alone was asked for."
    )
    time_use: TimeUseRecord | None = Field(
        default=None, description="Where the time goes; null where the server gave no timings."
    )
