"""Provide hand-made records of load tests, for the tests of their reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.measurement.server_stats import BatchTimings, ServerTimings
from loadgen.records.record import (
    CapacityRecord,
    CheckRecord,
    ComparisonRecord,
    CurveRecord,
    LoadRecord,
    LoadTestRecord,
    MeasurementRecord,
    ProbeRecord,
    TargetRecord,
    TimelineRecord,
)


def check(**changes: Any) -> CheckRecord:
    values: dict[str, Any] = {
        "name": "p99 <= 50 ms",
        "kind": "latency",
        "quantile": 0.99,
        "limit": 50.0,
        "answer": "met",
        "observed": 41.23,
        "low": 38.01,
        "high": 44.87,
        "confidence": 0.95,
        "requests": 6001,
        "violations": 12,
        "reason": "at most 0.42 % took longer, and 1 % may",
        "needed_s": None,
    }
    return CheckRecord(**{**values, **changes})


def shard_result(**changes: Any) -> ShardResult:
    """A load process that did little for a second."""
    values: dict[str, Any] = {
        "rows": 0,
        "overloaded": False,
        "wall_s": 1.0,
        "cpu_s": 0.1,
        "bytes_sent": 0,
        "bytes_received": 0,
        "connections_opened": 0,
        "error_example": None,
    }
    return ShardResult(**{**values, **changes})


def server() -> ServerTimings:
    return ServerTimings(
        requests=6001,
        failures=0,
        queue_ms=1.2,
        input_ms=0.11,
        infer_ms=8.25,
        output_ms=0.07,
        total_ms=9.63,
        mean_batch_size=2.31,
        batches=(
            BatchTimings(batch_size=1, executions=900, input_ms=0.1, infer_ms=6.0, output_ms=0.05),
            BatchTimings(batch_size=4, executions=1275, input_ms=0.2, infer_ms=9.5, output_ms=0.1),
        ),
    )


def measurement(**changes: Any) -> MeasurementRecord:
    values: dict[str, Any] = {
        "requests": 6001,
        "failures": 3,
        "errors": {"time-out": 2, "http 503": 1},
        "error_example": 'http 503: {"error": "<overloaded & out>"}',
        "planned_rate_per_s": 200.0,
        "achieved_rate_per_s": 199.87,
        "duration_s": 30.0,
        "latency_min_ms": 8.9,
        "latency_mean_ms": 13.02,
        "latency_p50_ms": 12.1,
        "latency_p90_ms": 20.05,
        "latency_p95_ms": 25.4,
        "latency_p99_ms": 41.23,
        "latency_p999_ms": 612.0,
        "latency_max_ms": 10_000.0,
        "latency_p99_low_ms": 38.01,
        "latency_p99_high_ms": 44.87,
        "interval_confidence": 0.95,
        "service_p99_ms": 41.1,
        "send_lag_p50_ms": 0.042,
        "send_lag_p99_ms": 0.31,
        "bytes_sent": 6_200_000,
        "bytes_received": 1_200_000,
        "client_cpu_share": 0.23,
        "client_cpu_s": 7.1,
        "server": server(),
        "network_and_client_ms": 3.39,
        "gpu": None,
        "problems": (),
    }
    return MeasurementRecord(**{**values, **changes})


def load(**changes: Any) -> LoadRecord:
    values: dict[str, Any] = {
        "kind": "open",
        "arrivals": "poisson",
        "rate_per_s": 200.0,
        "concurrency": None,
        "max_in_flight": None,
        "duration_s": 30.0,
        "warmup_s": 1.0,
        "timeout_s": 10.0,
        "seed": 0,
        "processes": 1,
        "batch_size": 1,
        "shapes": {},
        "input_data": None,
    }
    return LoadRecord(**{**values, **changes})


def timeline() -> TimelineRecord:
    bins = 60
    p50 = tuple(12.0 + 2 * (number % 7) for number in range(bins))
    return TimelineRecord(
        bin_s=0.5,
        start_s=tuple(0.5 * number for number in range(bins)),
        due_per_s=tuple(190.0 + 5 * (number % 5) for number in range(bins)),
        failures=tuple(1 if number in (20, 21, 40) else 0 for number in range(bins)),
        p50_ms=tuple(None if number == 33 else value for number, value in enumerate(p50)),
        p99_ms=tuple(2.2 * value for value in p50),
        max_ms=tuple(10_000.0 if number in (20, 21) else 3.0 * value for number, value in enumerate(p50)),
    )


def curve() -> CurveRecord:
    return CurveRecord(
        quantile=(0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0),
        latency_ms=(8.9, 12.1, 20.05, 41.23, 612.0, 10_000.0, 10_000.0),
    )


def capacity(**changes: Any) -> CapacityRecord:
    values: dict[str, Any] = {
        "quantile": 0.99,
        "certified_rate_per_s": 412.0,
        "estimate_per_s": 420.0,
        "low_per_s": 405.0,
        "high_per_s": 431.0,
        "lone_latency_ms": 9.4,
        "inconclusive": False,
        "seconds": 58.3,
        "probes": (
            ProbeRecord(rate_per_s=300, seconds=4.0, requests=1204, violations=0, latency_ms=30.1, answer="met"),
            ProbeRecord(
                rate_per_s=450, seconds=1.9, requests=850, violations=301, latency_ms=260.0, answer="violated"
            ),
        ),
        "reason": "412 requests/s met p99 <= 50 ms in a run of its own",
    }
    return CapacityRecord(**{**values, **changes})


def compared(**changes: Any) -> ComparisonRecord:
    values: dict[str, Any] = {
        "figure": "p99",
        "unit": "ms",
        "baseline": 30.1,
        "now": 41.23,
        "ratio": 1.37,
        "ratio_low": 1.21,
        "ratio_high": 1.55,
        "answer": "worse",
    }
    return ComparisonRecord(**{**values, **changes})


def record(**changes: Any) -> LoadTestRecord:
    values: dict[str, Any] = {
        "tool": "tritune 0.1.0",
        "started_at": datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC),
        "outcome": "met",
        "exit_code": 0,
        "reasons": ("p99 <= 50 ms at 200 requests/s",),
        "notes": (),
        "target": TargetRecord(
            url="http://localhost:8000",
            model_name="resnet<50>",
            model_version="",
            header_names=("Authorization",),
            certificate_checked=None,
        ),
        "load": load(),
        "checks": (check(),),
        "measurement": measurement(),
        "curve": curve(),
        "timeline": timeline(),
        "capacity": None,
        "baseline": None,
        "comparison": (),
    }
    return LoadTestRecord(**{**values, **changes})


def no_rows() -> RequestLog:
    """Return an empty log."""
    none = np.zeros(0, np.int64)
    return RequestLog(scheduled_ns=none, sent_ns=none, done_ns=none, outcome=np.zeros(0, np.uint8))
