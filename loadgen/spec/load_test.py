"""The order of one `loadtest`: a load, the limits to judge it by, and the files for the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.spec.limits import Limits
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target

STATIONARY = ("poisson", "constant", "gamma")
"""Arrivals whose rate does not change over the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note for the user about the order; `loud` if the load could mislead or harm."""

    text: str
    loud: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """The whole order. With `find_max` the plan's duration is the budget of load, and its rate the first guess.

    `wait_ready_s` is how long the server may take to answer at all; None: it must be there.
    `warmup_s` None: as long as the limits ask for. `first_rate_known` is False if `find_max` has to find
    even the first guess. `outputs` are the files to write, by option: `--csv` is a prefix, `--keep-log` a folder.
    """

    target: Target
    payload: Payload
    plan: LoadPlan | ClosedLoopPlan
    limits: Limits = field(default_factory=Limits)
    arrivals_text: str = "poisson"
    warmup_s: float | None = None
    wait_ready_s: float | None = None
    processes: int = 1
    find_max: bool = False
    first_rate_known: bool = True
    fail_fast: bool = False
    accept_observed: bool = False
    compare: Path | None = None
    outputs: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.find_max and not self.limits.latency:
            raise BadInput("--find-max needs a latency limit.", "Add --p99, for example --p99 50ms")
        if self.find_max and len(self.limits.latency) > 1:
            names = ", ".join(limit.text for limit in self.limits.latency)
            raise BadInput(f"--find-max searches for one limit, and {names} are several.", "Give one of them.")
        if self.find_max and self.accept_observed:
            raise BadInput(
                "--accept-observed is about one run, and --find-max counts confirmed rates only.",
                "Leave one of them out.",
            )
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

    @property
    def is_stationary(self) -> bool:
        """True if the load is the same from its beginning to its end."""
        return isinstance(self.plan, ClosedLoopPlan) or self.plan.arrivals.kind in STATIONARY

    @property
    def effective_warmup_s(self) -> float:
        """Seconds of load that are sent ahead and left out: as given, else 1 s or three limits, if longer."""
        if self.warmup_s is not None:
            return self.warmup_s
        return max(1.0, 3e-3 * (self.limits.strictest_ms or 0.0))
