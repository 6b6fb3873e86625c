"""Records of a certificate: the rate that met the SLO, and what slow phases of the machine cost it."""

from __future__ import annotations

from pydantic import Field

from loadgen.finite import Count
from loadgen.measurement.cpu_contention import CpuContention
from search.record import Rate, Record, passing_over


class CertifiedLatencyRecord(Record):
    """The latency at the quantile of one limit, with its bounds; the bounds of all limits hold together."""

    quantile: float = Field(gt=0, lt=1)
    model: str | None = Field(default=None, description="The colocated model whose limit it is.")
    latency_ms: float = Field(ge=0)
    latency_low_ms: float = Field(ge=0)
    latency_high_ms: float = Field(ge=0)
    violations: Count = Field(description="Requests that failed or took longer than the limit.")


class SlownessRecord(Record):
    """How slow the machine was while load was sent, as all runs so far show it."""

    share: float = Field(ge=0, le=1, description="Share of the time in which executions were slower than usual.")
    slowdown: float = Field(ge=1, description="Factor on execution times in it, geometric mean.")
    seen_s: float = Field(ge=0, description="Seconds of load in which the speed is known.")


class SlowPhasesRecord(SlownessRecord):
    """The same in the whole run, and what a configuration carries at most at the machine's usual speed."""

    usual_per_s: Rate = Field(
        description="Estimated capacity at the usual speed, or the lowest violated rate if less; not certified."
    )
    ignored: bool = Field(default=False, description="True if the certified rate need not hold in slow phases.")


class CertificateRecord(Record):
    """A rate that met every limit in sequential tests, and that the machine's speeds of the whole run allow.

    `latency_low_ms` and `latency_high_ms` bound the latency at each limit's quantile with the tests' confidence,
    corrected for the dependence between successive requests. With several limits, all bounds hold together with
    that confidence. `runs` counts the load runs, each with its own seed; with two `servers`, one was restarted
    (if others run it: both are the same). Requests, violations and seconds are sums over the runs, latencies the
    worse of both, and `confidence` is that of both together: both would have to be wrong (ADR 27).
    """

    rate_per_s: Rate
    latencies: tuple[CertifiedLatencyRecord, ...] = Field(
        min_length=1, description="One entry per limit, in the order of `slo.limits` and `slo.colocated`."
    )
    confidence: float = Field(ge=0, le=1)
    requests: int = Field(ge=0)
    seconds: float = Field(ge=0)
    runs: int = Field(ge=0)
    servers: int = Field(
        default=0,
        ge=0,
        description="2: met twice, the second time on a restarted one if ours. 0: earlier versions.",
    )
    unseen_every_s: float | None = Field(
        default=None,
        description="Slow phases of the machine that come less often than once in so many seconds were not seen, "
        "and the rate need not hold in them. null: enough were seen.",
    )
    slow_phases: SlowPhasesRecord | None = Field(
        default=None,
        description="Slow phases of the machine, if they cost over a tenth of the rate or are ignored.",
    )
    caveat: str | None = Field(
        default=None, description="Why the certificate is provisional or holds less widely."
    )
    contention: CpuContention | None = Field(
        default=None, description="CPU contention during all confirmations of the rate."
    )

    _earlier = passing_over("earlier_s")

    @property
    def first(self) -> CertifiedLatencyRecord:
        """The latency at the quantile of the first limit, for which figures are shown."""
        return self.latencies[0]

    @property
    def confirmed_again(self) -> bool:
        """True if the SLO was met a second time; otherwise the certificate has a caveat."""
        return self.servers > 1 or (self.servers == 0 and self.runs > 1)

    def certifies(self, confidence: float) -> bool:
        """True if the SLO was met twice, with this confidence; otherwise the rate is provisional."""
        return self.confirmed_again and self.confidence > confidence - 1e-6  # it is rounded
