"""A load from its plan to its figures in virtual time: the plan, what the servers saw and the figures agree."""

from typing import Any

import numpy as np
import pytest
from virtual_server import MS, VirtualProcess, VirtualServer

from loadgen.sending import generator as module
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.request_table import BYTES_PER_REQUEST
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target

N = 2000
PLAN = LoadPlan(rate_per_s=400.0, duration_s=5.0, seed=0, arrivals=Arrivals(kind="constant"))
DUE_NS = [2_500_000 * row for row in range(N)]
TAKES_NS = [MS + 10_000 * (row * 7919 % N) for row in range(N)]  # 1.00, 1.01, ... 20.99 ms, shuffled


@pytest.mark.parametrize("processes", [1, 3])
def test_each_request_is_sent_once_when_it_is_due_and_counts_with_its_time(processes: int) -> None:
    servers = [
        VirtualServer(lambda row, part=part: TAKES_NS[processes * row + part])  # type: ignore[misc]
        for part in range(processes)
    ]
    start: Any = map(VirtualProcess, servers).__next__
    with LoadGenerator(processes, start) as generator:
        target = Target(url="http://127.0.0.1:9", model_name="m")
        run = generator.run(target, PLAN, limit_ms=50.0)
    assert sorted(ns for server in servers for ns in server.arrived_ns) == DUE_NS
    log, seen = run.log, run.measurement
    assert log.scheduled_ns.tolist() == DUE_NS
    assert log.latency_ns.tolist() == TAKES_NS
    assert (seen.n, seen.errors) == (N, {})
    assert seen.achieved_rate_per_s == 400.0
    assert (seen.p50_ms, seen.p90_ms, seen.p95_ms, seen.p99_ms) == (10.99, 18.99, 19.99, 20.79)
    assert (seen.p999_ms, seen.max_ms, seen.send_lag_p99_ms) == (20.97, 20.99, 0.0)
    assert seen.figures["requests"] == N
    assert seen.figures["latency_p99_ms"] == 20.79
    assert np.count_nonzero(log.latency_ns > 20.79 * MS) == N // 100


def test_a_closed_loop_that_fills_the_memory_ends_early_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users, 0.5 ms an answer: 40 requests are sent long before the second is over."""
    monkeypatch.setattr(module, "memory_bytes", lambda kind: 38 * BYTES_PER_REQUEST)
    start: Any = map(VirtualProcess, [VirtualServer(lambda row: MS // 2)]).__next__
    with LoadGenerator(1, start) as generator:
        target = Target(url="http://127.0.0.1:9", model_name="m")
        run = generator.run(target, ClosedLoopPlan(concurrency=2, duration_s=1.0))
    assert len(run.log) == 40
    assert run.measurement.problems == (
        "the memory for times was full after 40 requests, and the load ended early",
    )
