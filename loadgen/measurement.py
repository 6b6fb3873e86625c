"""What a load run saw: every request's times, and the figures drawn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadgen.outcomes import outcome_name
from loadgen.times import PART, Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from loadgen.gpu import GpuUse
    from loadgen.server_stats import ServerTimings

_NS_PER_MS = 1e6

FAILED_NS: int = np.iinfo(np.int64).max
"""Stands for the latency of a failed request where failures come last."""

PercentilesFrom = Literal["every request", "histogram"]
"""Exact, or from HdrHistogram where the run was too long to keep every time: then too high by 0.1 % at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """The times of n requests, in ns since the run's start, in the order of their schedule.

    `scheduled_ns` is when the plan wanted the request to leave, `sent_ns` when its first byte was given to the
    kernel, `done_ns` when the kernel had the whole answer or the request was given up. `outcome` is 0 for an
    answer and the number of the kind of failure otherwise (`loadgen.outcomes`). All of shape (n,).
    """

    scheduled_ns: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.scheduled_ns)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which requests got no usable answer, shape (n,)."""
        return np.not_equal(self.outcome, 0)

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """Completion minus *scheduled* time, shape (n,): what a user who did not wait for others saw."""
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
        """Latency with every failed request at its own time or the time-out, whichever is later, shape (n,)."""
        latency = self.latency_ns
        np.maximum(latency, timeout_ns, out=latency, where=self.failed)
        return latency

    @property
    def latency(self) -> Times:
        """`latency_ns` of a log that may be long."""
        return Times(len(self), lambda rows: self.part(rows).latency_ns)

    @property
    def latency_failures_last(self) -> Times:
        """The same with `FAILED_NS` for every failed request."""

        def of(rows: slice) -> NDArray[np.int64]:
            part = self.part(rows)
            latency_ns = part.latency_ns
            latency_ns[part.failed] = FAILED_NS
            return latency_ns

        return Times(len(self), of)

    def latency_charged(self, timeout_ns: int) -> Times:
        """`latency_charged_ns` of a log that may be long."""
        return Times(len(self), lambda rows: self.part(rows).latency_charged_ns(timeout_ns))

    def rows(self, start: int, stop: int) -> RequestLog:
        """The requests start..stop-1 of the schedule, as views."""
        return self.part(slice(start, stop))

    def part(self, rows: slice) -> RequestLog:
        """The requests of these rows, as views."""
        return RequestLog(
            scheduled_ns=self.scheduled_ns[rows],
            sent_ns=self.sent_ns[rows],
            done_ns=self.done_ns[rows],
            outcome=self.outcome[rows],
        )

    def between(self, start_s: float, end_s: float) -> RequestLog:
        """The requests that were due in [start_s, end_s) since the run's start, as views."""
        first, last = np.searchsorted(self.scheduled_ns, [round(start_s * 1e9), round(end_s * 1e9)])
        return self.rows(int(first), int(last))


def no_rows() -> RequestLog:
    """A log of nothing."""
    none = np.zeros(0, np.int64)
    return RequestLog(scheduled_ns=none, sent_ns=none, done_ns=none, outcome=np.zeros(0, np.uint8))


def concatenate(logs: Sequence[RequestLog]) -> RequestLog:
    """One log of several that share a time origin, in the order of the schedule."""
    scheduled = np.concatenate([log.scheduled_ns for log in logs])
    order = np.argsort(scheduled, kind="stable")
    return RequestLog(
        scheduled_ns=scheduled[order],
        sent_ns=np.concatenate([log.sent_ns for log in logs])[order],
        done_ns=np.concatenate([log.done_ns for log in logs])[order],
        outcome=np.concatenate([log.outcome for log in logs])[order],
    )


def known(value: float) -> float | None:
    """The figure as it is written: None where it is NaN or infinite."""
    return value if math.isfinite(value) else None


def percentiles_ns(times_ns: NDArray[np.int64], quantiles: Iterable[float]) -> list[int]:
    """Nearest-rank percentiles: the smallest time that at least the fraction q of all does not exceed.

    Each is a time that was really measured. Reorders `times_ns`, which must not be empty.
    """
    ranks = [max(0, math.ceil(quantile * len(times_ns)) - 1) for quantile in quantiles]
    times_ns.partition(sorted(set(ranks)))
    return [int(times_ns[rank]) for rank in ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUse:
    """What the load processes spent on one run.

    `cpu_share` is that of the busiest process, 1.0 being one whole core; `cpu_s` is the sum over all.
    """

    cpu_share: float
    cpu_s: float
    bytes_sent: int
    bytes_received: int
    connections_opened: int  # while the load ran; those opened ahead of it are not in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one run. Times in ms, from the scheduled time unless the name says otherwise.

    Failed requests count at their own time or the time-out, whichever is later. Percentiles are nearest-rank;
    NaN where nothing was sent. `None` means unknown, never zero. When `problems` is not empty,
    nothing may be decided on this measurement; `remarks` take nothing from it.
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
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    error_example: str | None = None
    client: ClientUse
    server: ServerTimings | None = None
    gpu: GpuUse | None = None
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    percentiles_from: PercentilesFrom = "every request"

    @property
    def error_ratio(self) -> float:
        """Failed requests per request; NaN where nothing was sent."""
        return sum(self.errors.values()) / self.n if self.n else math.nan


def errors_by_kind(log: RequestLog) -> dict[str, int]:
    """How many requests failed in which way, the most frequent first."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(log), PART):  # bincount makes eight bytes of each one
        counts += np.bincount(log.outcome[start : start + PART], minlength=256)
    kinds = sorted((int(kind) for kind in np.flatnonzero(counts) if kind), key=lambda kind: -counts[kind])
    return {outcome_name(kind): int(counts[kind]) for kind in kinds}
