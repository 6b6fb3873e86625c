"""The values a search produces: the limit, its trials, and what was certified."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from loadgen.measurement import Measurement
    from model_repo.spec import ServingConfig

TrialState = Literal["complete", "infeasible", "pruned", "failed"]
"""complete: its rate at the limit is known. infeasible: no rate keeps the limit. pruned: it cannot beat the
best so far, and no more was spent on it. failed: it could not be served or measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The promise to keep: at least `quantile` of all requests are answered within `limit_ms`.

    Latency counts from the moment a request was due to leave, and a failed request is over the limit.
    `confidence` is the least probability with which a kept promise was not luck.
    """

    limit_ms: float
    quantile: float = 0.99
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not self.limit_ms > 0:
            raise ValueError(f"limit_ms {self.limit_ms} must be positive")
        if not 0.5 <= self.quantile < 1 or not 0.5 < self.confidence < 1:
            raise ValueError(f"quantile {self.quantile} and confidence {self.confidence} must be below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A rate that kept the limit under a sequential test with fresh arrivals.

    `p99_low_ms` and `p99_high_ms` bound the latency quantile with the test's confidence, corrected for the
    dependence between neighbouring requests. `runs` counts the confirmations that were passed, each with a
    seed of its own, the last one on a restarted server where there was time for it.
    """

    rate_per_s: float
    p99_ms: float
    p99_low_ms: float
    p99_high_ms: float
    confidence: float
    requests: int
    violations: int
    seconds: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration that was tried, and what came of it.

    `rate_at_limit_per_s` is the estimated highest rate that keeps the limit; for a pruned trial it is the best
    guess of a bound, for an infeasible one 0, for a failed one None. `lone_p99_ms` is the latency of requests
    that meet an idle server, None where it was not measured.
    """

    number: int
    config: ServingConfig
    state: TrialState
    reason: str
    rate_at_limit_per_s: float | None = None
    rate_low_per_s: float | None = None
    rate_high_per_s: float | None = None
    lone_p99_ms: float | None = None
    measurement: Measurement | None = None
    probes: int = 0
    loading_s: float = 0.0
    load_s: float = 0.0
    certificate: Certificate | None = field(default=None)
