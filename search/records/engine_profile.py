"""Records of an engine's layer profile, and of the summary of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from search.record import Record

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
