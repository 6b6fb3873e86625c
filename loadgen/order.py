"""What one `loadtest` was asked to find out: a load, the limits to judge it by, and where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.plan import ClosedLoopPlan, LoadPlan, Payload, Target
from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""The latency limits that the command line knows."""

MOST_KEPT = 10_000_000
"""Requests of which every time is kept: 250 MB. What is longer is counted in histograms, with flat memory."""

STATIONARY = ("poisson", "constant", "gamma")
"""Arrivals whose rate does not change over the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimit:
    """At least `quantile` of all requests are to be answered within `limit_ms`, counted from their due time."""

    quantile: float
    limit_ms: float

    @property
    def name(self) -> str:
        """`p99`, `p99.9`."""
        return f"p{100 * self.quantile:g}"

    @property
    def option(self) -> str:
        """`--p99=50ms`, as `loadtest` and `optimize` take it."""
        return f"--{self.name.replace('.', '')}={self.limit_ms:g}ms"

    @property
    def text(self) -> str:
        """`p99 <= 50 ms`."""
        return f"{self.name} <= {self.limit_ms:g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What must hold. `max_error_ratio` None: failures count against the latency limits only."""

    latency: tuple[LatencyLimit, ...] = ()
    max_error_ratio: float | None = None
    confidence: float = 0.95

    def __bool__(self) -> bool:
        return bool(self.latency) or self.max_error_ratio is not None

    @property
    def strictest_ms(self) -> float | None:
        """The limit of the highest quantile: a backlog of three such limits, and rising, is an overload."""
        return max(self.latency, key=lambda limit: limit.quantile).limit_ms if self.latency else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files to write besides the terminal. `csv_prefix` gets Locust's endings."""

    record: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    csv_prefix: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user should know about the order; `loud` where it could mislead or harm."""

    text: str
    loud: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The whole order. With `find_max` the plan's duration is the budget of load, and its rate the first guess.

    `warmup_s` None: as long as the limits ask for. `first_rate_known` is False where `find_max` has to find
    even the first guess. A load of more than `most_kept` requests is counted instead of kept.
    """

    target: Target
    payload: Payload
    plan: LoadPlan | ClosedLoopPlan
    limits: Limits = field(default_factory=Limits)
    arrivals_text: str = "poisson"
    warmup_s: float | None = None
    processes: int = 1
    find_max: bool = False
    first_rate_known: bool = True
    fail_fast: bool = False
    compare: Path | None = None
    outputs: Outputs = field(default_factory=Outputs)
    most_kept: int = MOST_KEPT

    def __post_init__(self) -> None:
        if self.find_max and not self.limits.latency:
            raise BadInput("--find-max needs a limit to keep.", "Add --p99, for example --p99 50ms")
        if self.find_max and len(self.limits.latency) > 1:
            names = ", ".join(limit.text for limit in self.limits.latency)
            raise BadInput(f"--find-max searches for one limit, and {names} are several.", "Give one of them.")
        if self.find_max and isinstance(self.plan, ClosedLoopPlan):
            raise BadInput(
                "--find-max searches over rates, and --concurrency has none.",
                "Leave --concurrency out; --max-in-flight caps an open loop.",
            )
        if self.find_max and not self.is_stationary:
            raise BadInput(
                f"--find-max needs a load that stays the same, and {self.arrivals_text} does not.",
                "Use --arrivals poisson, constant or gamma:cv=2.",
            )
        if self.processes < 1:
            raise BadInput(f"--processes {self.processes} sends nothing.", "Use 1 or more; one a core.")

    @property
    def is_stationary(self) -> bool:
        """Whether the load is the same from its beginning to its end."""
        return isinstance(self.plan, ClosedLoopPlan) or self.plan.arrivals.kind in STATIONARY

    @property
    def is_long(self) -> bool:
        """Whether the load has more requests than are kept one by one."""
        plan = self.plan
        return isinstance(plan, LoadPlan) and plan.expected_requests > self.most_kept

    @property
    def effective_warmup_s(self) -> float:
        """Seconds of load that are sent ahead and left out: as given, else 1 s or three limits, if longer."""
        if self.warmup_s is not None:
            return self.warmup_s
        return max(1.0, 3e-3 * (self.limits.strictest_ms or 0.0))
