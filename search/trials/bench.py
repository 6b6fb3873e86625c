"""The bench protocol: serve one configuration, and measure it under load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.printable import printable
from loadgen.statistics.capacity import Watch
from loadgen.statistics.capacity_fit import Probe
from model_repo.spec import ServingConfig
from search.records.recommendation import FrontEndRecord
from search.records.trial import MeasurementRecord
from search.simulator.service_times import ClosedLoop


class BenchFailed(Exception):
    """A configuration could not be served or measured: the trial failed, and the search goes on.

    `reason` is text for users; it ends with the last log lines of the server, if there are any.
    """

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason, lines=True)
        super().__init__(self.reason)


@dataclass(slots=True)
class Spent:
    """Seconds of wall time so far, by purpose, and the CPU time that other processes took."""

    loading_s: float = 0.0  # starting servers, loading models
    load_s: float = 0.0  # sending load and waiting for the responses
    contention: CpuContention = field(default_factory=CpuContention)  # while load ran

    def since(self, before: Spent) -> Spent:
        """Return the seconds spent since `before`, a copy of this, was made."""
        return Spent(
            loading_s=self.loading_s - before.loading_s,
            load_s=self.load_s - before.load_s,
            contention=self.contention - before.contention,
        )


class Bench(Protocol):
    """Serves one configuration at a time and measures it. Every method may raise BenchFailed.

    The bench can be used again after a failure: the next `load` replaces a dead server.
    """

    @property
    def spent(self) -> Spent:
        """The seconds spent so far."""
        ...

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration in place of the one before, warmed up and ready."""
        ...

    def restart(self) -> None:
        """Replace the server by a fresh one and serve the same configuration again."""
        ...

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load with the arrivals of the workload (see `loadgen.statistics.capacity.Measure`)."""
        ...

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop of `concurrency` users, who each wait for their response.

        Batch sizes are in requests (see `service_times`). With a `shape`, only requests of that shape of the
        workload are sent.
        """
        ...

    def last_measurement(self) -> MeasurementRecord | None:
        """Return the figures of the latest `measure`; None before the first."""
        ...

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """Return the peak memory of server and models under load on the configuration; None if it is not known."""
        ...


class RunBench(Bench, Protocol):
    """A bench that also knows the figures that a recommendation reports."""

    def replica_start_s(self, config: ServingConfig) -> float | None:
        """Return the seconds that a new server takes until it serves the configuration; None if not known."""
        ...

    def front_ends(self) -> tuple[FrontEndRecord, ...]:
        """Return what HTTP and gRPC let through, without and with shared memory, to the loaded configuration.

        Empty if the server is not ours. May raise BenchFailed.
        """
        ...
