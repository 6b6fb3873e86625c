"""The record of one load test: `--output` and `--json` write it, and `--compare` reads it back.

In all parts null is unknown, and never zero.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from loadgen.finite import Count, FiniteModel
from loadgen.measurement.addresses import AddressUse
from loadgen.measurement.gpu import GpuUse
from loadgen.measurement.server_stats import ServerTimings
from loadgen.measurement.streams import StreamFigures
from loadgen.spec.limits import Kind
from loadgen.spec.limits import Measure as StreamMeasure
from loadgen.spec.plan import SharedMemory, StreamApi, TensorFormat

SCHEMA_VERSION: Literal[2] = 2

Outcome = Literal["met", "measured", "inconclusive", "worse", "untrustworthy", "violated", "interrupted"]
Answer = Literal["met", "violated", "inconclusive"]
ObservedAnswer = Literal["met", "violated"]


class TargetRecord(FiniteModel):
    """The server and model under load. Headers are named only: their values may be secrets."""

    url: str
    model_name: str
    model_version: str
    header_names: tuple[str, ...]
    certificate_checked: bool | None = Field(description="null: the connection was not encrypted.")


class LoadRecord(FiniteModel):
    """The load that was requested."""

    kind: Literal["open", "closed"]
    arrivals: str
    rate_per_s: float | None = Field(description="null: closed loop.")
    concurrency: int | None
    max_in_flight: int | None
    refuse_above: int | None = Field(default=None, description="Refused while so many were unanswered.")
    duration_s: float
    warmup_s: float
    timeout_s: float
    most_send_lag_ms: float | None = Field(
        default=None, description="p99 of the send lag that was accepted; null: 1 ms, or 5 % of the limit."
    )
    seed: int
    processes: int
    machines: int = 1
    batch_size: int
    shapes: dict[str, tuple[int, ...]]
    input_data: str | None
    shared_memory: SharedMemory = Field(
        default="none", description="`system`: inputs waited in memory that the server shared with the client."
    )
    format: TensorFormat = Field(default="binary", description="How tensors were written over HTTP.")
    outputs: tuple[str, ...] = Field(default=(), description="Outputs that were asked for; empty: all.")
    api: StreamApi | None = Field(default=None, description="The API of streamed tokens; null: KServe v2.")
    prompt_tokens: Count | None = None
    output_tokens: Count | None = Field(default=None, description="Tokens that each request asked for.")
    allow_short: bool = False
    good_within_ms: dict[StreamMeasure, float] = Field(
        default={}, description="The limits that a request keeps to count as good; empty: none was asked for."
    )


def _observed_answer(check: dict[str, Any]) -> ObservedAnswer | None:
    """Return whether a run met its limit, by the fields before this one, for old records too."""
    if not check["requests"]:
        return None
    observed = check["observed"]  # null: too many requests failed
    return "met" if observed is not None and observed <= check["limit"] else "violated"


class CheckRecord(FiniteModel):
    """One limit, what this run showed, and the test's answer. Times in ms; ratios of requests.

    `observed_answer` is about this run alone: `violations` of `requests` were over the limit once it was steady.
    `answer` is about the server and load beyond it, at the confidence.

    `low` and `high` bound the true value with the test's confidence, corrected for the dependence between
    successive requests; null if there were too few requests to bound it. `needed_s` is about how long a run
    would have to be to decide, null if that is not known or not needed.
    """

    name: str
    kind: Kind
    quantile: float | None
    limit: float
    answer: Answer
    observed: float | None
    low: float | None
    high: float | None
    confidence: float
    requests: Count
    violations: Count
    reason: str
    needed_s: float | None
    observed_answer: ObservedAnswer | None = Field(
        default_factory=_observed_answer, description="null: nothing was measured."
    )

    def counted(self, *, accept_observed: bool) -> Answer:
        """Return the test's answer, or "met" if it is inconclusive and the run's own answer is accepted."""
        accepted = accept_observed and self.answer == "inconclusive" and self.observed_answer == "met"
        return "met" if accepted else self.answer


class FiguresRecord(FiniteModel):
    """The figures that are known of every load run. Latency counts from the scheduled send time; failed requests
    count at the time-out or later.
    """

    requests: Count
    failures: Count
    achieved_rate_per_s: float
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_mean_ms: float | None
    latency_max_ms: float | None
    send_lag_p99_ms: float | None
    network_and_client_ms: float | None = Field(
        description="Mean client latency minus Triton's own time for the request."
    )
    problems: tuple[str, ...] = Field(description="Not empty: nothing may be decided on this measurement.")

    @property
    def latencies_ms(self) -> dict[float, float | None]:
        """The latency at each recorded quantile; None if it is not known."""
        return {
            0.5: self.latency_p50_ms,
            0.9: self.latency_p90_ms,
            0.95: self.latency_p95_ms,
            0.99: self.latency_p99_ms,
            0.999: self.latency_p999_ms,
        }


class MeasurementRecord(FiguresRecord):
    """The figures of the run."""

    errors: dict[str, int]
    error_example: str | None
    planned_rate_per_s: float | None
    duration_s: float
    latency_min_ms: float | None
    latency_p99_low_ms: float | None = Field(description="Bounds of p99; null: too few requests to bound it.")
    latency_p99_high_ms: float | None
    latency_p99_bounded_after_s: float | None = Field(
        default=None,
        description="About how long a run must be for an upper bound; null: there is one, or not known.",
    )
    interval_confidence: float
    service_p99_ms: float | None = Field(description="p99 from the actual send: blind to the client's own delay.")
    send_lag_p50_ms: float | None
    bytes_sent: Count
    bytes_received: Count
    connections_opened: Count | None = Field(default=None, description="While the load ran.")
    connections_closed: Count | None = Field(default=None, description="By the server, while the load ran.")
    requests_resent: Count | None = Field(
        default=None,
        description="Calls that the server did not process (GOAWAY, REFUSED_STREAM) and that were sent again, for "
        "each time; null in records of earlier versions.",
    )
    client_cpu_share: float = Field(description="The busiest load process; 1.0 is one whole core.")
    client_cpu_s: float
    server: ServerTimings | None
    gpu: GpuUse | None
    addresses: tuple[AddressUse, ...] = Field(
        default=(), description="What each address of the target's name took; empty: there was one."
    )
    in_front: tuple[str, ...] = Field(
        default=(), description="Responses of a cache, a proxy, a gateway's limit or another model than asked for."
    )
    streams: StreamFigures | None = Field(default=None, description="null: responses were no streams of tokens.")


class TimelineRecord(FiniteModel):
    """The run over time, in bins of `bin_s` seconds by scheduled time; one value per bin, null if it is empty."""

    bin_s: float
    start_s: tuple[float, ...]
    due_per_s: tuple[float, ...]
    good_per_s: tuple[float, ...] = Field(
        default=(), description="Answered within the limit; empty: there was none."
    )
    failures: tuple[int, ...]
    p50_ms: tuple[float | None, ...]
    p99_ms: tuple[float | None, ...]
    max_ms: tuple[float | None, ...]


class PhaseRecord(FiniteModel):
    """A part of the load with a rate of its own, of steps or a spike: the requests that were due in it."""

    start_s: float
    end_s: float
    due_per_s: float
    good_per_s: float | None = Field(description="Answered within the limit; null: there was no latency limit.")
    failures: Count
    p99_ms: float | None = Field(description="Of answers alone; null: there was none.")
    kept_after_s: float | None = Field(
        description="From its start: what was due from then on kept the limit; 0: the whole phase. null: not even "
        "the end did, there were too few requests to tell, or no limit."
    )


class CurveRecord(FiniteModel):
    """The latency distribution: a share of `quantile` of all requests took at most `latency_ms`."""

    quantile: tuple[float, ...]
    latency_ms: tuple[float, ...]


class TokenTimesRecord(FiniteModel):
    """One time of each stream, as `curve` and `timeline` have it for the whole reply."""

    curve: CurveRecord | None
    timeline: TimelineRecord | None


class ProbeRecord(FiniteModel):
    """One load of a search for the highest rate."""

    rate_per_s: float
    seconds: float
    requests: Count
    violations: Count
    latency_ms: float | None = Field(description="The limit's quantile.")
    answer: str
    confirms: bool = Field(default=False, description="A confirmation, with load of its own; false: a probe.")
    errors: dict[str, int] = Field(default_factory=dict, description="Failed requests by kind of failure.")


class CapacityRecord(FiniteModel):
    """The highest rate that meets the limit. `certified_rate_per_s` null: no rate was confirmed."""

    quantile: float
    limit: str | None = Field(default=None, description="The limit in words; null in older records.")
    limit_ms: float | None = Field(default=None, description="null: about the share of good streams.")
    certified_rate_per_s: float | None
    estimate_per_s: float | None
    low_per_s: float | None
    high_per_s: float | None
    lone_latency_ms: float | None = Field(description="Median at a rate so low that requests hardly meet.")
    inconclusive: bool = Field(description="No rate was confirmed, but one might have been with more load.")
    seconds: float
    probes: tuple[ProbeRecord, ...]
    reason: str


class ComparisonRecord(FiniteModel):
    """One figure compared with the baseline's. The ratio's bounds hold with the tests' confidence."""

    figure: str
    unit: str
    baseline: float
    now: float
    ratio: float
    ratio_low: float | None = Field(description="null: one of the two could not be bounded on that side.")
    ratio_high: float | None
    answer: Literal["worse", "better", "no difference seen"]


class LoadTestRecord(FiniteModel):
    """All results of one load test."""

    schema_version: Literal[2] = SCHEMA_VERSION

    tool: str
    started_at: datetime
    outcome: Outcome
    exit_code: int
    reasons: tuple[str, ...] = Field(description="Why this outcome, in sentences; the first is the headline.")
    notes: tuple[str, ...]
    target: TargetRecord
    load: LoadRecord
    checks: tuple[CheckRecord, ...]
    ready_after_s: float | None = Field(
        default=None,
        description="Time until the server answered an inference, before the load and in none of its figures; "
        "null: it was not waited for (--wait-ready).",
    )
    accept_observed: bool = Field(
        default=False, description="A limit that this run met counts as met if the test is inconclusive."
    )
    measurement: MeasurementRecord | None
    curve: CurveRecord | None
    timeline: TimelineRecord | None
    phases: tuple[PhaseRecord, ...] = Field(
        default=(), description="Of a load in steps, or with a spike; empty: any other load."
    )
    token_times: dict[StreamMeasure, TokenTimesRecord] = Field(
        default={}, description="Of streams: the time to the first token, and per token after it."
    )
    capacity: CapacityRecord | None
    baseline: str | None
    comparison: tuple[ComparisonRecord, ...]
