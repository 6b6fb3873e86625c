"""The values a search works on: the limit and its trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_repo.spec import ServingConfig
    from search.bench import Spent
    from search.neighbours import NeighboursRecord
    from search.records import CertificateRecord, LoadRunRecord, MeasurementRecord, ReplayRecord
    from search.why import WhyRecord

TrialState = Literal["complete", "infeasible", "pruned", "failed"]
"""complete: its rate at the limit is known. infeasible: no rate keeps the limit. pruned: it cannot beat the
best so far, and no more was spent on it. failed: it could not be served or measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration that was tried, and what came of it.

    `rate_at_limit_per_s` is the estimated highest rate that keeps the limit; for a pruned trial it is the best
    guess of a bound, for an infeasible one 0, for a failed one None. `lone_latency_ms` is the latency of requests
    that meet an idle server (median), None where it was not measured. `memory_bytes` is the most that the server
    and its models took, None where that cannot be seen. `pace` is how often the machine had changed its speed
    before: trials of different paces do not compare. `hardware` is what it was measured on, None where that was
    not noted, and `worker` the process that did it, None for the run's own. `neighbours` is what others took of
    the processors meanwhile, None where that could not be seen.
    """

    number: int
    config: ServingConfig
    state: TrialState
    reason: str
    rate_at_limit_per_s: float | None = None
    rate_low_per_s: float | None = None
    rate_high_per_s: float | None = None
    lone_latency_ms: float | None = None
    measurement: MeasurementRecord | None = None
    probes: int = 0
    loading_s: float = 0.0
    load_s: float = 0.0
    certificate: CertificateRecord | None = None
    load_runs: tuple[LoadRunRecord, ...] = ()
    memory_bytes: int | None = None
    why: WhyRecord | None = None
    replay: ReplayRecord | None = None
    pace: int = 0
    hardware: str | None = None
    worker: str | None = None
    neighbours: NeighboursRecord | None = None

    def over_memory(self, most_bytes: int | None) -> bool:
        """Whether the server is known to have taken more."""
        return most_bytes is not None and self.memory_bytes is not None and self.memory_bytes > most_bytes


def failed_trial(
    number: int,
    config: ServingConfig,
    reason: str,
    spent: Spent,
    *,
    load_runs: Sequence[LoadRunRecord] = (),
) -> Trial:
    """The trial of a configuration that could not be served or measured, with the runs that were made before."""
    return Trial(
        number=number,
        config=config,
        state="failed",
        reason=reason,
        probes=len(load_runs),
        loading_s=spent.loading_s,
        load_s=spent.load_s,
        load_runs=tuple(load_runs),
    )
