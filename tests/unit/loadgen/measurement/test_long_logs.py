"""What is read a part at a time says the same as the whole log at once."""

import numpy as np
import pytest

from loadgen.measurement.chunked_times import PART
from loadgen.measurement.request_log import ClientUse, RequestLog, percentiles_ns
from loadgen.measurement.result import measurement_of
from loadgen.reports.csv_files import _failures
from loadgen.spec.plan import LoadPlan

CLIENT = ClientUse(cpu_share=0.1, cpu_s=4.0, bytes_sent=1, bytes_received=1, connections_opened=0)
CAP = 8


@pytest.fixture(scope="module")
def log() -> RequestLog:
    """Two parts and a bit; for a second around the first seam the cap holds requests back."""
    n, random = 2 * PART + 1000, np.random.default_rng(1)
    due_ns = np.cumsum(random.integers(0, 200_000, n))
    sent_ns = due_ns + random.integers(1000, 50_000, n)
    late = (due_ns > due_ns[PART] - 500_000_000) & (due_ns < due_ns[PART] + 500_000_000)
    sent_ns = np.where(late, sent_ns + 2_000_000, sent_ns)
    outcome = np.where(random.random(n) < 0.001, random.integers(1, 4, n), 0).astype(np.uint8)
    done_ns = sent_ns + random.integers(100_000, 2_000_000, n)
    return RequestLog(scheduled_ns=due_ns, sent_ns=sent_ns, done_ns=done_ns, outcome=outcome)


def test_send_lag_leaves_out_what_the_cap_held_back(log: RequestLog) -> None:
    left, ended = np.sort(log.sent_ns), np.sort(log.done_ns)
    in_flight = np.searchsorted(left, log.scheduled_ns) - np.searchsorted(ended, log.scheduled_ns)
    own_ns = log.send_lag_ns[in_flight < CAP]
    assert 0.1 * len(log) < len(own_ns) < 0.99 * len(log)
    plan = LoadPlan(rate_per_s=10_000, duration_s=210, seed=1, max_in_flight=CAP)
    seen = measurement_of(log, plan, client=CLIENT)
    expected = [ns / 1e6 for ns in percentiles_ns(own_ns, (0.5, 0.99))]
    assert [seen.send_lag_p50_ms, seen.send_lag_p99_ms] == expected


def test_failures_are_counted_in_all_parts(log: RequestLog) -> None:
    for kind, (count, first_ns, last_ns) in _failures(log).items():
        times_ns = log.done_ns[log.outcome == kind]
        assert (count, first_ns, last_ns) == (len(times_ns), times_ns.min(), times_ns.max())
    assert set(_failures(log)) == {1, 2, 3}
