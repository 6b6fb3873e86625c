"""The record of an order and its result."""

from __future__ import annotations

from importlib.metadata import version

from loadgen.measurement.request_log import Measurement, none_if_not_finite
from loadgen.printable import printable
from loadgen.records.record import LoadRecord, MeasurementRecord, TargetRecord
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target, without_secrets
from loadgen.statistics.checks import P99Bounds


def tool_name() -> str:
    """`tritune 0.1.0`."""
    return f"tritune {version('tritune')}"


def target_record(target: Target) -> TargetRecord:
    """The target without anything secret."""
    return TargetRecord(
        url=target.url,
        model_name=target.model_name,
        model_version=target.model_version,
        header_names=tuple(name for name, _ in target.headers),
        certificate_checked=not target.insecure if target.is_tls else None,
    )


def load_record(order: LoadTest, *, machines: int = 1) -> LoadRecord:
    """Return the record of the load."""
    plan = order.plan
    is_open = isinstance(plan, LoadPlan)
    return LoadRecord(
        kind="open" if is_open else "closed",
        arrivals=order.arrivals_text,
        rate_per_s=plan.rate_per_s if isinstance(plan, LoadPlan) and order.first_rate_known else None,
        concurrency=plan.concurrency if isinstance(plan, ClosedLoopPlan) else None,
        max_in_flight=plan.max_in_flight if isinstance(plan, LoadPlan) else None,
        duration_s=plan.duration_s,
        warmup_s=order.effective_warmup_s,
        timeout_s=plan.timeout_s,
        most_send_lag_ms=plan.most_send_lag_ms,
        seed=plan.seed,
        processes=order.processes,
        machines=machines,
        batch_size=order.payload.batch_size,
        shapes={name: tuple(shape) for name, shape in order.payload.shapes.items()},
        shared_memory=order.payload.shared_memory,
        input_data=None if order.payload.data_file is None else order.payload.data_file.name,
    )


def measurement_record(
    seen: Measurement,
    *,
    least_ms: float | None,
    target: Target,
    plan: LoadPlan | ClosedLoopPlan,
    bounds: P99Bounds,
    confidence: float,
) -> MeasurementRecord:
    """The figures as they are written. `bounds` are those of p99."""
    return MeasurementRecord(
        **seen.figures,
        errors=dict(seen.errors),
        error_example=None
        if seen.error_example is None
        else printable(without_secrets(seen.error_example, target.headers)),
        planned_rate_per_s=None
        if seen.planned_rate_per_s is None or isinstance(plan, ClosedLoopPlan)
        else mean_level(plan.arrivals) * seen.planned_rate_per_s,
        duration_s=seen.duration_s,
        latency_min_ms=least_ms,
        latency_p99_low_ms=bounds.low_ms,
        latency_p99_high_ms=bounds.high_ms,
        latency_p99_bounded_after_s=bounds.needed_s,
        interval_confidence=confidence,
        service_p99_ms=none_if_not_finite(seen.service_p99_ms),
        send_lag_p50_ms=none_if_not_finite(seen.send_lag_p50_ms),
        bytes_sent=seen.client.bytes_sent,
        bytes_received=seen.client.bytes_received,
        client_cpu_share=seen.client.cpu_share,
        client_cpu_s=seen.client.cpu_s,
        server=seen.server,
        gpu=seen.gpu,
    )


def mean_level(arrivals: Arrivals) -> float:
    """Return the mean factor on a plan's rate: levels do not always average to 1."""
    if arrivals.kind in ("ramp", "steps"):
        return sum(arrivals.levels) / len(arrivals.levels)
    if arrivals.kind == "spike":
        return 1.0 + (arrivals.levels[0] - 1.0) * (arrivals.end - arrivals.start)
    return 1.0
