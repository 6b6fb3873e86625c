"""A bench in virtual time: Triton's dynamic batcher over an affine service time, so that answers are known."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from loadgen.capacity import Probe
from loadgen.measurement import RequestLog
from loadgen.server_stats import BatchTimings
from model_repo.spec import ServingConfig
from search.bench import BenchFailed, Spent
from search.records import GpuRecord, MeasurementRecord
from search.service_time import ClosedLoop


def batched_queue(
    arrivals_s: np.ndarray,
    *,
    max_batch_size: int,
    instances: int,
    service_s: Callable[[int], float],
    delay_s: float = 0.0,
) -> np.ndarray:
    """Completion times: idle instances pull min(waiting, maximum) requests, first come first served."""
    done = np.empty_like(arrivals_s)
    free = [0.0] * instances
    heapq.heapify(free)
    first, n = 0, len(arrivals_s)
    while first < n:
        start = max(heapq.heappop(free), arrivals_s[first])
        full_at = arrivals_s[first + max_batch_size - 1] if first + max_batch_size <= n else np.inf
        if delay_s > 0:
            start = max(start, min(full_at, arrivals_s[first] + delay_s))
        end = int(np.searchsorted(arrivals_s[first : first + max_batch_size], start, side="right"))
        size = max(end, 1)
        finish = start + service_s(size)
        done[first : first + size] = finish
        heapq.heappush(free, finish)
        first += size
    return done


def closed_loop(
    users: int, duration_s: float, *, max_batch_size: int, instances: int, service_s: Callable[[int], float]
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Send times, completion times and executed batch sizes when users ask again as soon as they are answered."""
    free, waiting = [0.0] * instances, [0.0] * users
    sent: list[float] = []
    done: list[float] = []
    executions: list[int] = []
    while waiting and waiting[0] < duration_s:
        start = max(heapq.heappop(free), waiting[0])
        size = min(sum(due <= start for due in waiting), max_batch_size)
        finish = start + service_s(size)
        heapq.heappush(free, finish)
        executions.append(size)
        sent += waiting[:size]
        done += [finish] * size
        waiting = sorted(waiting[size:] + [finish] * size)
    order = np.argsort(sent, kind="stable")
    return np.array(sent)[order], np.array(done)[order], executions


def default_service_s(config: ServingConfig, batch_size: int) -> float:
    """2 ms and 2 ms more a request on one thread of two cores; threads help less than they should."""
    cores = 2
    threads = config.intra_op_threads or cores
    crowding = max(1.0, config.instance_count * threads / cores)
    return (0.002 + 0.002 * batch_size / threads**0.8) * crowding**1.05


@dataclass
class SimulatedBench:
    """`faults` maps a configuration to the reason of a failure at its loading, or to None; `memory` to what
    the server takes with it, `power_w` to the power of a GPU under any load."""

    service_s: Callable[[ServingConfig, int], float] = default_service_s
    faults: Callable[[ServingConfig], str | None] = lambda config: None
    memory: Callable[[ServingConfig], int | None] = lambda config: None
    power_w: Callable[[ServingConfig], float] | None = None
    limit_ms: float = 50.0
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

    def measure(self, rate_per_s, duration_s, seed, watch=None) -> Probe:
        config = self.loaded[-1]
        rng = np.random.default_rng(seed)
        n = max(1, int(rate_per_s * duration_s * 1.2) + 20)
        arrivals = np.cumsum(rng.exponential(1 / rate_per_s, n))
        arrivals = arrivals[arrivals < duration_s] if arrivals[0] < duration_s else arrivals[:1]
        done = batched_queue(
            arrivals,
            max_batch_size=max(config.max_batch_size, 1) if config.dynamic_batching else 1,
            instances=config.instance_count,
            service_s=lambda size: self.service_s(config, size),
            delay_s=config.max_queue_delay_us / 1e6,
        )
        log = log_of(arrivals, done)
        overloaded, until = self._overloaded_at(log, rate_per_s, duration_s)
        if watch is not None:
            for now in np.arange(0.5, until, 0.5):
                seen = log_before(log, now)
                if len(seen.done_ns) and watch(seen):
                    until, overloaded = now, False
                    break
        if until < duration_s:
            log = log_before(log, until)
        self.spent.load_s += float(min(until, duration_s))
        self._last = measurement_of(log, rate_per_s)
        if self.power_w is not None:
            gpu = GpuRecord(
                utilization=None,
                memory_used_bytes=None,
                power_w=self.power_w(config),
                energy_per_1000_inferences_j=None,
            )
            self._last = self._last.model_copy(update={"gpu": gpu})
        return Probe(log=log, overloaded=overloaded, problems=())

    def saturate(self, concurrency, duration_s, seed) -> ClosedLoop:
        config = self.loaded[-1]
        largest = max(config.max_batch_size, 1) if config.dynamic_batching else 1
        sent, done, executions = closed_loop(
            concurrency,
            duration_s,
            max_batch_size=largest,
            instances=config.instance_count,
            service_s=lambda size: self.service_s(config, size),
        )
        self.spent.load_s += float(done.max())
        batches = tuple(
            BatchTimings(
                batch_size=size,
                executions=executions.count(size),
                input_ms=0.0,
                infer_ms=1e3 * self.service_s(config, size),
                output_ms=0.0,
            )
            for size in sorted(set(executions))
        )
        return ClosedLoop(concurrency=concurrency, log=log_of(sent, done), batches=batches)

    def memory_bytes(self, config: ServingConfig) -> int | None:
        return self.memory(config)

    def last_measurement(self) -> MeasurementRecord | None:
        return self._last

    def _overloaded_at(self, log: RequestLog, rate_per_s: float, duration_s: float) -> tuple[bool, float]:
        times = np.arange(0.5, duration_s, 0.5)
        waiting = np.array([np.sum((log.scheduled_ns < t * 1e9) & (log.done_ns > t * 1e9)) for t in times])
        over = waiting > 3 * rate_per_s * self.limit_ms / 1000 + 10
        for index in range(2, len(times)):
            if over[index - 2 : index + 1].all() and waiting[index] > waiting[index - 2]:
                return True, float(times[index])
        return False, duration_s


def log_of(arrivals_s: np.ndarray, done_s: np.ndarray) -> RequestLog:
    scheduled = (arrivals_s * 1e9).astype(np.int64)
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled,
        done_ns=(done_s * 1e9).astype(np.int64),
        outcome=np.zeros(len(scheduled), np.uint8),
    )


def log_before(log: RequestLog, time_s: float) -> RequestLog:
    keep = log.scheduled_ns < time_s * 1e9
    keep &= log.done_ns < time_s * 1e9
    return RequestLog(
        scheduled_ns=log.scheduled_ns[keep],
        sent_ns=log.sent_ns[keep],
        done_ns=log.done_ns[keep],
        outcome=log.outcome[keep],
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
