"""What an audit says: kept, broken, or nothing."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recommendations import neighbours

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from audit import answer_of, audited_log, audited_run, exit_code, summary

from loadgen.measurement import ClientUse, RequestLog, no_rows
from loadgen.plan import LoadPlan
from loadgen.runner import LoadRun
from loadgen.summary import measurement_of
from search.records import LimitRecord, Slo

SLO = Slo(limit_ms=50.0)
LATE = "requests left late: p99 of the send lag is 9 ms"


def log_of(latency_ms: list[float], failed: int = 0) -> RequestLog:
    n = len(latency_ms)
    scheduled = np.arange(n) * 10_000_000
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled + 1000,
        done_ns=scheduled + (np.array(latency_ms) * 1e6).astype(np.int64),
        outcome=np.array([1] * failed + [0] * (n - failed), np.uint8),
    )


@pytest.mark.parametrize(("over", "answer"), [(0, "kept"), (1, "kept"), (2, "broken")])
def test_a_run_in_time_on_an_idle_machine_is_decided(over: int, answer: str) -> None:
    figures = audited_log(log_of([60.0] * over + [10.0] * (100 - over)), SLO)
    assert answer_of(figures, ()) == answer


@pytest.mark.parametrize("latency_ms", [10.0, 60.0])
@pytest.mark.parametrize(
    ("problems", "disturbed"), [((LATE,), None), ((), "other processes took 0.9 cores"), ((LATE,), "others")]
)
def test_a_late_client_or_a_disturbed_machine_decides_nothing(
    latency_ms: float, problems: tuple[str, ...], disturbed: str | None
) -> None:
    figures = audited_log(log_of([latency_ms] * 100), SLO)
    assert answer_of(figures, problems, disturbed) == "undecided"


def test_a_run_without_a_request_decides_nothing() -> None:
    figures = audited_log(no_rows(), SLO)
    assert answer_of(figures, ()) == "undecided"
    assert figures["p99_ms"] is None


def test_every_limit_counts() -> None:
    slo = Slo(limit_ms=50.0, also=(LimitRecord(quantile=0.5, limit_ms=5.0),))
    assert answer_of(audited_log(log_of([10.0] * 100), slo), ()) == "broken"
    assert answer_of(audited_log(log_of([4.0] * 100), slo), ()) == "kept"


def test_failed_requests_are_over_every_limit() -> None:
    figures = audited_log(log_of([1.0] * 100, failed=99), SLO)
    assert answer_of(figures, ()) == "broken"
    assert figures["p99_ms"] is None  # too many failed for one


@given(kept=st.integers(0, 9), broken=st.integers(0, 9), undecided=st.integers(0, 9))
def test_what_decides_nothing_counts_on_neither_side(kept: int, broken: int, undecided: int) -> None:
    text = summary(Counter(kept=kept, broken=broken, undecided=undecided))
    assert text.startswith(f"kept {kept} of {kept + broken}")
    assert (f"{undecided} not decided" in text) is (undecided > 0)


@pytest.mark.parametrize(("broken", "undecided", "code"), [(0, 0, 0), (0, 1, 96), (1, 0, 1), (1, 3, 1)])
def test_the_exit_code_is_that_of_the_worst_audit(broken: int, undecided: int, code: int) -> None:
    assert exit_code(Counter(kept=2, broken=broken, undecided=undecided)) == code


@pytest.mark.parametrize(
    ("latency_ms", "lag_ms", "disturbed_s", "answer"),
    [
        (10.0, 0.1, 0.0, "kept"),
        (60.0, 0.1, 0.0, "broken"),
        (10.0, 9.0, 0.0, "undecided"),
        (60.0, 9.0, 0.0, "undecided"),
        (10.0, 0.1, 5.0, "undecided"),
        (60.0, 0.1, 5.0, "undecided"),
    ],
)
def test_an_audit_takes_its_answer_from_what_its_run_measured(
    latency_ms: float, lag_ms: float, disturbed_s: float, answer: str
) -> None:
    """Ten seconds at 100/s; only the first two, which are left out, are all over the limit."""
    log = log_of([1000.0] * 200 + [latency_ms] * 800)
    log = replace(log, sent_ns=log.scheduled_ns + round(lag_ms * 1e6))
    plan = LoadPlan(rate_per_s=100.0, duration_s=10.0, seed=0)
    client = ClientUse(cpu_share=0.1, cpu_s=1.0, bytes_sent=1, bytes_received=1, connections_opened=1)
    run = LoadRun(log=log, measurement=measurement_of(log, plan, client=client), stopped=None)
    found = audited_run(run, SLO, neighbours(disturbed_s, of_s=10.0), 8.0)
    assert found["answer"] == answer
    assert found["requests"] == 800
    assert bool(found["problems"]) is (lag_ms > 1)
    assert bool(found["neighbours"]) is (disturbed_s > 0)
