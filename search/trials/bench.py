"""The bench protocol (serve a configuration, measure it under load), and a bench that keeps what load showed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.printable import printable
from loadgen.statistics.probe import Probe, Watch
from model_repo.spec import ServingConfig
from search.arrays import Floats
from search.records.trial import AnswersRecord, MeasurementRecord
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

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration in place of the one before, warmed up and ready."""

    def restart(self) -> None:
        """Replace the server by a fresh one and serve the same configuration again."""

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load with the arrivals of the workload (see `loadgen.statistics.probe.Measure`)."""

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop of `concurrency` users, who each wait for their response.

        Batch sizes are in requests (see `service_times`), also those of the configuration's members. With a
        `shape`, only requests of that shape of the workload are sent.
        """

    def compare_answers(self, most_s: float) -> AnswersRecord:
        """Compare answers under a load of its own with those to the same requests alone, in at most `most_s`."""

    def last_measurement(self) -> MeasurementRecord | None:
        """Return the figures of the latest `measure`; None before the first."""

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """Return the peak memory of server and models under load on the configuration; None if it is not known."""


class RunBench(Bench, Protocol):
    """A bench that also knows the figures that a recommendation reports."""

    def replica_start_s(self, config: ServingConfig) -> float | None:
        """Return the seconds that a new server takes until it serves the configuration; None if not known."""


MIN_ANSWERED = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedRun:
    """The answered requests of a load run: when they were sent, ascending, and their seconds, shape (n,).

    `outside_s` is the mean time outside of the server's own: in network, front end and client; 0 if not known. In
    addition, the server lost the answers to `lost` requests. `began_unix_s` is that of the run, see `Probe`.
    """

    config: ServingConfig
    sent_s: Floats
    taken_s: Floats
    outside_s: float = 0.0
    lost: int = 0
    began_unix_s: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds between the first request and the last."""
        return float(self.sent_s[-1])

    def waited_outside(self, overhead_s: float) -> bool:
        """True if requests waited for most of their time outside of the server's own, beyond the usual overhead.

        Such a run met a front end, a network or a client at its limit, and says nothing about executions.
        """
        return self.outside_s - overhead_s > 0.5 * float(self.taken_s.mean())


@dataclass(slots=True)
class ObservedBench:
    """Another bench, and the runs on it so far."""

    bench: Bench
    runs: list[ObservedRun] = field(default_factory=list)
    config: ServingConfig | None = None
    """The configuration that is served; None after a failure to load one."""

    @property
    def spent(self) -> Spent:
        """The seconds spent on the bench."""
        return self.bench.spent

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration."""
        self.config = None
        self.bench.load(config)
        self.config = config

    def restart(self) -> None:
        """Replace the server by a fresh one."""
        config, self.config = self.config, None
        self.bench.restart()
        self.config = config

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load at a rate, and keep what it showed."""
        probe = self.bench.measure(rate_per_s, duration_s, seed, watch)
        self._keep(probe)
        return probe

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop. It is not kept: a profile cannot tell a slow machine from a slow configuration."""
        return self.bench.saturate(concurrency, duration_s, seed, shape)

    def compare_answers(self, most_s: float) -> AnswersRecord:
        """Compare answers under load with those to the same requests sent alone."""
        return self.bench.compare_answers(most_s)

    def last_measurement(self) -> MeasurementRecord | None:
        """Return the figures of the latest `measure`."""
        return self.bench.last_measurement()

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """Return the peak memory of server and models."""
        return self.bench.memory_bytes(config)

    def _keep(self, probe: Probe) -> None:
        answered = probe.log.part(np.flatnonzero(~probe.log.failed))
        if self.config is None or len(answered) < MIN_ANSWERED:
            return
        answered = answered.part(np.argsort(answered.sent_ns, kind="stable"))
        sent_s = (answered.sent_ns - answered.sent_ns[0]) / 1e9
        measured = self.bench.last_measurement()
        outside_ms = None if measured is None else measured.network_and_client_ms
        self.runs.append(
            ObservedRun(
                config=self.config,
                sent_s=sent_s,
                taken_s=answered.service_ns / 1e9,
                outside_s=(outside_ms or 0.0) / 1000,
                lost=0 if measured is None else measured.lost_answers,
                began_unix_s=probe.began_unix_s,
            )
        )


def observed(bench: Bench) -> ObservedBench:
    """Return the bench, observed from now on unless it is already."""
    return bench if isinstance(bench, ObservedBench) else ObservedBench(bench)
