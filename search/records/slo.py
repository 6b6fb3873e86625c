"""Records of the SLO, objective and workload of a run."""

from __future__ import annotations

from pydantic import Field

from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import SharedMemory
from model_repo.spec import Protocol
from search.record import Rate, Record


class WorkloadRecord(Record):
    """The traffic that the certified rate holds for."""

    arrivals: str = Field(
        default="poisson", description="As given to `--arrivals`, or `trace` and the file's name."
    )
    trace: str | None = Field(default=None, description="The file in the run's directory, with times in seconds.")
    trace_requests: int | None = Field(default=None, description="Number of request times in the trace.")
    recorded_rate_per_s: Rate | None = Field(
        default=None, description="Mean rate of the trace; it is scaled to reach other rates."
    )
    rows_per_request: int = Field(default=1, ge=1, description="Batch items per request.")
    mixed_shapes: bool = Field(default=False, description="The samples of `--input-data` differ in shape.")
    input_data: str | None = Field(
        default=None, description="The file in the run's directory with the samples, or the lengths of requests."
    )
    protocol: Protocol = Field(default="http", description="Protocol of the requests: `http` or `grpc`.")
    shared_memory: SharedMemory = Field(
        default="none", description="`system`: inputs wait in memory that clients and server share."
    )

    @property
    def lengths(self) -> str | None:
        """The file of request lengths in the run's directory; None if there is none, or if it holds samples."""
        return self.input_data if self.input_data is not None and self.input_data.endswith(".txt") else None

    @property
    def text(self) -> str:
        """Such as `gamma:cv=2 arrivals, 4 rows a request`; empty for Poisson arrivals of single rows over HTTP."""
        parts = []
        if self.trace is not None and self.recorded_rate_per_s is not None:
            parts.append(f"{self.arrivals}, recorded at {self.recorded_rate_per_s:,.4g}/s and scaled to the rate")
        elif self.arrivals != "poisson":
            parts.append(f"{self.arrivals} arrivals")
        if self.rows_per_request > 1:
            parts.append(f"{self.rows_per_request} rows a request")
        if self.mixed_shapes:
            parts.append("samples of several shapes")
        if self.protocol == "grpc":
            parts.append("requests over gRPC")
        if self.shared_memory == "system":
            parts.append("inputs in shared memory")
        return ", ".join(parts)


class Slo(Record):
    """The SLO: for each limit, at least `quantile` of all requests are answered within `limit_ms`.

    Latency counts from the scheduled send time, and a failed request is over the limit. `confidence` is that of a
    verdict that all limits together are met.
    """

    limits: tuple[LatencyLimit, ...] = Field(
        min_length=1, description="Each has its own quantile; figures are shown for the first."
    )
    colocated: tuple[LatencyLimit, ...] = Field(
        default=(), description="Limits of other models of the server, each at a rate of its own meanwhile."
    )
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    max_memory_bytes: int | None = Field(
        default=None, gt=0, description="Limit on the memory of the server and its models; null for none."
    )

    @property
    def first(self) -> LatencyLimit:
        """The limit for which figures are shown."""
        return self.limits[0]

    @property
    def tested(self) -> tuple[LatencyLimit, ...]:
        """All limits that load is tested by: the model's own, and those of colocated models."""
        return (*self.limits, *self.colocated)

    @property
    def text(self) -> str:
        """A text such as `p99 within 50 ms`, or `p99 within 50 ms and p50 within 10 ms` for several limits."""
        *most, last = (limit.within for limit in self.tested)
        return f"{', '.join(most)} and {last}" if most else last


class ObjectiveRecord(Record):
    """The objective: least `cost`, least `latency` of one replica at a rate, or least `energy` per inference."""

    name: str = Field(default="cost", description="`cost`, `latency` or `energy`.")
    rate_per_s: float | None = Field(
        default=None, description="The rate at which latencies were compared; null for other objectives."
    )
