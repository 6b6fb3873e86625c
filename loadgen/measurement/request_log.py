"""The times of every request of a run, and the figures of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.addresses import AddressUse
from loadgen.measurement.gpu import GpuUse
from loadgen.measurement.server_stats import ServerTimings
from loadgen.measurement.streams import StreamFigures, time_of
from loadgen.spec.limits import LatencyLimit, StreamLimit
from loadgen.status import UNFINISHED, outcome_name

ROW_BYTES = 3 * 8 + 1
_NS_PER_MS = 1e6

FAILED_NS: int = np.iinfo(np.int64).max
"""This is the latency of a failed request in an order that puts failures last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """The times of n requests, in ns since the run's start, in the order of their schedule.

    `scheduled_ns` is the planned send time, `sent_ns` the time when the kernel took the first byte, `done_ns` the
    time when the kernel had the whole response or the request was given up. `outcome` is 0 for a response and the
    number of the kind of failure otherwise (`loadgen.status`). All of shape (n,). `colocated` holds the logs of
    other models of the server by name, if they got a load of their own meanwhile, with times since its start.
    `streams` has a row of `STREAM_DTYPE` for each response that is a stream of tokens.
    """

    scheduled_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    colocated: Mapping[str, RequestLog] | None = None
    streams: NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.scheduled_ns)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """True for each request without a usable response, shape (n,)."""
        return np.not_equal(self.outcome, 0)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """Completion minus *scheduled* time, shape (n,): the latency for a user who does not wait for others."""
        return self.done_ns - self.scheduled_ns

    @property
    def service_ns(self) -> NDArray[np.int64]:
        """Completion minus *actual* send time, shape (n,): blind to the client's own delay."""
        return self.done_ns - self.sent_ns

    @property
    def send_lag_ns(self) -> NDArray[np.int64]:
        """Actual minus scheduled send time, shape (n,): the client's own delay."""
        return self.sent_ns - self.scheduled_ns

    def latency_charged_ns(self, timeout_ns: int) -> NDArray[np.int64]:
        """Return the latency, for a failed request at least the time-out, shape (n,)."""
        latency = self.latency_ns
        np.maximum(latency, timeout_ns, out=latency, where=self.failed)
        return latency

    @property
    def until_s(self) -> float:
        """The seconds from the start of the run until the last request was due; 0 without any."""
        return float(self.scheduled_ns[-1]) / 1e9 if len(self) else 0.0

    @property
    def latency_failures_last_ns(self) -> NDArray[np.int64]:
        """The latency, `FAILED_NS` for a failed request, shape (n,)."""
        latency = self.latency_ns
        latency[self.failed] = FAILED_NS
        return latency

    def rows(self, start: int, stop: int) -> RequestLog:
        """Return the requests start..stop-1 of the schedule, as views."""
        return self.part(slice(start, stop))

    def part(self, rows: slice | NDArray[np.intp]) -> RequestLog:
        """Return the requests of these rows: views of a slice, copies of rows that are given by number."""
        return RequestLog(
            scheduled_ns=self.scheduled_ns[rows],
            sent_ns=self.sent_ns[rows],
            done_ns=self.done_ns[rows],
            outcome=self.outcome[rows],
            streams=None if self.streams is None else self.streams[rows],
        )

    def between(self, start_s: float, end_s: float) -> RequestLog:
        """Return the requests that were due in [start_s, end_s) since the run's start, as views."""
        first, last = np.searchsorted(self.scheduled_ns, [round(start_s * 1e9), round(end_s * 1e9)])
        return self.rows(int(first), int(last))

    def judged_by(self, limit: LatencyLimit) -> RequestLog:
        """Return the log that a limit is about: this one, or that of the colocated model.

        For a limit on streams, the latencies are the times that it limits. A log that was judged by it stays.
        """
        if limit.model is not None:
            return (self.colocated or {})[limit.model]
        if self.streams is None or not isinstance(limit, StreamLimit):
            return self
        log = self
        if not limit.parts:  # an unfinished request may yet be in time
            unfinished = np.flatnonzero(self.outcome == UNFINISHED)
            log = self.rows(0, int(unfinished[0]) if len(unfinished) else len(self))
        took_ns = time_of(limit, log.scheduled_ns, log.done_ns, log.streams)
        return replace(log, done_ns=log.scheduled_ns + took_ns, streams=None)

    def shifted(self, shift_ns: int) -> RequestLog:
        """Return the log with later times."""
        return RequestLog(
            scheduled_ns=self.scheduled_ns + shift_ns,
            sent_ns=self.sent_ns + shift_ns,
            done_ns=self.done_ns + shift_ns,
            outcome=self.outcome,
        )


def concatenate(logs: Sequence[RequestLog]) -> RequestLog:
    """Join logs that share a time origin, in the order of the schedule."""
    columns = ("scheduled_ns", "sent_ns", "done_ns", "outcome")
    joined = RequestLog(**{name: np.concatenate([getattr(log, name) for log in logs]) for name in columns})
    return joined.part(np.argsort(joined.scheduled_ns, kind="stable"))


def none_if_not_finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def percentiles_ns(times_ns: NDArray[np.int64], quantiles: Iterable[float]) -> list[int]:
    """Return nearest-rank percentiles: the smallest time that at least the fraction q of all does not exceed.

    Each is a measured time. Reorders `times_ns`, which must not be empty.
    """
    ranks = [max(0, math.ceil(quantile * len(times_ns)) - 1) for quantile in quantiles]
    times_ns.partition(sorted(set(ranks)))
    return [int(times_ns[rank]) for rank in ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUse:
    """The resources that the load processes used in one run.

    `cpu_share` is that of the busiest process, 1.0 for one whole core; `cpu_s` is the sum over all.
    """

    cpu_share: float
    cpu_s: float
    bytes_sent: int
    bytes_received: int
    connections_opened: int  # while the load ran; connections opened before it are not counted
    connections_closed: int = 0  # by the server
    resent: int = 0  # requests that the server did not process, for each time
    slow_link: str = ""  # if most requests were still being sent: a sentence that says so
    beside: tuple[str, ...] = ()  # other runs that had load processes on the same machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one run. Times in ms, from the scheduled time unless the name says otherwise.

    Failed requests count at their own time or the time-out, whichever is later. Percentiles are nearest-rank;
    NaN if nothing was sent. `None` means unknown, never zero. If `problems` is not empty, nothing may be decided
    on this measurement; `remarks` do not affect its validity.
    """

    n: int
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    mean_ms: float
    service_p99_ms: float
    send_lag_p50_ms: float
    send_lag_p99_ms: float
    planned_rate_per_s: float | None  # None: closed loop
    achieved_rate_per_s: float
    duration_s: float
    errors: Mapping[str, int] = field(default_factory=dict)
    error_example: str | None = None
    client: ClientUse
    server: ServerTimings | None = None
    gpu: GpuUse | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    addresses: tuple[AddressUse, ...] = ()
    cold: str = ""  # a sentence, if the server executed batch sizes or shapes for the first time, and slowly
    in_front: tuple[str, ...] = ()  # sentences about responses that the model did not compute
    streams: StreamFigures | None = None

    @property
    def figures(self) -> dict[str, Any]:
        """The figures that all records of a run share, by their names there; None if not measured."""
        network_ms = math.nan if self.server is None else self.mean_ms - self.server.total_ms
        times_ms = {
            "latency_p50_ms": self.p50_ms,
            "latency_p90_ms": self.p90_ms,
            "latency_p95_ms": self.p95_ms,
            "latency_p99_ms": self.p99_ms,
            "latency_p999_ms": self.p999_ms,
            "latency_mean_ms": self.mean_ms,
            "latency_max_ms": self.max_ms,
            "send_lag_p99_ms": self.send_lag_p99_ms,
            "network_and_client_ms": network_ms,
        }
        return {
            "requests": self.n,
            "failures": sum(self.errors.values()),
            "achieved_rate_per_s": none_if_not_finite(self.achieved_rate_per_s) or 0.0,
            **{name: none_if_not_finite(value) for name, value in times_ms.items()},
            "problems": self.problems,
        }


def errors_by_kind(log: RequestLog) -> dict[str, int]:
    """Count the failed requests by kind of failure, the most frequent first."""
    kinds, counts = np.unique(log.outcome[log.failed], return_counts=True)
    return {outcome_name(int(kinds[at])): int(counts[at]) for at in np.argsort(-counts, kind="stable")}
