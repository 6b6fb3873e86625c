"""What holds of every load on every machine: counts, schedules and sums, against the server's own count."""

import math
import os
import signal
import threading

import numpy as np
import pytest
from fake_triton import fake_triton
from noted_processes import noting

from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

pytestmark = pytest.mark.system

PLAN = LoadPlan(rate_per_s=300, duration_s=0.8, seed=2, timeout_s=200.0)


def assert_is_the_plan(run: LoadRun, plan: LoadPlan, *, arrived: int) -> None:
    """Each request of the schedule was sent once, counts from when it was due, and is in the figures."""
    log, seen = run.log, run.measurement
    assert log.scheduled_ns.tolist() == schedule(plan).tolist()
    assert seen.server is not None
    assert seen.n == seen.server.requests == arrived == len(log)
    assert (log.sent_ns >= log.scheduled_ns).all()
    assert (log.done_ns > log.sent_ns).all()
    assert np.array_equal(log.latency_ns, log.service_ns + log.send_lag_ns)
    ranked_ms = np.sort(log.latency_ns) / 1e6
    for share, reported_ms in ((0.5, seen.p50_ms), (0.9, seen.p90_ms), (0.99, seen.p99_ms), (1.0, seen.max_ms)):
        assert reported_ms == ranked_ms[math.ceil(share * len(log)) - 1]
    assert seen.mean_ms == pytest.approx(ranked_ms.mean())


def test_the_schedule_is_sent_once_and_the_servers_figures_are_those_of_the_window(
    generator: LoadGenerator,
) -> None:
    with fake_triton("--delay-ms", "3") as server:
        target, before = Target(url=server.url, model_name="delay"), 1  # the trial request
        for plan in (PLAN, LoadPlan(rate_per_s=100, duration_s=0.4, seed=8, timeout_s=200.0)):
            run = generator.run(target, plan)
            arrived = len(server.document("/kept")["kept_ns"]) - before
            assert_is_the_plan(run, plan, arrived=arrived)
            before += arrived + 1
            assert run.measurement.errors == {}
            assert run.log.service_ns.min() >= 3_000_000


def test_a_client_that_stalls_for_a_second_raises_p99_and_says_so() -> None:
    pids: list[int] = []
    plan = LoadPlan(rate_per_s=200, duration_s=2.0, seed=3, timeout_s=200.0)
    resumed: list[threading.Timer] = []

    def stall_once(_: RequestLog) -> bool:
        if not resumed:
            os.kill(pids[0], signal.SIGSTOP)
            resumed.append(threading.Timer(1.0, os.kill, (pids[0], signal.SIGCONT)))
            resumed[0].start()
        return False

    with LoadGenerator(1, noting(pids)) as generator, fake_triton("--delay-ms", "2") as server:
        run = generator.run(Target(url=server.url, model_name="delay"), plan, limit_ms=50.0, watch=stall_once)
        arrived = len(server.document("/kept")["kept_ns"]) - 1
    assert_is_the_plan(run, plan, arrived=arrived)
    assert run.measurement.p99_ms > 800  # at least: nothing leaves within that second
    assert run.measurement.send_lag_p99_ms > 800
    assert any("left late" in problem for problem in run.measurement.problems)
