"""An order and what came of it, as a record."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from loadgen.headers import without_secrets
from loadgen.measurement import known
from loadgen.plan import ClosedLoopPlan, LoadPlan
from loadgen.printable import printable
from loadgen.reports.record import (
    BatchRecord,
    GpuRecord,
    LoadRecord,
    MeasurementRecord,
    ServerRecord,
    TargetRecord,
)

if TYPE_CHECKING:
    from loadgen.judge import P99Bounds
    from loadgen.measurement import Measurement
    from loadgen.order import Order
    from loadgen.plan import Arrivals, Target
    from loadgen.server_stats import ServerTimings


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


def load_record(order: Order, *, machines: int = 1) -> LoadRecord:
    """What was asked for."""
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
        requests=seen.n,
        failures=sum(seen.errors.values()),
        errors=dict(seen.errors),
        error_example=None
        if seen.error_example is None
        else printable(without_secrets(seen.error_example, target.headers)),
        planned_rate_per_s=None
        if seen.planned_rate_per_s is None or isinstance(plan, ClosedLoopPlan)
        else mean_level(plan.arrivals) * seen.planned_rate_per_s,
        achieved_rate_per_s=known(seen.achieved_rate_per_s) or 0.0,
        duration_s=seen.duration_s,
        latency_min_ms=least_ms,
        latency_mean_ms=known(seen.mean_ms),
        latency_p50_ms=known(seen.p50_ms),
        latency_p90_ms=known(seen.p90_ms),
        latency_p95_ms=known(seen.p95_ms),
        latency_p99_ms=known(seen.p99_ms),
        latency_p999_ms=known(seen.p999_ms),
        latency_max_ms=known(seen.max_ms),
        latency_p99_low_ms=bounds.low_ms,
        latency_p99_high_ms=bounds.high_ms,
        latency_p99_bounded_after_s=bounds.needed_s,
        interval_confidence=confidence,
        service_p99_ms=known(seen.service_p99_ms),
        send_lag_p50_ms=known(seen.send_lag_p50_ms),
        send_lag_p99_ms=known(seen.send_lag_p99_ms),
        bytes_sent=seen.client.bytes_sent,
        bytes_received=seen.client.bytes_received,
        client_cpu_share=seen.client.cpu_share,
        client_cpu_s=seen.client.cpu_s,
        server=None if seen.server is None else _server_record(seen.server),
        network_and_client_ms=None if seen.server is None else known(seen.mean_ms - seen.server.total_ms),
        gpu=None if seen.gpu is None else GpuRecord(**asdict(seen.gpu)),
        problems=tuple(seen.problems),
        percentiles_from=seen.percentiles_from,
    )


def mean_level(arrivals: Arrivals) -> float:
    """What a plan's rate is multiplied by on average: levels that change it do not always average to 1."""
    if arrivals.kind in ("ramp", "steps"):
        return sum(arrivals.levels) / len(arrivals.levels)
    if arrivals.kind == "spike":
        return 1.0 + (arrivals.levels[0] - 1.0) * (arrivals.end - arrivals.start)
    return 1.0


def _server_record(seen: ServerTimings) -> ServerRecord:
    batches = tuple(BatchRecord(**asdict(batch)) for batch in seen.batches)
    return ServerRecord(**{**asdict(seen), "batches": batches})
