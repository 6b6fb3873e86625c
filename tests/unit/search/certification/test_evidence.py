"""Which runs count for a rate, and what they show together."""

from typing import Any

import numpy as np
import pytest
from certifications import SLO
from recommendations import contention
from simulated_queues import log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import Attempt
from search.certification.evidence import ConfirmationRun, Evidence
from search.certification.planner import met_on, refuted_per_s

MEDIAN = LatencyLimit(quantile=0.5, limit_ms=40.0)


def log_at(latency_ms: float, *, seconds: float = 8.0, per_s: float = 500.0) -> RequestLog:
    times_s = np.arange(0, seconds, 1 / per_s)
    return log_of(times_s, times_s + latency_ms / 1e3)


def keep(
    evidence: Evidence,
    rate_per_s: float,
    server: int,
    latency_ms: float = 10.0,
    *,
    seconds: float = 8.0,
    **more: Any,
) -> Attempt:
    """Add a run; return what it shows together with those before."""
    log = log_at(latency_ms)
    verdict, *others = evidence.verdicts(rate_per_s, server, log)
    attempt = Attempt(
        rate_per_s=rate_per_s, load_s=seconds, verdict=verdict, overloaded=False, problems=(), others=tuple(others)
    )
    shown: dict[str, Any] = {"met": attempt.met, "violated": attempt.violated}
    evidence.runs.append(
        ConfirmationRun(rate_per_s=rate_per_s, server=server, log=log, attempt=attempt, **shown, **more)
    )
    return attempt


def evidence(*limits: LatencyLimit) -> Evidence:
    return Evidence(limits=limits or SLO.limits)


def test_two_servers_together_have_the_confidence_that_was_asked_for() -> None:
    given = evidence()
    first = keep(given, 500.0, 0)
    assert first.met
    once = given.certificate(500.0, caveat="once")
    assert (once.servers, once.runs, once.confirmed_again, once.caveat) == (1, 1, False, "once")
    assert (1 - once.confidence) ** 2 == pytest.approx(0.05, rel=1e-4)
    assert first.verdict.confidence == pytest.approx(once.confidence, abs=1e-6)
    keep(given, 500.0, 1)
    twice = given.certificate(500.0, caveat=None)
    assert (twice.servers, twice.runs, twice.confirmed_again) == (2, 2, True)
    assert twice.confidence == SLO.confidence


def test_a_higher_rate_that_was_met_counts_for_a_lower_one_until_it_is_refuted() -> None:
    given = evidence()
    keep(given, 500.0, 0)
    keep(given, 400.0, 1)
    assert list(met_on(given.runs, 400.0)) == [0, 1]
    assert list(met_on(given.runs, 500.0)) == [0]
    assert given.certificate(400.0, caveat=None).confirmed_again
    assert keep(given, 500.0, 1, latency_ms=90.0).violated
    assert refuted_per_s(given.runs) == [500.0]
    assert list(met_on(given.runs, 400.0)) == [1]
    assert list(met_on(given.runs, 500.0)) == []


def test_runs_on_one_server_count_together_and_a_later_one_can_take_back_what_was_met() -> None:
    given = evidence()
    first, second = keep(given, 500.0, 0), keep(given, 500.0, 0)
    assert second.verdict.n == 2 * first.verdict.n
    assert given.certificate(500.0, caveat=None).runs == 2
    assert len(given.logs(500.0, 0)) == 2
    assert given.logs(500.0, 1) == given.logs(400.0, 0) == []
    assert not keep(given, 500.0, 0, latency_ms=90.0).met
    assert list(met_on(given.runs, 500.0)) == []


def test_a_certificate_has_the_worse_latencies_of_each_limit_and_all_requests_of_both_servers() -> None:
    given = evidence(SLO.first, MEDIAN)
    first = keep(given, 500.0, 0, seconds=4.0, contention=contention(1.0, of_s=4.0))
    second = keep(given, 500.0, 1, 20.0, seconds=5.0, contention=contention(2.0, of_s=5.0))
    found = given.certificate(500.0, caveat=None)
    assert [one.quantile for one in found.latencies] == [0.99, 0.5]
    for one in found.latencies:
        assert one.latency_low_ms <= 10.0 < one.latency_ms == 20.0 <= one.latency_high_ms
    assert found.requests == first.verdict.n + second.verdict.n
    assert found.seconds == 9.0
    assert found.contention == contention(1.0, of_s=4.0) + contention(2.0, of_s=5.0)
