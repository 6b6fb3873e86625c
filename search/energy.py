"""What a measurement says about the energy of an inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.cost import JOULES_PER_KWH, energy_kwh_per_million_inferences

if TYPE_CHECKING:
    from search.records import MeasurementRecord


def energy_kwh_of(seen: MeasurementRecord, *, rows_per_request: int = 1) -> float | None:
    """kWh of the GPUs per million inferences, as fast as they were answered; None where power is not known.

    Every row of a request is an inference.
    """
    if seen.gpu is None:
        return None
    if seen.gpu.energy_per_1000_inferences_j is not None:
        return seen.gpu.energy_per_1000_inferences_j * 1000 / JOULES_PER_KWH
    if seen.gpu.power_w is None:
        return None
    return energy_kwh_per_million_inferences(seen.gpu.power_w, rows_per_request * seen.achieved_rate_per_s)
