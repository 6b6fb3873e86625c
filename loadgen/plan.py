"""What load to send where: an immutable plan, decided before the first request leaves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The arrival process. `kind` is one of `poisson`, `constant`, `gamma`, `trace`, `ramp`, `steps`, `spike`.

    To be completed by `loadgen.arrivals`.
    """

    kind: str = "poisson"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """An open-loop load: requests leave at scheduled times, whether or not earlier ones have come back.

    The same plan gives the same send times on every machine. `timeout_s` is counted from the scheduled
    time; a request that runs into it has failed, at the limit or later, and is never dropped.
    """

    rate_per_s: float
    duration_s: float
    seed: int
    arrivals: Arrivals = field(default_factory=Arrivals)
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model that is loaded, and how it is reached. `url`: http://, https://, grpc:// or grpcs://."""

    url: str
    model_name: str
    model_version: str = ""
