import itertools
import threading

import pytest
from strange_servers import Strange, document, drip, serving

from loadgen.measurement import gpu
from loadgen.measurement.gpu import GpuSample, GpuSampler, reader_for, sample_from_metrics, use_from_samples
from loadgen.spec.target import Target

METRICS = """\
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} 0.1
nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 85899345920
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1e9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-2"} 2000000000.000000
nv_gpu_power_usage{gpu_uuid="GPU-1"} 300.5
nv_energy_consumption{gpu_uuid="GPU-1"} 1000.25
nv_inference_count{model="m",version="1"} 12
"""


def test_the_gpus_in_tritons_metrics() -> None:
    assert sample_from_metrics(METRICS) == {
        "utilization": (0.5, 0.1),
        "memory_used_bytes": (1e9, 2e9),
        "power_w": (300.5,),
        "energy_j": (1000.25,),
    }


def test_metrics_of_a_server_without_gpus() -> None:
    assert sample_from_metrics('nv_inference_count{model="m"} 12\nnv_gpu_utilization 0.5\n') is None


def test_what_is_no_figure_is_not_told() -> None:
    for value in ("inf", "nan", "-1", "1e300"):
        assert sample_from_metrics(f'nv_gpu_memory_used_bytes{{gpu_uuid="GPU-1"}} {value}\n') is None


def test_metrics_that_come_in_drips_end_by_their_deadline() -> None:
    strange = Strange(
        name="drips", answers={"metadata": drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n ")}
    )
    with serving(strange) as url:
        read = reader_for(Target(url=url, model_name="m", metrics_url=f"{url}/metrics"))
        assert read() is None  # the drips go on for half an hour, longer than a test may take


def test_metrics_are_read_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_TIMEOUT_S", 240.0)
    strange = Strange(name="metrics", answers={"metadata": document(METRICS.encode())})
    with serving(strange) as url:
        read = reader_for(Target(url=url, model_name="m", metrics_url=f"{url}/metrics"))
        assert read() == sample_from_metrics(METRICS)


def test_use_is_the_mean_the_highest_memory_and_the_energy_between() -> None:
    use = use_from_samples(
        [
            {"utilization": (0.2, 0.4), "memory_used_bytes": (5, 6), "power_w": (100, 200), "energy_j": (10, 20)},
            {"utilization": (0.6, 0.8), "memory_used_bytes": (4, 4), "power_w": (300, 400), "energy_j": (40, 60)},
        ]
    )
    assert use.utilization == pytest.approx(0.5)
    assert use.memory_used_bytes == 11
    assert use.power_w == pytest.approx(500)
    assert use.energy_j == 70


def test_what_is_not_told_is_none() -> None:
    use = use_from_samples([{"utilization": (0.0,)}])
    assert use.utilization == 0.0
    assert (use.memory_used_bytes, use.power_w, use.energy_j) == (None, None, None)
    assert use_from_samples([]) is None


def test_a_sampler_looks_until_its_block_ends() -> None:
    numbers = itertools.count()
    twice = threading.Event()

    def read() -> GpuSample:
        number = next(numbers)
        if number:
            twice.set()
        return {"energy_j": (float(number),)}

    with GpuSampler(read) as sampler:
        assert twice.wait(240)
    seen = next(numbers)
    assert sampler.use.energy_j == seen - 1


def test_a_sampler_without_a_reader_knows_nothing() -> None:
    with GpuSampler(None) as sampler:
        pass
    assert sampler.use is None


def test_metrics_that_nobody_serves_are_unknown() -> None:
    read = reader_for(Target(url="http://127.0.0.1:1", model_name="m", metrics_url="http://127.0.0.1:1/metrics"))
    assert read is not None
    assert read() is None


def test_another_machines_driver_is_not_asked() -> None:
    assert reader_for(Target(url="http://192.0.2.1:8000", model_name="m")) is None
