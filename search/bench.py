"""What the search needs of the world: something that serves a configuration and measures it under load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from loadgen.neighbours import Neighbours
from loadgen.printable import printable

if TYPE_CHECKING:
    from loadgen.capacity import Probe, Watch
    from model_repo.spec import ServingConfig
    from search.demand import Demand
    from search.records import MeasurementRecord
    from search.service_time import ClosedLoop


class BenchFailed(Exception):
    """A configuration could not be served or measured: the trial failed, and the search goes on.

    `reason` is for people and ends with the server's last log lines where there are any.
    """

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason, lines=True)
        super().__init__(self.reason)


@dataclass(slots=True)
class Spent:
    """Seconds of wall time so far, by what they were spent on, and what others took of the processors."""

    loading_s: float = 0.0  # starting servers, loading models
    load_s: float = 0.0  # sending load and waiting for its answers
    neighbours: Neighbours = field(default_factory=Neighbours)  # while load ran

    def since(self, before: Spent) -> Spent:
        """What was spent between a copy and now."""
        return Spent(
            loading_s=self.loading_s - before.loading_s,
            load_s=self.load_s - before.load_s,
            neighbours=self.neighbours - before.neighbours,
        )


class Bench(Protocol):
    """Serves one configuration at a time and measures it. Every method may raise BenchFailed.

    After a failure the bench is usable again: it replaces a dead server by itself on the next `load`.
    """

    spent: Spent

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration in place of the one before, warmed up and ready."""
        ...

    def restart(self) -> None:
        """Replace the server by a fresh one and serve the same configuration again."""
        ...

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load in the arrivals that the bench is about (see `loadgen.capacity.Measure`)."""
        ...

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop: so many users, who each wait for their answer; batch
        sizes are in requests (see `search.service_time`). `shape`: only requests of that one of the demand's are
        sent; None: all."""
        ...

    def last_measurement(self) -> MeasurementRecord | None:
        """The figures of the latest `measure`; None before the first."""
        ...

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """The most that server and models took after a load on the configuration; None where it cannot be seen."""
        ...


class RunBench(Bench, Protocol):
    """What a whole run needs besides, for its answer."""

    demand: Demand

    def replica_start_s(self, config: ServingConfig) -> float | None:
        """How long a fresh server takes until it serves the configuration; None where that is not known."""
        ...
