"""The record of a load run's figures."""

from __future__ import annotations

from loadgen.measurement.request_log import Measurement
from loadgen.measurement.result import lost_answers
from search.records.trial import GpuRecord, MeasurementRecord, ServerTimingsRecord


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
