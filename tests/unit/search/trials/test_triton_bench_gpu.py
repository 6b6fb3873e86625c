"""What the GPUs did, as it is written with each measurement."""

from typing import Any

import pytest

from loadgen.measurement.gpu import GpuUse
from loadgen.measurement.request_log import ClientUse, Measurement
from search.records.trial import GpuRecord
from search.trials.trial import measurement_to_record

CLIENT = ClientUse(cpu_share=0.1, cpu_s=0.1, bytes_sent=1, bytes_received=1, connections_opened=0)
TIMES = (
    "p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms", "mean_ms", "service_p99_ms", "send_lag_p50_ms",
    "send_lag_p99_ms",
)  # fmt: skip


def written(gpu: GpuUse | None, *, n: int = 2000, errors: dict[Any, Any] | None = None) -> GpuRecord | None:
    seen = Measurement(
        **dict.fromkeys(TIMES, 1.0), n=n, planned_rate_per_s=100.0, achieved_rate_per_s=100.0, duration_s=20.0,  # type: ignore[arg-type]
        client=CLIENT, gpu=gpu, errors=errors or {},
    )  # fmt: skip
    return measurement_to_record(seen, 100.0).gpu


def test_energy_is_per_thousand_answers() -> None:
    use = GpuUse(utilization=0.5, memory_used_bytes=2**30, power_w=300.0, energy_j=600.0)
    found = written(use)
    assert (found.utilization, found.memory_used_bytes, found.power_w) == (0.5, 2**30, 300.0)
    assert found.energy_per_1000_inferences_j == pytest.approx(300.0)
    assert written(use, errors={"timeout": 1000}).energy_per_1000_inferences_j == pytest.approx(600.0)


def test_what_nobody_says_is_null() -> None:
    unknown = GpuUse(utilization=None, memory_used_bytes=None, power_w=None, energy_j=None)
    assert set(written(unknown).model_dump().values()) == {None}
    assert written(None) is None


def test_energy_for_no_answer_at_all_is_null() -> None:
    use = GpuUse(utilization=0.0, memory_used_bytes=0, power_w=0.0, energy_j=0.0)
    assert written(use, n=10, errors={"timeout": 10}).energy_per_1000_inferences_j is None
    assert written(use).utilization == 0.0
