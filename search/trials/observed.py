"""A bench that keeps what every second of load showed: when requests were sent, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.capacity import Watch
from loadgen.statistics.capacity_fit import Probe
from model_repo.spec import ServingConfig
from search.arrays import Floats
from search.records.trial import MeasurementRecord
from search.simulator.service_times import ClosedLoop
from search.trials.bench import Bench, Spent

MIN_ANSWERS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedRun:
    """The answered requests of a load run: when they were sent, ascending, and their seconds, shape (n,).

    `outside_s` is the mean time outside of the server's own: in network, front end and client; 0 if not known. In
    addition, the server lost the answers to `lost` requests.
    """

    config: ServingConfig
    sent_s: Floats
    taken_s: Floats
    outside_s: float = 0.0
    lost: int = 0

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
        self._keep(probe.log)
        return probe

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop. It is not kept: a profile cannot tell a slow machine from a slow configuration."""
        return self.bench.saturate(concurrency, duration_s, seed, shape)

    def last_measurement(self) -> MeasurementRecord | None:
        """Return the figures of the latest `measure`."""
        return self.bench.last_measurement()

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """Return the peak memory of server and models."""
        return self.bench.memory_bytes(config)

    def _keep(self, log: RequestLog) -> None:
        answered = log.part(np.flatnonzero(~log.failed))
        if self.config is None or len(answered) < MIN_ANSWERS:
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
            )
        )


def observed(bench: Bench) -> ObservedBench:
    """Return the bench, observed from now on unless it is already."""
    return bench if isinstance(bench, ObservedBench) else ObservedBench(bench)
