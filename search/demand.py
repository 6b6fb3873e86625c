"""How requests come in and how much each carries: what a search, its simulation and its promise are about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from pydantic import Field

from loadgen.plan import Arrivals, SharedMemory
from model_repo.spec import Protocol
from search.record import Rate, Record

if TYPE_CHECKING:
    from loadgen.capacity import Watch
    from loadgen.measurement import RequestLog
    from search.predict import Floats
    from search.request_shapes import RequestShapes

MOST_SIMULATED = 120_000
"""So much of a long trace is simulated, a piece that begins somewhere in it."""

NEARLY_ALL = 0.98


class DemandRecord(Record):
    """The traffic that a promise holds for."""

    arrivals: str = Field(default="poisson", description="As `--arrivals` has it, or `trace` and the file's name.")
    trace: str | None = Field(
        default=None,
        pattern=r"^trace\.txt$",
        description="The file in the run's directory, with times in seconds.",
    )
    trace_requests: int | None = Field(default=None, description="How many times the trace holds.")
    recorded_rate_per_s: Rate | None = Field(
        default=None, description="Of the trace, whose speed makes any other."
    )
    rows_per_request: int = Field(default=1, ge=1, description="The batch that every request carries.")
    mixed_shapes: bool = Field(default=False, description="The samples of `--input-data` differ in shape.")
    input_data: str | None = Field(
        default=None,
        pattern=r"^input-data(\.[^/\x00]+)?$",
        description="The file in the run's directory with the samples, or the lengths of requests.",
    )
    protocol: Protocol = Field(default="http", description="How requests travel: `http` or `grpc`.")
    shared_memory: SharedMemory = Field(
        default="none", description="`system`: inputs wait in memory that clients and server share."
    )

    @property
    def lengths(self) -> str | None:
        """The file in the run's directory where it holds lengths; None: there are none, or it holds samples."""
        return self.input_data if self.input_data is not None and self.input_data.endswith(".txt") else None

    @property
    def text(self) -> str:
        """`gamma:cv=2 arrivals, 4 rows a request`; empty for Poisson arrivals of single rows over HTTP."""
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


def traffic_text(record: DemandRecord) -> str:
    """The same where something has to be said."""
    return record.text or "poisson arrivals of single rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Traffic of any rate: `arrivals` gives it its shape. Batch sizes that the simulator sees count requests.

    `shapes`: those of the requests where they differ; None where all have the same. `predictable`: False where
    they differ in more ways than can be profiled.
    `record`: the same for files.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    rows_per_request: int = 1
    shapes: RequestShapes | None = None
    predictable: bool = True
    record: DemandRecord = field(default_factory=DemandRecord)

    @property
    def turn(self) -> int:
        """How many requests a trace has until it begins again; 0: the arrivals are random."""
        return len(self.arrivals.times_s) if self.arrivals.kind == "trace" else 0

    def drawn(self, seed: int) -> Arrivals:
        """The arrivals of one run: a trace begins at a place of its own, so that seeds give fresh arrivals."""
        if not self.turn:
            return self.arrivals
        return replace(self.arrivals, start=Random(seed).random())  # noqa: S311 - no secret

    def unit(self, seed: int, *, requests: int) -> Floats:
        """Arrival times at one request per second for the simulator, so many or all of a trace."""
        from search.predict import unit_arrivals

        enough = max(requests, min(self.turn, MOST_SIMULATED))
        return unit_arrivals(seed, requests=enough, arrivals=self.drawn(seed))

    def to_the_end(self, watch: Watch | None, rate_per_s: float, duration_s: float) -> Watch | None:
        """The same watch, which lets a trace be played once before it ends a run, where there is time for that."""
        turn_s = self.turn / rate_per_s
        if watch is None or not self.turn or turn_s > duration_s:
            return watch

        def patient(log: RequestLog) -> bool:
            return bool(len(log)) and log.scheduled_ns[-1] >= NEARLY_ALL * turn_s * 1e9 and watch(log)

        return patient

    def caveat(self, requests: float) -> str | None:
        """What a confirmation of so many requests has not seen; None: nothing."""
        if requests >= NEARLY_ALL * self.turn:
            return None
        return f"each run had about {requests:,.0f} of the trace's {self.turn:,} arrivals"
