"""Why a configuration was tried: what was known and predicted of it when it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from search.record import Record

if TYPE_CHECKING:
    from search.simulator import SimulatedServer

Cause = Literal["baseline", "predicted", "neighbour", "landmark", "sampler", "fastest", "profile"]
"""baseline: what Triton does by itself. predicted: it may beat the best by its prediction. neighbour: one step
from the best. landmark: it spans the space. sampler: Optuna chose it. fastest: nothing keeps the limit, and it
comes nearest. profile: its execution times were to be measured, which failed."""


class ServiceTimesRecord(Record):
    """The execution times that a prediction was made with; `service_times.json` has the whole curves."""

    batch_sizes: tuple[int, ...]
    one_busy_ms: tuple[float, ...] = Field(description="Of each size, while one instance is at work.")
    all_busy_ms: tuple[float, ...] = Field(description="Of each size, while all instances are at work.")
    overhead_ms: float = Field(description="What a request takes besides.")


class PredictionRecord(Record):
    """The rate at the limit that was predicted before the trial, and what it had to beat."""

    rate_per_s: float
    sd: float = Field(description="Standard error of its logarithm.")
    simulated_per_s: float = Field(description="Before it was put right by what other trials had shown.")
    rank: int = Field(ge=1, description="Among the predictions then untried, by the rate at their best.")
    untried: int = Field(description="How many predictions of untried configurations there were, with this one.")
    to_beat_per_s: float | None = Field(description="The best rate known then; null: there was none.")
    service_times: ServiceTimesRecord


class WhyRecord(Record):
    """Why a trial was made, as of then."""

    cause: Cause
    best_trial: int | None = Field(default=None, description="The best trial then; null: there was none.")
    resumed: bool = Field(default=False, description="It was asked for after the run was gone on with.")
    retaken: bool = Field(default=False, description="It had been asked for before, and was not finished.")
    prediction: PredictionRecord | None = Field(default=None, description="null: nothing was predicted of it.")


def service_times_record(server: SimulatedServer) -> ServiceTimesRecord:
    """The figures of a simulated server at powers of two, and at its largest batch."""
    largest, busy = server.max_batch_size, server.instance_count
    service_s = server.mean_service_s
    sizes = sorted({2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest} | {largest})
    return ServiceTimesRecord(
        batch_sizes=tuple(sizes),
        one_busy_ms=tuple(float(1e3 * service_s[size, 1]) for size in sizes),
        all_busy_ms=tuple(float(1e3 * service_s[size, busy]) for size in sizes),
        overhead_ms=1e3 * server.overhead_s,
    )
