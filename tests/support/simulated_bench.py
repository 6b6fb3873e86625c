"""Simulate a bench in virtual time: Triton's dynamic batcher over an affine service time, with known answers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fast_queue import batched_queue, closed_loop
from numpy.typing import NDArray
from simulated_queues import log_of

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.server_stats import BatchTimings
from loadgen.sending.worker import BacklogRule
from loadgen.spec.plan import LoadPlan
from loadgen.statistics.probe import Probe
from loadgen.status import UNFINISHED
from loadgen.traffic.arrivals import schedule
from model_repo.spec import ServingConfig
from search.records.trial import AnswersRecord, GpuRecord, MeasurementRecord
from search.simulator.service_times import ClosedLoop
from search.trials.bench import BenchFailed, Spent
from search.trials.context import Budget
from search.workload import Workload

PAUSE_S = (5e-5, 2.5e-4)
"""The least and the most seconds between a response and its user's next request."""


def default_service_s(config: ServingConfig, batch_size: int) -> float:
    """Return 2 ms and 2 ms more per request on one thread of two cores; threads help less than proportionally."""
    cores = 2
    threads = config.intra_op_threads or cores
    crowding = max(1.0, config.instance_count * threads / cores)
    return (0.002 + 0.002 * batch_size / threads**0.8) * crowding**1.05  # type: ignore[no-any-return]


def alone(config: ServingConfig, busy: int) -> float:
    """Return the contention of instances that only share the cores and do not slow each other down otherwise."""
    return 1.0


def service_table_s(
    config: ServingConfig,
    service_s: Callable[[ServingConfig, int], float],
    contention: Callable[[ServingConfig, int], float] = alone,
    *,
    rows: int = 1,
) -> NDArray[Any]:
    """Seconds of a batch of b requests, of so many rows each, that is begun as the k-th busy instance.

    Shape (maximum + 1, instances + 1).
    """
    largest = max(config.max_batch_size // rows, 1) if config.dynamic_batching else 1
    column = np.array([1.0, *(service_s(config, size * rows) for size in range(1, largest + 1))])
    row = np.array([1.0, *(contention(config, busy) for busy in range(1, config.instance_count + 1))])
    return column[:, None] * row[None, :]  # type: ignore[no-any-return]


@dataclass
class SimulatedBench:
    """`service_s` is the time of a batch if one instance is busy, `contention` the factor on it for several.

    `noise` are factors by which executions differ.
    `faults` maps a configuration to the reason of a failure at its loading, or to None; `memory` to the memory of
    the server, `power_w` to the power of a GPU under any load. For a load run that begins after so many seconds of
    load, `taken_cores` returns the cores that neighbours take, and `slowness` the factor on its execution times.
    `late` names the configurations under which the client sends late, but all of it if `only_slower`; `mixes`
    those whose batches mix rows.
    """

    service_s: Callable[[ServingConfig, int], float] = default_service_s
    contention: Callable[[ServingConfig, int], float] = alone
    noise: NDArray[Any] = field(default_factory=lambda: np.ones(1))
    faults: Callable[[ServingConfig], str | None] = lambda config: None
    memory: Callable[[ServingConfig], int | None] = lambda config: None
    power_w: Callable[[ServingConfig], float] | None = None
    taken_cores: Callable[[float], float] = lambda load_s: 0.0
    slowness: Callable[[float], float] = lambda load_s: 1.0
    late: Callable[[ServingConfig], bool] = lambda config: False
    only_slower: bool = False
    mixes: Callable[[ServingConfig], bool] = lambda config: False
    unseen: Collection[ServingConfig] = ()
    limit_ms: float = 50.0
    workload: Workload = field(default_factory=Workload)
    spent: Spent = field(default_factory=Spent)
    loaded: list[ServingConfig] = field(default_factory=list)
    restarts: int = 0
    _last: MeasurementRecord | None = None

    def load(self, config: ServingConfig) -> None:
        self.spent.loading_s += 1.0
        reason = self.faults(config)
        if reason is not None:
            raise BenchFailed(reason)
        self.loaded.append(config)

    def restart(self) -> None:
        self.restarts += 1
        self.load(self.loaded[-1])

    def measure(
        self, rate_per_s: Any, duration_s: Any, seed: int, watch: Callable[[RequestLog], bool] | None = None
    ) -> Probe:
        config = self.loaded[-1]
        rng = np.random.default_rng(seed)
        arrivals = self._arrivals(rng, rate_per_s, duration_s, seed)
        done = self._done(config, arrivals, self._paced(np.roll(self.noise, rng.integers(len(self.noise)))))
        log = log_of(arrivals, done)
        overloaded, until = self._overloaded_at(log, rate_per_s, duration_s)
        if watch is not None:
            for now in np.arange(0.5, until, 0.5):
                seen = log_at(log, now, late_after_ms=self.limit_ms)
                if len(seen) and watch(seen):
                    until, overloaded = now, False
                    break
        log = log.rows(0, max(1, int(np.searchsorted(log.scheduled_ns, until * 1e9))))
        self._spend(float(min(until, duration_s)))
        self._last = measurement_of(log, rate_per_s) if len(log) else None
        if self.power_w is not None and self._last is not None:
            gpu = GpuRecord(
                utilization=None,
                memory_used_bytes=None,
                power_w=self.power_w(config),
                energy_per_1000_inferences_j=None,
            )
            self._last = self._last.model_copy(update={"gpu": gpu})
        problems = ("the client sent late",) if self.late(config) else ()
        return Probe(log=log, overloaded=overloaded, problems=problems, only_slower=self.only_slower)

    def _paced(self, noise: NDArray[Any]) -> NDArray[Any]:
        return noise * self.slowness(self.spent.load_s)

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        delay_s = config.max_queue_delay_us / 1e6
        return batched_queue(arrivals, service_s=self._table_s(config), noise=noise, delay_s=delay_s)

    def _arrivals(self, rng: np.random.Generator, rate_per_s: float, duration_s: float, seed: int) -> NDArray[Any]:
        if self.workload.arrivals.kind != "poisson":
            kind = self.workload.drawn(seed)
            return schedule(LoadPlan(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, arrivals=kind)) / 1e9
        n = max(1, int(rate_per_s * duration_s * 1.2) + 20)
        arrivals = np.cumsum(rng.exponential(1 / rate_per_s, n))
        return arrivals[arrivals < duration_s] if arrivals[0] < duration_s else arrivals[:1]  # type: ignore[no-any-return]

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        config = self.loaded[-1]
        noise = self._paced(np.roll(self.noise, seed % len(self.noise)))
        pauses_s = np.random.default_rng(seed).uniform(*PAUSE_S, 4093)
        sent, done, executions = self._loop(config, concurrency, duration_s, noise, pauses_s)
        self._spend(float(done.max()))
        sizes, taken_s = (np.array(column) for column in zip(*executions, strict=True))
        batches = tuple(
            BatchTimings(
                batch_size=int(size),
                executions=int(np.sum(sizes == size)),
                input_ms=0.0,
                infer_ms=1e3 * float(taken_s[sizes == size].mean()),
                output_ms=0.0,
            )
            for size in np.unique(sizes)
        )
        return ClosedLoop(concurrency=concurrency, log=log_of(sent, done), batches=batches)

    def _loop(
        self, config: ServingConfig, users: int, duration_s: float, noise: NDArray[Any], pauses_s: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], list[tuple[int, float]]]:
        return closed_loop(users, duration_s, service_s=self._table_s(config), noise=noise, pauses_s=pauses_s)

    def _spend(self, load_s: float) -> None:
        cores = self.taken_cores(self.spent.load_s)
        self.spent.load_s += load_s
        self.spent.contention += CpuContention(
            watched_s=load_s, disturbed_s=load_s if cores else 0.0, others_cpu_s=cores * load_s
        )

    def compare_answers(self, most_s: float) -> AnswersRecord:
        mixed = self.mixes(self.loaded[-1])
        if self.loaded[-1] in self.unseen:
            return AnswersRecord(unseen="the time budget was used up")
        return AnswersRecord(compared=100, differing=60 if mixed else 0, mixed=mixed)

    def memory_bytes(self, config: ServingConfig) -> int | None:
        return self.memory(config)

    def replica_start_s(self, config: ServingConfig) -> float | None:
        return 3.0 if config in self.loaded else None

    def last_measurement(self) -> MeasurementRecord | None:
        return self._last

    def _table_s(self, config: ServingConfig) -> NDArray[Any]:
        return service_table_s(config, self.service_s, self.contention, rows=self.workload.rows_per_request)

    def _overloaded_at(self, log: RequestLog, rate_per_s: float, duration_s: float) -> tuple[bool, float]:
        times_ns = np.arange(0.05, duration_s, 0.05) * 1e9
        in_flight = np.searchsorted(log.scheduled_ns, times_ns)
        in_flight -= np.searchsorted(np.sort(log.done_ns), times_ns, side="right")
        rule = BacklogRule(rate_per_s=rate_per_s, limit_ms=self.limit_ms)
        for time_ns, count in zip(times_ns.tolist(), in_flight.tolist(), strict=True):
            if rule.overloaded(round(time_ns), count):
                return True, time_ns / 1e9
        return False, duration_s


def log_at(log: RequestLog, time_s: float, *, late_after_ms: float) -> RequestLog:
    """Return the log of a run in progress, like `GrowingLog`: the requests before the first that is in flight and
    not yet late; one that is already late counts as unfinished."""
    now_ns = round(time_s * 1e9)
    due = int(np.searchsorted(log.scheduled_ns, now_ns))
    in_flight = log.done_ns[:due] > now_ns
    young = np.flatnonzero(in_flight & (log.scheduled_ns[:due] >= now_ns - late_after_ms * 1e6))
    end = int(young[0]) if len(young) else due
    return RequestLog(
        scheduled_ns=log.scheduled_ns[:end],
        sent_ns=log.sent_ns[:end],
        done_ns=np.minimum(log.done_ns[:end], now_ns),
        outcome=np.where(in_flight[:end], np.uint8(UNFINISHED), log.outcome[:end]),
    )


def measurement_of(log: RequestLog, rate_per_s: float) -> MeasurementRecord:
    latency = np.sort(log.latency_ns) / 1e6
    quantiles = {q: float(latency[int(q * (len(latency) - 1))]) for q in (0.5, 0.9, 0.95, 0.99, 0.999)}
    return MeasurementRecord(
        rate_per_s=rate_per_s,
        achieved_rate_per_s=rate_per_s,
        requests=len(latency),
        failures=0,
        latency_p50_ms=quantiles[0.5],
        latency_p90_ms=quantiles[0.9],
        latency_p95_ms=quantiles[0.95],
        latency_p99_ms=quantiles[0.99],
        latency_p999_ms=quantiles[0.999],
        latency_mean_ms=float(latency.mean()),
        latency_max_ms=float(latency[-1]),
        send_lag_p99_ms=0.0,
        server=None,
        network_and_client_ms=None,
        problems=(),
    )


@dataclass(slots=True, kw_only=True)
class BudgetOfLoad(Budget):
    """Elapsed is the virtual time of the bench, not the time of the simulation."""

    spent: Spent = field(default_factory=Spent)

    def elapsed_s(self) -> float:
        return self.spent.load_s + self.spent.loading_s
