"""`recommendation.json`: how a run ended, the recommended configuration if there is one, and how it was found.

With the distance of each precision from fp32, and the times of engines by their layers.
"""

from __future__ import annotations

import math
from statistics import mean, stdev
from typing import Annotated, Literal

from pydantic import Field

from loadgen.exit_codes import Status
from loadgen.measurement.cpu_contention import CpuContention
from model_repo.spec import Protocol, Runtime, ServerKind
from search.cost.cost import PriceRecord
from search.record import Rate, Record, Sha256, Version, passing_over
from search.records.slo import ObjectiveRecord, Slo, WorkloadRecord
from search.records.trial import SCHEMA_VERSION, ConfigRecord, TrialRecord

Bound = Literal["arithmetic", "bytes", "overhead", "unknown"]
"""The bottleneck of a layer: arithmetic or memory traffic, at the measured ceilings of the machine, or
overhead, if both would take less than a quarter of its time. unknown: its amount of work is not known."""


class LayerRecord(Record):
    """One layer of an engine: a node of the ONNX graph, or several that were fused into one."""

    name: str
    operator: str
    mean_ms: float = Field(description="Time in one execution of the engine.")
    share: float = Field(description="Share of the time of all layers, 0 to 1.")
    bound: Bound


class CeilingsRecord(Record):
    """The highest throughputs of this machine, measured with the engine's threads; null if not measured."""

    flops_per_s: float | None = Field(description="In a large matrix product; a multiply-add counts as two.")
    bytes_per_s: float | None = Field(description="Bytes read and written by a large elementwise operator.")


class EngineProfileRecord(Record):
    """An engine on its own, after the run: no server, one execution at a time, random inputs."""

    engine: str = Field(description="Backend and precision, as in the configuration.")
    batch_size: int = Field(ge=1, description="The mean batch size during the run, rounded.")
    execution_ms: float = Field(description="Time of one execution, without the profiler.")
    other_graph_ms: float | None = Field(
        default=None, description="The same with CUDA graphs off (on, if they are off in the configuration)."
    )
    layers: tuple[LayerRecord, ...] = Field(description="The slowest, ten at most.")
    layer_count: int
    bound_shares: dict[Bound, float] = Field(description="Shares of the time of all layers, by bottleneck.")
    operator_shares: dict[str, float] = Field(
        description="Shares of the time of all layers, by operator, largest first."
    )
    ceilings: CeilingsRecord
    profiler: str = Field(description="The profiler of the layer times, such as `onnxruntime`.")


class TimeUseRecord(Record):
    """How a request's time divides, for winner and baseline. An engine that could not be profiled is null."""

    summary: str = Field(description="In words: which stage takes the time, its bottleneck, and what would help.")
    winner: EngineProfileRecord | None = None
    baseline: EngineProfileRecord | None = None


class OutputAccuracyRecord(Record):
    """One output of a variant against fp32, over all inputs. Formulas: `optimizer/accuracy/metrics.py`."""

    _earlier = passing_over("top1_lower_bound")

    output: str
    batch_size: int = Field(ge=1)
    passed: bool
    sqnr_db: float | None = Field(description="Signal to quantization noise; null if `exact`, or without signal.")
    exact: bool = Field(description="True if every element is equal.")
    cosine: float | None = Field(description="Cosine similarity; null if the output holds no floats.")
    max_relative_error: float | None = Field(description="Largest |r - y| / (|r| + 0.01 rms(r)).")
    top1_agreement: float | None = Field(
        description="Share of inputs with the same best class, or of equal elements if there are no floats; "
        "null if the output does not look like a classifier's."
    )
    non_finite: int = Field(description="Number of elements that are NaN, infinite or missing.")


class AccuracyRecord(Record):
    """A variant's results compared with those of the fp32 model. Passed means close, not equally accurate."""

    _earlier = passing_over("first_node")

    precision: str
    runner: str = Field(description="The library that computed the variant, such as `onnxruntime-cpu`.")
    level: Literal["strict", "standard", "off"]
    passed: bool
    reason: str = Field(description="The figure that missed its threshold; empty if none did.")
    inputs: int
    input_source: Literal["given", "synthetic"]
    note: str = Field(description="Why there were fewer inputs than intended; empty if there were enough.")
    outputs: tuple[OutputAccuracyRecord, ...]

    @property
    def least_sqnr_db(self) -> float | None:
        """The SQNR of the output that is furthest from fp32; None if every output is equal, or has no signal."""
        return min((output.sqnr_db for output in self.outputs if output.sqnr_db is not None), default=None)


class CostRecord(Record):
    """Cost at the certified rate. Replicas and totals are null if no rate to serve was given."""

    price: PriceRecord
    cost_per_million_inferences_usd: float = Field(ge=0)
    baseline_cost_per_million_inferences_usd: float | None = Field(
        description="What the baseline costs at the same share of its estimated capacity."
    )
    rate_to_serve_per_s: Rate | None
    replicas: Annotated[int, Field(ge=1)] | None
    total_usd_per_hour: float | None
    energy_kwh_per_million_inferences: float | None = Field(
        default=None, description="Energy of the GPUs alone at the certified rate; null if power was not measured."
    )
    baseline_energy_kwh_per_million_inferences: float | None = None
    peak_rate_per_s: Rate | None = Field(default=None, description="The highest rate to be ready for.")


class ModelRecord(Record):
    """The model that was optimized."""

    name: str
    file: str
    sha256: Sha256
    opset: int | None = Field(description="Of the ONNX file; null for a model of the user's own repository.")
    batching: str = Field(description="How the batch dimension was changed, and why.")
    fixed_rows: int = Field(
        default=1, ge=1, description="Size of what looks like a batch in its file, and is served whole; else 1."
    )

    @property
    def label(self) -> str:
        """Its file, with the opset if it has one."""
        return self.file if self.opset is None else f"{self.file} (opset {self.opset})"


class FrontierRecord(Record):
    """A load run that met the SLO, and that no other beat in both rate and latency."""

    trial: int
    config: ConfigRecord
    rate_per_s: Rate
    latency_ms: float = Field(description="At the first limit's quantile.")
    certified: bool = Field(description="False for a single short run, which certifies nothing.")


class MachineRecord(Record):
    """The machine that measured. The recommendation holds for it and for these versions."""

    cpu: str
    cores: int = Field(ge=1)
    memory_bytes: int = Field(ge=0)
    gpus: tuple[str, ...]
    versions: dict[str, str]


class ServedRecord(Record):
    """The resources that the winner took on the last server of the run; null if not measured."""

    replica_start_s: float | None = Field(
        ge=0, description="Time until a new server has loaded the model and answers."
    )
    memory_bytes: int | None = Field(ge=0, description="Peak memory of the server and its models.")


BETTER = 1.1
"""A protocol is better if it lets 10 % more through, by its gain less two standard errors."""


class FrontEndsRecord(Record):
    """Requests/s of closed loops through Triton's front ends before the trials, over one and the other in turn."""

    http: tuple[Rate, ...] = Field(min_length=2)
    grpc: tuple[Rate, ...] = Field(min_length=2)
    http_loses_from_per_s: Rate | None = Field(default=None, description="HTTP may lose answers from here on.")
    with_input_types: dict[str, Rate] = Field(default={}, description="The better one, by `--input-type`.")

    @property
    def usable(self) -> dict[Protocol, tuple[float, ...]]:
        """What each protocol lets through without losing answers."""
        most_per_s = self.http_loses_from_per_s or math.inf
        return {"http": tuple(min(rate, most_per_s) for rate in self.http), "grpc": self.grpc}

    @property
    def better(self) -> Protocol | None:
        """The protocol that is better; None if neither is."""
        gains = [math.log(grpc / http) for http, grpc in zip(*self.usable.values(), strict=False)]
        sure = abs(mean(gains)) - 2 * stdev(gains) / math.sqrt(len(gains))
        return None if sure < math.log(BETTER) else "grpc" if mean(gains) > 0 else "http"


class RuntimeRecord(Record):
    """The server that was measured, which is the one that a bundle deploys."""

    server: ServerKind = Field(description="Who started it: the package `embedded`, a container, or others.")
    runtime: Runtime = Field(
        description="Our code in Triton's Python backend or in our own (`slots`), or a native backend."
    )
    triton_version: Version | None = Field(
        description="As reported by the server; null if it could not be queried."
    )
    python: str | None = Field(description="The Python of the server's stub; null for the native backend.")
    image: str | None = Field(description="The container's image; null if tritune started no container.")
    packages: dict[str, Version] = Field(
        description="What the server and its models loaded, for a bundle's image; empty for native backends."
    )


class StepRecord(Record):
    """The wall time of a step of the preparation."""

    step: str
    seconds: float = Field(ge=0)
    cached: bool = Field(default=False, description="True if the result is from the cache of earlier runs.")


class StageRecord(Record):
    """The wall time of a stage of the run, and the parts that were load and loading of models."""

    stage: str
    seconds: float = Field(ge=0)
    load: float = Field(ge=0)
    loading_models: float = Field(ge=0)

    @property
    def waiting(self) -> float:
        """Seconds that were neither: computing, waiting for other processes, and gaps between load runs."""
        return max(0.0, self.seconds - self.load - self.loading_models)


class SecondsRecord(Record):
    """How the run's wall time divides."""

    total: float
    load: float
    loading_models: float
    other: float
    preparation: tuple[StepRecord, ...] = Field(
        default=(), description="The steps of the preparation in order; empty in files of earlier versions."
    )
    stages: tuple[StageRecord, ...] = Field(
        default=(),
        description="In the order in which they first began: prepare, search, profile, certify, finish.",
    )


class OutcomeRecord(Record):
    """How a run ended, in every `recommendation.json`."""

    schema_version: Literal[2] = SCHEMA_VERSION
    tritune_version: Version
    created_at: str = Field(description="ISO 8601, UTC.")
    status: Status = Field(
        description="certified: confirmed twice, the second time on a restarted server if ours. provisional: "
        "once, or with too low a confidence. Else how the last process ended, which may keep earlier results.",
    )
    exit_code: int = Field(default=0, ge=0, le=255, description="Of the process.")
    status_reason: str = Field(default="", description="The reason for the status, in a sentence.")
    advice: str = Field(default="", description="What to do about it; empty if there is nothing to do.")
    contention: CpuContention | None = Field(
        default=None, description="CPU contention during all load of the run; null if not measured."
    )


class WithdrawnRecord(Record):
    """A rate that was met, and that was violated later: nothing recommends it any more."""

    trial: int
    rate_per_s: Rate = Field(description="The rate that was met; `confirmations.jsonl` has the load runs.")
    reason: str = Field(description="Why it is withdrawn, in a sentence without its full stop.")


class NoRecommendationRecord(OutcomeRecord):
    """`recommendation.json` of a run that recommends nothing."""

    winner: None = None
    withdrawn: WithdrawnRecord | None = Field(
        default=None, description="The highest rate that was met before it was violated; null if there was none."
    )


class RecommendationRecord(OutcomeRecord):
    """`recommendation.json` of a run that recommends a configuration."""

    model: ModelRecord
    slo: Slo
    objective: ObjectiveRecord = ObjectiveRecord()
    workload: WorkloadRecord = Field(
        default=WorkloadRecord(), description="The traffic that the certified rate holds for."
    )
    winner: TrialRecord
    baseline: TrialRecord | None
    gain: float | None = Field(description="The winner's estimated capacity over the baseline's.")
    start: TrialRecord | None = Field(
        default=None, description="The configuration of --start-from, a second baseline; null without it."
    )
    cost: CostRecord
    alternatives: tuple[TrialRecord, ...]
    reason: str = Field(description="Why this configuration, in a sentence.")
    seconds: SecondsRecord
    machine: MachineRecord
    served: ServedRecord | None = None
    runtime: RuntimeRecord
    frontier: tuple[FrontierRecord, ...] = Field(default=(), description="With --pareto, by rising rate.")
    seed: int
    repository: str = Field(description="The Triton model repository, relative to this file.")
    config_diff: str | None = Field(
        default=None,
        description="With --repository: the changes to the user's config.pbtxt, as a unified diff. Else null.",
    )
    accuracy: tuple[AccuracyRecord, ...] = Field(
        default=(), description="Every precision that was compared with fp32; empty if only fp32 was requested."
    )
    standalone_per_s: Rate | None = Field(
        default=None,
        description="Requests/s of the winner's engine without a server, at its best batch size within the limit; "
        "null if it was not measured.",
    )
    let_through: FrontEndsRecord | None = Field(
        default=None, description="By which --protocol auto chose; null if nothing was measured."
    )
    time_use: TimeUseRecord | None = Field(
        default=None, description="How a request's time divides; null if the server gave no timings."
    )

    _earlier = passing_over("queue_policy", "front_ends")

    @property
    def provisional(self) -> bool:
        """True if the rate was met once only, or with less confidence than was asked for."""
        certificate = self.winner.certificate
        return certificate is None or not certificate.certifies(self.slo.confidence)


AnyRecommendation = RecommendationRecord | NoRecommendationRecord
"""`recommendation.json`, whatever the outcome."""
