"""Load processes against a fake Triton: what goes right, and every way in which it may go wrong."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_triton import TLS_FOLDER, fake_triton
from noted_processes import noting
from waiting import wait_until

from loadgen.errors import TargetRefused, TargetUnreachable, WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

pytestmark = pytest.mark.system

PLAN = LoadPlan(rate_per_s=200, duration_s=0.5, seed=1, timeout_s=60.0)


def target(url: str, model: str = "delay") -> Target:
    return Target(url=url, model_name=model)


def most_in_flight(log: RequestLog) -> int:
    return max(int(((log.sent_ns <= at) & (log.done_ns > at)).sum()) for at in log.sent_ns)


def test_large_bodies_both_ways(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=50, duration_s=0.4, seed=3, timeout_s=60.0)
    with fake_triton("--size", "150000", "--output-numbers", "750000") as server:
        run = generator.run(target(server.url), plan)
    assert not run.log.failed.any()
    assert run.measurement.client.bytes_sent > 600_000 * len(run.log) > 0
    assert run.measurement.client.bytes_received > 3_000_000 * len(run.log)


FAILURES = {"error": "http 500", "close": "connection closed", "redirect": "http 302", "silent": "time-out"}


@pytest.mark.parametrize(("fault", "kind"), FAILURES.items())
def test_failures_are_counted_at_the_time_out_and_none_is_dropped(
    generator: LoadGenerator, fault: str, kind: str
) -> None:
    plan = replace(PLAN, timeout_s=1.0 if fault == "silent" else 60.0)
    with fake_triton("--fault", fault, "--good-first", "1") as server:
        run = generator.run(target(server.url), plan)
    assert run.measurement.errors == {kind: run.measurement.n} == {kind: len(schedule(plan))}
    assert run.measurement.p50_ms >= 1000 * plan.timeout_s
    assert run.measurement.error_example or fault == "silent"


def test_a_server_that_dies_in_mid_run_fails_the_rest(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=100, duration_s=1.5, seed=4, timeout_s=60.0)
    with fake_triton("--delay-ms", "20") as server:

        def kill_once_it_has_answered(log: RequestLog) -> bool:
            if len(log):
                server.process.kill()
            return False

        run = generator.run(target(server.url), plan, watch=kill_once_it_has_answered)
    assert len(run.log) == len(schedule(plan))
    assert 0 < run.log.failed.mean() < 1
    assert set(run.measurement.errors) <= {"connection closed", "no connection"}


def test_a_backlog_without_end_stops_the_run(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=300, duration_s=20, seed=5, timeout_s=60.0)
    with fake_triton("--delay-ms", "10", "--one-at-a-time") as server:  # 100 requests/s
        run = generator.run(target(server.url), plan, limit_ms=20.0)
    assert run.stopped == "overloaded"
    assert len(run.log) < 300 * 10
    assert not run.log.failed.any()  # what had left was waited for


def test_a_closed_loop_may_have_fewer_users_than_load_processes() -> None:
    with fake_triton("--delay-ms", "5") as server, LoadGenerator(processes=3) as generator:
        run = generator.run(target(server.url), ClosedLoopPlan(concurrency=1, duration_s=0.5))
    assert run.measurement.n > 2
    assert most_in_flight(run.log) == 1


def test_closed_loop_users_of_a_dead_server_do_not_spin(generator: LoadGenerator) -> None:
    with fake_triton("--fault", "close", "--good-first", "1") as server:
        run = generator.run(target(server.url), ClosedLoopPlan(concurrency=2, duration_s=0.5))
    assert run.log.failed.all()
    assert run.measurement.n < 2 * 0.5 / 0.010 + 4


def test_a_plan_in_which_nothing_is_due_says_so(generator: LoadGenerator) -> None:
    with fake_triton() as server:
        run = generator.run(target(server.url), LoadPlan(rate_per_s=1, duration_s=0.01, seed=1))
    assert run.measurement.n == 0
    assert "no request was due" in run.measurement.problems[0]


def test_several_processes_carry_out_one_schedule() -> None:
    plan = LoadPlan(rate_per_s=300, duration_s=0.6, seed=8)
    with LoadGenerator(2) as generator, fake_triton("--delay-ms", "3") as server:
        run = generator.run(target(server.url), plan)
        closed = generator.run(target(server.url), ClosedLoopPlan(concurrency=3, duration_s=0.8))
        with pytest.raises(TargetRefused):
            generator.run(target(server.url, "other"), plan)
        again = generator.run(target(server.url), plan)
    assert np.array_equal(run.log.scheduled_ns, schedule(plan))
    assert np.array_equal(again.log.scheduled_ns, schedule(plan))
    assert (run.log.sent_ns > 0).all()
    assert not run.log.failed.any()
    assert most_in_flight(closed.log) == 3
    assert (np.diff(closed.log.scheduled_ns) >= 0).all()


def test_tls_with_its_authority_without_and_insecure(generator: LoadGenerator) -> None:
    ca = TLS_FOLDER / "localhost-ca.pem"
    with fake_triton("--tls", "--size", "30000", scheme="https") as server:
        by_name = server.url.replace("127.0.0.1", "localhost")
        good = Target(url=by_name, model_name="delay", ca_cert=ca)
        assert not generator.run(good, PLAN).log.failed.any()
        with pytest.raises(TargetUnreachable, match=r"certificate of .* is not accepted"):
            generator.run(target(by_name), PLAN)
        with pytest.raises(TargetUnreachable, match=r"certificate of .* is not accepted: .*127\.0\.0\.1"):
            generator.run(Target(url=server.url, model_name="delay", ca_cert=ca), PLAN)
        careless = Target(url=server.url, model_name="delay", insecure=True)
        assert not generator.run(careless, PLAN).log.failed.any()


def test_a_load_process_that_dies_is_an_error_and_is_replaced() -> None:
    plan = LoadPlan(rate_per_s=100, duration_s=30, seed=9)
    pids: list[int] = []
    with LoadGenerator(1, noting(pids)) as generator, fake_triton() as server:
        [pid] = pids

        def kill_it(_: RequestLog) -> bool:
            os.kill(pid, signal.SIGKILL)
            return False

        with pytest.raises(WorkerDied, match="exit code -9"):
            generator.run(target(server.url), plan, watch=kill_it)
        assert len(set(pids)) == 2
        assert not generator.run(target(server.url), PLAN).log.failed.any()


@pytest.mark.parametrize("when", ["before the run", "during the run"])
def test_a_load_process_that_is_stopped_is_noticed_and_replaced(when: str) -> None:
    plan = LoadPlan(rate_per_s=100, duration_s=1000, seed=9)
    pids: list[int] = []
    with LoadGenerator(2, noting(pids)) as generator, fake_triton() as server:
        _, pid = pids
        if when == "before the run":
            os.kill(pid, signal.SIGSTOP)

        def stop_it(_: RequestLog) -> bool:
            os.kill(pid, signal.SIGSTOP)
            return False

        with pytest.raises(WorkerDied, match=rf"load process {pid} has been stopped"):
            generator.run(target(server.url), plan, watch=stop_it)
        assert pid not in pids[2:]
        assert not generator.run(target(server.url), PLAN).log.failed.any()


def test_an_interrupt_in_the_terminal_does_not_reach_the_load_process() -> None:
    pids: list[int] = []
    with LoadGenerator(1, noting(pids)) as generator, fake_triton() as server:
        generator.run(target(server.url), PLAN)
        os.kill(pids[0], signal.SIGINT)
        assert os.getsid(pids[0]) != os.getsid(0)
        generator.run(target(server.url), PLAN)
    assert len(pids) == 1


def test_load_processes_die_with_a_parent_that_is_killed() -> None:
    code = """
import time
from loadgen.sending.generator import LoadGenerator
from noted_processes import noting
pids = []
with LoadGenerator(2, noting(pids)):
    print(*pids, flush=True)
    time.sleep(600)
"""
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=paths) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    """Whether the process exists and is more than a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_neither_the_parent_nor_a_load_process_imports_locust_or_gevent() -> None:
    foreign = {"locust", "gevent", "grpc", "tritonclient"}
    ours = "loadgen.sending.generator, loadgen.sending.worker"
    code = f"import sys, {ours}; print(sorted({foreign} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
