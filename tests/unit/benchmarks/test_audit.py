"""What an audit says: met, violated, or nothing."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from load_records import no_rows, shard_result
from recommendations import contention

from loadgen.spec.limits import LatencyLimit

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from audit import audited_run, exit_code
from lib.audits import answer_of, audited_log, summary

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import measurement_of
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import LoadPlan
from search.records.slo import Slo

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))


def log_of(latency_ms: list[float], failed: int = 0) -> RequestLog:
    n = len(latency_ms)
    scheduled = np.arange(n) * 10_000_000
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled + 1000,
        done_ns=scheduled + (np.array(latency_ms) * 1e6).astype(np.int64),
        outcome=np.array([1] * failed + [0] * (n - failed), np.uint8),
    )


@pytest.mark.parametrize(("over", "answer"), [(0, "met"), (1, "met"), (2, "violated")])
def test_a_run_in_time_on_an_idle_machine_is_decided(over: int, answer: str) -> None:
    figures = audited_log(log_of([60.0] * over + [10.0] * (100 - over)), SLO)
    assert answer_of(figures, ()) == answer


def test_a_run_without_a_request_decides_nothing() -> None:
    figures = audited_log(no_rows(), SLO)
    assert answer_of(figures, ()) == "inconclusive"
    assert figures["p99_ms"] is None


def test_every_limit_counts() -> None:
    slo = Slo(limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=5.0)))
    assert answer_of(audited_log(log_of([10.0] * 100), slo), ()) == "violated"
    assert answer_of(audited_log(log_of([4.0] * 100), slo), ()) == "met"


def test_failed_requests_are_over_every_limit() -> None:
    figures = audited_log(log_of([1.0] * 100, failed=99), SLO)
    assert answer_of(figures, ()) == "violated"
    assert figures["p99_ms"] is None  # too many failed for one


def test_what_decides_nothing_counts_on_neither_side() -> None:
    text = summary(Counter(met=9, violated=1, inconclusive=3))  # type: ignore[arg-type]
    assert text.startswith("met 9 of 10")


@pytest.mark.parametrize(("violated", "inconclusive", "code"), [(0, 0, 0), (0, 1, 96), (1, 0, 1), (1, 3, 1)])
def test_the_exit_code_is_that_of_the_worst_audit(violated: int, inconclusive: int, code: int) -> None:
    assert exit_code(Counter(met=2, violated=violated, inconclusive=inconclusive)) == code


@pytest.mark.parametrize(
    ("latency_ms", "lag_ms", "disturbed_s", "answer"),
    [
        (10.0, 0.1, 0.0, "met"),
        (60.0, 0.1, 0.0, "violated"),
        (60.0, 9.0, 0.0, "inconclusive"),
        (60.0, 0.1, 5.0, "inconclusive"),
    ],
)
def test_an_audit_takes_its_answer_from_what_its_run_measured(
    latency_ms: float, lag_ms: float, disturbed_s: float, answer: str
) -> None:
    """Ten seconds at 100/s; only the first two, which are left out, are all over the limit."""
    log = log_of([1000.0] * 200 + [latency_ms] * 800)
    log = replace(log, sent_ns=log.scheduled_ns + round(lag_ms * 1e6))
    plan = LoadPlan(rate_per_s=100.0, duration_s=10.0, seed=0)
    run = LoadRun(log=log, measurement=measurement_of(log, plan, [shard_result()]), stopped=None)
    found = audited_run(run, SLO, contention(disturbed_s, of_s=10.0), 8.0)
    assert found["answer"] == answer
    assert found["requests"] == 800
    assert bool(found["problems"]) is (lag_ms > 1)
    assert bool(found["contention"]) is (disturbed_s > 0)
