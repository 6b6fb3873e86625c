"""Two confirmations become one certificate."""

import pytest
from recommendations import certificate

from search.certifier import both, confidence_of_a_run
from search.records import CertificateRecord, LimitCertificateRecord


def of_a_run(rate_per_s: float, **changes: object) -> CertificateRecord:
    confidence = round(confidence_of_a_run(0.95), 6)
    return certificate(rate_per_s).model_copy(update={"confidence": confidence, "runs": 1, **changes})


def test_two_runs_that_would_both_have_to_be_wrong_have_the_confidence_asked_for() -> None:
    assert confidence_of_a_run(0.95) == pytest.approx(0.7764, abs=1e-4)
    together = both(of_a_run(100.0), of_a_run(100.0))
    assert together.confidence == 0.95
    assert together.runs == 2


def test_the_worse_latencies_and_all_requests_count() -> None:
    first = of_a_run(
        100.0, p99_ms=20.0, p99_low_ms=18.0, p99_high_ms=40.0, requests=1000, violations=3, seconds=10.0
    )
    second = of_a_run(
        96.0, p99_ms=22.0, p99_low_ms=19.0, p99_high_ms=30.0, requests=500, violations=1, seconds=5.0
    )
    together = both(first, second)
    assert together.rate_per_s == 96.0
    assert (together.p99_low_ms, together.p99_ms, together.p99_high_ms) == (18.0, 22.0, 40.0)
    assert (together.requests, together.violations, together.seconds) == (1500, 4, 15.0)


def test_further_limits_too() -> None:
    def limit(latency_ms: float, violations: int) -> LimitCertificateRecord:
        return LimitCertificateRecord(
            quantile=0.5,
            limit_ms=9.0,
            latency_ms=latency_ms,
            latency_low_ms=latency_ms - 1,
            latency_high_ms=latency_ms + 1,
            violations=violations,
        )

    (together,) = both(of_a_run(1.0, also=(limit(5.0, 2),)), of_a_run(1.0, also=(limit(6.0, 1),))).also
    assert (together.latency_low_ms, together.latency_ms, together.latency_high_ms) == (4.0, 6.0, 7.0)
    assert together.violations == 3
