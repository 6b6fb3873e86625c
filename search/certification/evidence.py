"""What the load runs of a trial showed of its rates, and the certificate that follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import reduce

from loadgen.measurement.cpu_contention import CpuContention, merge_contention
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import Attempt
from loadgen.statistics.slo_test import Verdict, certify_together
from search.certification.planner import Run, met_on
from search.records.certificate import CertificateRecord, CertifiedLatencyRecord
from search.trials.context import confidence_of_a_run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfirmationRun(Run):
    """A run with its log. `attempt` is what it showed together with those before it at its rate on its server."""

    log: RequestLog
    attempt: Attempt
    contention: CpuContention | None = None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The runs of one trial. `confidence` is that of a rate that is met on two servers; `once`: on one."""

    limits: tuple[LatencyLimit, ...]
    confidence: float = 0.95
    once: bool = False
    runs: list[ConfirmationRun] = field(default_factory=list)

    @property
    def of_each(self) -> float:
        """The confidence on each of two servers, or on the only one."""
        return self.confidence if self.once else confidence_of_a_run(self.confidence)

    def logs(self, rate_per_s: float, server: int) -> list[RequestLog]:
        """Return the logs at a rate on one server in which the client was in time."""
        return [run.log for run in self._at({(rate_per_s, server)})]

    def verdicts(self, rate_per_s: float, server: int, *more: RequestLog) -> tuple[Verdict, ...]:
        """Return what the runs at a rate on one server show together, with another one that may be going on."""
        logs = [*self.logs(rate_per_s, server), *more]
        return certify_together(logs, self.limits, confidence=self.of_each)

    def _at(self, keys: Collection[tuple[float, int]]) -> list[ConfirmationRun]:
        return [run for run in self.runs if (run.rate_per_s, run.server) in keys and not run.client_late]

    def certificate(self, rate_per_s: float, *, caveat: str | None) -> CertificateRecord:
        """Return the certificate of a rate that is met on a server, or on two."""
        met = met_on(self.runs, rate_per_s).values()
        attempts, runs = [run.attempt for run in met], self._at({(run.rate_per_s, run.server) for run in met})
        return CertificateRecord(
            rate_per_s=rate_per_s,
            latencies=tuple(map(_worst, zip(*(one.verdicts for one in attempts), strict=True))),
            confidence=round(self.confidence if len(attempts) > 1 else self.of_each, 6),
            requests=sum(attempt.verdict.n for attempt in attempts),
            seconds=sum(run.attempt.load_s for run in runs),
            runs=len(runs),
            servers=len(attempts),
            caveat=caveat,
            contention=reduce(merge_contention, (run.contention for run in runs)),
        )


def _worst(verdicts: Iterable[Verdict]) -> CertifiedLatencyRecord:
    each = list(verdicts)
    return CertifiedLatencyRecord(
        quantile=each[0].limit.quantile,
        model=each[0].limit.model,
        latency_ms=max(verdict.latency_ms for verdict in each),
        latency_low_ms=min(verdict.latency_lower_ms for verdict in each),
        latency_high_ms=max(verdict.latency_upper_ms for verdict in each),
        violations=sum(verdict.violations for verdict in each),
    )
