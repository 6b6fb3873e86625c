"""Measure how busy the GPUs are during a run: from Triton's metrics, else from the driver, else unknown."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self
from urllib.parse import urlsplit

from loadgen.errors import LoadError
from loadgen.spec.addresses import is_on_this_machine
from loadgen.spec.target import Target, http_head
from loadgen.wire.questions import http_answer

_EVERY_S = 0.5
_TIMEOUT_S = 2.0
_NO_FIGURE = 1e18  # from here on a value is ignored: no GPU has so many bytes, watts or joules; NaN is ignored too
_METRICS = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
    "nv_gpu_power_usage": "power_w",
    "nv_energy_consumption": "energy_j",
}
_METRIC = re.compile(rf"^({'|'.join(_METRICS)})\{{[^}}]*\}}\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Means over the run of all GPUs that the server sees; None (null) if unknown.

    `utilization` is 0 to 1, the mean of the GPUs; memory is the highest sum seen; power and energy are sums.
    """

    utilization: float | None
    memory_used_bytes: int | None
    power_w: float | None
    energy_j: float | None


GpuSample = Mapping[str, tuple[float, ...]]
"""One reading: by field of `GpuUse` a value for each GPU; what is not reported is absent. Energy is a counter."""

ReadSample = Callable[[], GpuSample | None]


def sample_from_metrics(text: str) -> GpuSample | None:
    """Return the reading in the text of Triton's `/metrics`; None if it shows no GPU."""
    values: dict[str, tuple[float, ...]] = {}
    for name, value in _METRIC.findall(text):
        if 0 <= (number := float(value)) < _NO_FIGURE:
            values[_METRICS[name]] = (*values.get(_METRICS[name], ()), number)
    return values or None


def use_from_samples(samples: list[GpuSample]) -> GpuUse | None:
    """Return the use over the time of the samples; None if there are none."""
    if not samples:
        return None
    seen = {name: [one[name] for one in samples if one.get(name)] for name in _METRICS.values()}
    memory, power, energy = (list(map(sum, seen[name])) for name in ("memory_used_bytes", "power_w", "energy_j"))
    return GpuUse(
        utilization=fmean(map(fmean, seen["utilization"])) if seen["utilization"] else None,
        memory_used_bytes=int(max(memory)) if memory else None,
        power_w=fmean(power) if power else None,
        energy_j=energy[-1] - energy[0] if len(energy) > 1 else None,
    )


def reader_for(target: Target) -> ReadSample | None:
    """Return a reader of this target's GPUs, by its metrics address or this machine's driver; None if neither."""
    if target.metrics_url is not None:
        return _metrics_reader(target.metrics_url)
    return _driver_reader() if is_on_this_machine(target.host) else None


class GpuSampler:
    """Reads the GPUs twice per second while its `with` block lasts; `use` sums up the readings."""

    def __init__(self, read: ReadSample | None) -> None:
        self._read = read or (lambda: None)
        self._samples: list[GpuSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def use(self) -> GpuUse | None:
        """The use from the block's start to its end; None if nothing was read."""
        return use_from_samples(self._samples)

    def _look(self) -> None:
        while (sample := self._read()) is not None:
            self._samples.append(sample)
            if self._stop.wait(_EVERY_S):
                return


def _metrics_reader(url: str) -> ReadSample:
    parts = urlsplit(url)
    target = Target(url=f"{parts.scheme}://{parts.netloc}", model_name="metrics")
    request = http_head(target, f"GET {parts.path or '/'}" + (f"?{parts.query}" if parts.query else ""), [])

    def read() -> GpuSample | None:
        try:
            answer = http_answer(target, request, patience_s=_TIMEOUT_S)
            return sample_from_metrics(answer.body.decode(errors="replace")) if answer.status == 200 else None
        except (LoadError, ValueError):
            return None

    return read


def _driver_reader() -> ReadSample | None:
    """Return a reader of the driver's figures, through the package nvidia-ml-py; None if either is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None

    asked: dict[str, Callable[[Any], float]] = {
        "utilization": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "memory_used_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_w": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "energy_j": lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
    }

    def read() -> GpuSample | None:
        found: dict[str, tuple[float, ...]] = {}
        for name, ask in asked.items():
            with contextlib.suppress(pynvml.NVMLError):
                found[name] = tuple(map(ask, handles))
        return found

    return read if handles else None
