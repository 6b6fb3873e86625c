from dataclasses import replace

import numpy as np
import pytest

from loadgen.measurement.request_log import RequestLog
from loadgen.records.curves import curve_of, phases_of, timeline_of
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import Arrivals, LoadPlan

TIMEOUT_NS = 10_000_000_000


def log_of(due_s: list[float], latency_ms: list[float], failed: tuple[int, ...] = ()) -> RequestLog:
    scheduled = np.rint(np.array(due_s) * 1e9).astype(np.int64)
    outcome = np.zeros(len(due_s), np.uint8)
    outcome[list(failed)] = 1
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled,
        done_ns=scheduled + np.rint(np.array(latency_ms) * 1e6).astype(np.int64),
        outcome=outcome,
    )


def test_the_curve_goes_from_the_fastest_to_the_slowest_request() -> None:
    log = log_of([0.001 * n for n in range(1000)], [float(n + 1) for n in range(1000)])
    curve = curve_of(log, TIMEOUT_NS)
    assert (curve.latency_ms[0], curve.latency_ms[-1]) == (1.0, 1000.0)
    assert list(curve.latency_ms) == sorted(curve.latency_ms)
    for share, latency in zip(curve.quantile, curve.latency_ms, strict=True):
        assert latency == pytest.approx(max(1, np.ceil(share * 1000 - 1e-6)), abs=1)


def test_a_failed_request_counts_at_the_timeout() -> None:
    log = log_of([0.0, 0.5], [1.0, 2.0], failed=(0,))
    curve = curve_of(log, TIMEOUT_NS)
    line = timeline_of(log, TIMEOUT_NS, 1.0)
    assert curve.latency_ms[-1] == 10_000.0
    assert max(value for value in line.max_ms if value is not None) == 10_000.0
    assert sum(line.failures) == 1


def test_the_timeline_holds_every_request_once_and_marks_what_is_empty() -> None:
    due = [0.01 * n for n in range(400)] + [8.0 + 0.01 * n for n in range(200)]
    line = timeline_of(log_of(due, [5.0] * 600), TIMEOUT_NS, 10.0)
    assert sum(rate * line.bin_s for rate in line.due_per_s) == pytest.approx(600)
    empty = [start for start, p50 in zip(line.start_s, line.p50_ms, strict=True) if p50 is None]
    assert empty
    assert all(3.9 < start < 8.0 for start in empty)


def test_each_bin_has_its_own_percentiles() -> None:
    """Two bins of 200 requests, of 1, 2, ... 200 ms and ten times that, in any order."""
    due = [0.005 * n for n in range(400)]
    latency = [float(1 + n * 37 % 200) for n in range(200)]
    log = log_of(due, latency + [10 * each for each in latency])
    line = timeline_of(log, TIMEOUT_NS, 2.0)
    assert line.bin_s == 0.2
    first, last = ([latency[40 * bin_ + at] for at in range(40)] for bin_ in (0, 4))
    for found, of_bin in ((0, first), (4, last)):
        assert line.p50_ms[found] == sorted(of_bin)[19]
        assert line.p99_ms[found] == line.max_ms[found] == max(of_bin)
    assert line.due_per_s == pytest.approx((200.0,) * 10)
    limited = timeline_of(log, TIMEOUT_NS, 2.0, LatencyLimit(limit_ms=100.0))
    in_time = sum(each <= 100 for each in latency), sum(10 * each <= 100 for each in latency)
    halves = sum(limited.good_per_s[:5]) * 0.2, sum(limited.good_per_s[5:]) * 0.2
    assert halves == pytest.approx(in_time)
    assert line.good_per_s == ()


def test_nothing_sent_gives_no_figures() -> None:
    assert curve_of(log_of([], []), TIMEOUT_NS) is None
    assert timeline_of(log_of([], []), TIMEOUT_NS, 1.0) is None


def spike() -> LoadPlan:
    return LoadPlan(
        rate_per_s=100.0,
        duration_s=10.0,
        seed=1,
        arrivals=Arrivals(kind="spike", levels=(2.0,), start=0.2, end=0.5),
    )


def test_each_phase_of_a_spike_says_what_was_in_time_and_from_when_on_the_limit_was_kept() -> None:
    """100/s in time for 2 s, 200/s of which half are late and some refused, 100/s late until 6.5 s."""
    due = [0.01 * n for n in range(200)] + [2 + 0.005 * n for n in range(600)] + [5 + 0.01 * n for n in range(500)]
    latency = [5.0] * 200 + [5.0, 80.0] * 300 + [80.0] * 150 + [5.0] * 350
    refused = tuple(range(200, 260, 2))
    before, during, after = phases_of(log_of(due, latency, refused), spike(), LatencyLimit(limit_ms=50.0))
    assert [(one.start_s, one.end_s) for one in (before, during, after)] == [(0, 2), (2, 5), (5, 10)]
    assert (before.good_per_s, before.kept_after_s, before.p99_ms) == (pytest.approx(100.0), 0.0, 5.0)
    assert (during.due_per_s, during.good_per_s) == (pytest.approx(200.0), pytest.approx(90.0))
    assert (during.failures, during.kept_after_s, during.p99_ms) == (30, None, 80.0)
    assert after.good_per_s == pytest.approx(70.0)
    assert after.kept_after_s == pytest.approx(1.5, abs=0.05)  # 1 % of what is left may be late


def test_only_a_load_that_changes_by_steps_has_phases() -> None:
    log = log_of([0.01 * n for n in range(1000)], [5.0] * 1000)
    plan = spike()
    assert phases_of(log, replace(plan, arrivals=Arrivals()), None) == ()
    steps = phases_of(log, replace(plan, arrivals=Arrivals(kind="steps", levels=(1.0, 1.0))), None)
    assert [(one.end_s, one.good_per_s, one.kept_after_s) for one in steps] == [
        (5.0, None, None),
        (10.0, None, None),
    ]


def test_a_phase_that_was_not_reached_is_left_out() -> None:
    stopped = log_of([0.01 * n for n in range(300)], [5.0] * 300)
    assert [one.start_s for one in phases_of(stopped, spike(), None)] == [0.0, 2.0]
