"""Where a request's time goes inside of the engine, and the paragraph about it, as they are written down."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from search.record import Record

Bound = Literal["arithmetic", "bytes", "overhead", "unknown"]
"""What holds a layer up: its arithmetic or its memory traffic, at the machine's measured ceilings, or, where both
would take less than a quarter of its time, what is around them. unknown: how much it has to do is not known."""


class LayerRecord(Record):
    """One layer of an engine: a node of the ONNX graph, or several that were fused into one."""

    name: str
    operator: str
    mean_ms: float = Field(description="In one execution of the engine.")
    share: float = Field(description="Of the time of all layers, 0 to 1.")
    bound: Bound


class CeilingsRecord(Record):
    """What this machine does at most, measured with the engine's own threads; null: it could not be measured."""

    flops_per_s: float | None = Field(description="A large matrix product; a multiply-add counts as two.")
    bytes_per_s: float | None = Field(description="Read and written by a large elementwise operator.")


class EngineProfileRecord(Record):
    """An engine on its own, after the run: no server, one execution at a time, random inputs."""

    engine: str = Field(description="Backend and precision, as in the configuration.")
    batch_size: int = Field(ge=1, description="The mean batch that was served, rounded.")
    execution_ms: float = Field(description="One execution, without the profiler.")
    other_graph_ms: float | None = Field(
        default=None, description="The same with CUDA graphs off (on, if they are off in the configuration)."
    )
    layers: tuple[LayerRecord, ...] = Field(description="The slowest, ten at most.")
    layer_count: int
    bound_shares: dict[Bound, float] = Field(description="Of the time of all layers, by what holds them up.")
    operator_shares: dict[str, float] = Field(description="Of the time of all layers, by operator, largest first.")
    ceilings: CeilingsRecord
    profiler: str = Field(description="Whose layer times these are, such as `onnxruntime`.")


class TimeUseRecord(Record):
    """Where the time goes, for the winner and the baseline. An engine that could not be profiled is null."""

    summary: str = Field(description="In words: what takes the time, what bounds it, and what would help.")
    winner: EngineProfileRecord | None = None
    baseline: EngineProfileRecord | None = None
