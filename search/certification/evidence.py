"""What the load runs of a trial showed of its rates, and the certificate that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from loadgen.measurement.cpu_contention import CpuContention, merge_contention
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import Attempt
from loadgen.statistics.slo_test import Verdict, certify_together
from search.records.certificate import CertificateRecord, CertifiedLatencyRecord
from search.trials.context import confidence_of_a_run

DIGITS = 6
"""Confidences in certificates are rounded to 6 digits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfirmationRun:
    """One run at `rate_per_s`; `server` counts the restarts before it."""

    rate_per_s: float
    log: RequestLog
    seconds: float
    server: int
    contention: CpuContention | None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The runs of one trial. `confidence` is that of a rate that is met on two servers; `once`: on one."""

    limits: tuple[LatencyLimit, ...]
    confidence: float = 0.95
    once: bool = False
    runs: list[ConfirmationRun] = field(default_factory=list)
    met: dict[tuple[float, int], Attempt] = field(default_factory=dict)
    """By rate and server: what the runs there showed together, if they met the rate."""

    refuted_per_s: float = math.inf
    """The lowest rate that was violated."""

    refuted_before_per_s: float = math.inf
    """The lowest rate that was violated before that."""

    given_up_per_s: float = math.inf
    """The lowest rate at which a run would not have been met in its time, whatever was simulated."""

    late: list[float] = field(default_factory=list)
    """The rates of runs that measured the client, ascending, above all at which it was in time."""

    @property
    def late_per_s(self) -> float:
        """The rate up to which the client was late twice; once may be a disturbance."""
        return self.late[1] if self.late[1:] else math.inf

    @property
    def of_each(self) -> float:
        """The confidence on each of two servers, or on the only one."""
        return self.confidence if self.once else confidence_of_a_run(self.confidence)

    def logs(self, rate_per_s: float, server: int) -> list[RequestLog]:
        """Return the logs at a rate on one server."""
        return [run.log for run in self.runs if (run.rate_per_s, run.server) == (rate_per_s, server)]

    def verdicts(self, rate_per_s: float, server: int, *more: RequestLog) -> tuple[Verdict, ...]:
        """Return what the runs at a rate on one server show together, with another one that may be going on."""
        logs = [*self.logs(rate_per_s, server), *more]
        return certify_together(logs, self.limits, confidence=self.of_each)

    def add(self, run: ConfirmationRun, attempt: Attempt) -> None:
        """Keep a run, and what it showed together with the earlier ones at its rate on its server."""
        self.runs.append(run)
        self.late = [rate for rate in self.late if rate > run.rate_per_s]
        key = run.rate_per_s, run.server
        if attempt.met:
            self.met[key] = attempt
        else:
            self.met.pop(key, None)
        if attempt.violated and run.rate_per_s < self.refuted_per_s:
            self.refuted_per_s, self.refuted_before_per_s = run.rate_per_s, self.refuted_per_s

    def on(self, rate_per_s: float) -> dict[int, Attempt]:
        """Return the attempts that met a rate, by server: at it or, unless that is refuted, at a higher one."""
        able = {key: attempt for key, attempt in self.met.items() if rate_per_s <= key[0] < self.refuted_per_s}
        return {server: able[rate, server] for rate, server in sorted(able, reverse=True)}

    def certificate(self, rate_per_s: float, *, caveat: str | None) -> CertificateRecord:
        """Return the certificate of a rate that is met on a server, or on two."""
        attempts = self.on(rate_per_s)
        counted = {(attempt.rate_per_s, server) for server, attempt in attempts.items()}
        runs = [run for run in self.runs if (run.rate_per_s, run.server) in counted]
        return CertificateRecord(
            rate_per_s=rate_per_s,
            latencies=tuple(map(_worst, zip(*(one.verdicts for one in attempts.values()), strict=True))),
            confidence=round(self.confidence if len(attempts) > 1 else self.of_each, DIGITS),
            requests=sum(attempt.verdict.n for attempt in attempts.values()),
            seconds=sum(run.seconds for run in runs),
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
