"""How busy the GPU was during a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Means over the run, summed or averaged over all GPUs that the server sees; None where it does not say.

    `utilization` is 0 to 1, the mean of the GPUs; memory is the highest seen; power and energy are sums.
    """

    utilization: float | None
    memory_used_bytes: int | None
    power_w: float | None
    energy_j: float | None
