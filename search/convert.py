"""Trials and configurations to the records that are written, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from loadgen.measurement import known
from model_repo.spec import ServingConfig
from search.records import ConfigRecord, GpuRecord, MeasurementRecord, ServerTimingsRecord, TrialRecord
from search.space import engine_label
from search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.measurement import Measurement
    from model_repo.spec import Engine


class UnknownEngine(LookupError):
    """A record names an engine that this run does not have."""


def config_to_record(config: ServingConfig) -> ConfigRecord:
    """The configuration as it is written: the engine by its label."""
    return ConfigRecord(
        engine=engine_label(config.engine),
        max_batch_size=config.max_batch_size,
        instance_count=config.instance_count,
        dynamic_batching=config.dynamic_batching,
        max_queue_delay_us=config.max_queue_delay_us,
        preferred_batch_sizes=config.preferred_batch_sizes,
        intra_op_threads=config.intra_op_threads,
        cuda_graph_batch_sizes=config.cuda_graph_batch_sizes,
    )


def config_from_record(record: ConfigRecord, engines: Sequence[Engine]) -> ServingConfig:
    """The configuration that was written. Raises UnknownEngine where its engine is not among `engines`."""
    engine = next((engine for engine in engines if engine_label(engine) == record.engine), None)
    if engine is None:
        raise UnknownEngine(f"engine {record.engine} is not one of {[engine_label(e) for e in engines]}")
    return ServingConfig(engine=engine, **record.model_dump(exclude={"engine"}))


def trial_to_record(trial: Trial) -> TrialRecord:
    """The line of `trials.jsonl`."""
    return TrialRecord(config=config_to_record(trial.config), **_all_but_config(trial))


def trial_from_record(record: TrialRecord, engines: Sequence[Engine]) -> Trial:
    """The trial that was written. Raises UnknownEngine."""
    return Trial(config=config_from_record(record.config, engines), **_all_but_config(record))


def _all_but_config(trial: Trial | TrialRecord) -> dict[str, Any]:
    """What a trial and its record say in the same words."""
    return {field.name: getattr(trial, field.name) for field in fields(Trial) if field.name != "config"}


def measurement_to_record(seen: Measurement, rate_per_s: float, *, rows_per_request: int = 1) -> MeasurementRecord:
    """The figures of a load run as they are written; what could not be measured becomes null."""
    server = seen.server
    network_ms = None if server is None else known(seen.mean_ms - server.total_ms)
    return MeasurementRecord(
        rate_per_s=rate_per_s,
        achieved_rate_per_s=seen.achieved_rate_per_s,
        requests=seen.n,
        failures=sum(seen.errors.values()),
        latency_p50_ms=known(seen.p50_ms),
        latency_p90_ms=known(seen.p90_ms),
        latency_p95_ms=known(seen.p95_ms),
        latency_p99_ms=known(seen.p99_ms),
        latency_p999_ms=known(seen.p999_ms),
        latency_mean_ms=known(seen.mean_ms),
        latency_max_ms=known(seen.max_ms),
        send_lag_p99_ms=known(seen.send_lag_p99_ms),
        server=None
        if server is None
        else ServerTimingsRecord(
            queue_ms=server.queue_ms,
            compute_input_ms=server.input_ms,
            compute_infer_ms=server.infer_ms,
            compute_output_ms=server.output_ms,
            mean_batch_size=server.mean_batch_size,
            response_ms=server.rest_ms,
        ),
        network_and_client_ms=network_ms,
        gpu=_gpu_record(seen, rows_per_request),
        problems=tuple(seen.problems),
    )


def _gpu_record(seen: Measurement, rows_per_request: int) -> GpuRecord | None:
    if seen.gpu is None:
        return None
    answered = rows_per_request * (seen.n - sum(seen.errors.values()))
    energy_j = seen.gpu.energy_j
    return GpuRecord(
        utilization=seen.gpu.utilization,
        memory_used_bytes=seen.gpu.memory_used_bytes,
        power_w=seen.gpu.power_w,
        energy_per_1000_inferences_j=None if energy_j is None or not answered else 1000 * energy_j / answered,
    )
