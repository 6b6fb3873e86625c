"""One configuration that was measured, its result, and the record of a load run's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Self

from pydantic import Field, SkipValidation

from loadgen.measurement.request_log import Measurement
from loadgen.measurement.result import lost_answers
from model_repo.spec import Engine, ServingConfig
from search.labels import met_per_s
from search.records.trial import (
    ConfigRecord,
    GpuRecord,
    LoadRunRecord,
    MeasurementRecord,
    ReplayRecord,
    ServerTimingsRecord,
    TrialRecord,
    TrialState,
)
from search.space import engine_label
from search.trials.bench import Spent

_OWN = {"engine", "members"}


class UnknownEngine(LookupError):
    """A record names an engine that this run does not have."""


class Trial(TrialRecord):
    """A trial of this run: its record, and the configuration as it is served, which no file holds (ADR 15)."""

    served: SkipValidation[ServingConfig] = Field(exclude=True, repr=False)

    def meeting(self, rate_per_s: float) -> Self:
        """Return the trial with a capacity that is not below this rate, at which a test met the SLO.

        An estimate is from a few seconds, in which the machine may have been slow: a test is better evidence.
        """
        rates = {"rate_at_limit_per_s": self.rate_at_limit_per_s, "rate_high_per_s": self.rate_high_per_s}
        raised = {name: rate_per_s for name, one in rates.items() if one is not None and one < rate_per_s}
        return self.changed(**raised) if raised else self

    @property
    def record(self) -> TrialRecord:
        """The record alone, equal to what is read back from its line."""
        return TrialRecord(**{name: value for name, value in self if name != "served"})

    def over_memory(self, most_bytes: int | None) -> bool:
        """True if the server is known to have taken more."""
        return most_bytes is not None and self.memory_bytes is not None and self.memory_bytes > most_bytes


def trial_of(
    number: int,
    config: ServingConfig,
    state: TrialState,
    reason: str,
    *,
    spent: Spent,
    load_runs: Sequence[LoadRunRecord] = (),
    rate_at_limit_per_s: float | None = None,
    rate_low_per_s: float | None = None,
    rate_high_per_s: float | None = None,
    lone_latency_ms: float | None = None,
    measurement: MeasurementRecord | None = None,
    replay: ReplayRecord | None = None,
) -> Trial:
    """Return the trial of a configuration that was measured, or could not be, with the runs that it took."""
    trial = Trial(
        number=number,
        served=config,
        config=config_to_record(config),
        state=state,
        reason=reason,
        rate_at_limit_per_s=rate_at_limit_per_s,
        rate_low_per_s=rate_low_per_s,
        rate_high_per_s=rate_high_per_s,
        lone_latency_ms=lone_latency_ms,
        measurement=measurement,
        probes=len(load_runs),
        loading_s=spent.loading_s,
        load_s=spent.load_s,
        certificate=None,
        load_runs=tuple(load_runs),
        replay=replay,
    )
    return trial.meeting(met_per_s(load_runs)) if state == "complete" else trial


def trial_from_record(record: TrialRecord, engines: Sequence[Engine]) -> Trial:
    """Return the trial of a record. Raises UnknownEngine if its engine is not among `engines`."""
    return Trial(**dict(record), served=config_from_record(record.config, engines))


def config_to_record(config: ServingConfig) -> ConfigRecord:
    """Return the record of a configuration, which names the engine by its label."""
    values = {field.name: getattr(config, field.name) for field in fields(ServingConfig) if field.name not in _OWN}
    members = tuple(map(config_to_record, config.members))
    return ConfigRecord(engine=engine_label(config.engine), members=members, **values)


def config_from_record(record: ConfigRecord, engines: Sequence[Engine]) -> ServingConfig:
    """Return the configuration of a record. Raises UnknownEngine if its engine is not among `engines`."""
    engine = next((engine for engine in engines if engine_label(engine) == record.engine), None)
    if engine is None:
        raise UnknownEngine(f"engine {record.engine} is not one of {[engine_label(e) for e in engines]}")
    members = tuple(config_from_record(member, engine.members) for member in record.members)
    return ServingConfig(engine=engine, members=members, **record.model_dump(exclude=_OWN))


def measurement_to_record(seen: Measurement, rate_per_s: float, *, rows_per_request: int = 1) -> MeasurementRecord:
    """Return the record of a load run's figures; those that could not be measured are null."""
    server = seen.server
    return MeasurementRecord(
        rate_per_s=rate_per_s,
        **seen.figures,
        lost_answers=lost_answers(seen.n, seen.errors, server),
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
        gpu=_gpu_record(seen, rows_per_request),
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
