"""One load test from several machines' worth of processes: the same load, and honest about losses."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_triton import fake_triton
from waiting import wait_until

from loadgen.arrivals import schedule
from loadgen.plan import LoadPlan
from loadgen.reports.record import LoadTestRecord

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-c", "from loadgen.cli import main; main()"]

TWO_RUNS = """
import json, os, sys
import locust
from loadgen.cluster_secret import cluster_secret
secret = cluster_secret("127.0.0.1", os.environ)
from loadgen.distributed import DistributedGenerator
from loadgen.plan import LoadPlan, Target
from loadgen.runner import LoadGenerator

url, port, seconds, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
target = Target(url=url, model_name="delay")
plan = LoadPlan(rate_per_s=rate, duration_s=seconds, seed=5)
looks = []
with DistributedGenerator(host="127.0.0.1", port=port, workers=2, secret=secret) as several:
    several.wait_for_workers(lambda: False)
    together = several.run(target, plan, watch=lambda log: bool(looks.append(len(log))))
with LoadGenerator() as one:
    alone = one.run(target, plan)
print(json.dumps({
    "scheduled_ns": together.log.scheduled_ns.tolist(),
    "together_ns": together.log.latency_ns.tolist(),
    "alone_ns": alone.log.latency_ns.tolist(),
    "problems": together.measurement.problems,
    "server_requests": together.measurement.server.requests,
    "looks": looks,
}))
"""


@pytest.fixture(autouse=True)
def a_user_without_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Master and workers make one when they first need it, here and not in the home of whoever runs this."""
    monkeypatch.delenv("TRITUNE_CLUSTER_SECRET", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def workers(port: int, *options: tuple[str, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """A worker for each tuple of options; they end with their master, and by force at the end of the block."""
    command = [*COMMAND, "--worker", "127.0.0.1", "--port", str(port)]
    started = [subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True) for more in options]
    try:
        yield started
        for process in started:
            process.wait(timeout=120)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def master(url: str, port: int, *options: str) -> list[str]:
    command = [*COMMAND, url, "--model", "delay", "--master", "--expect-workers", "2", "--bind", "127.0.0.1"]
    return [*command, "--port", str(port), "--json", *options]


def kolmogorov_smirnov(first_ns: np.ndarray, second_ns: np.ndarray) -> float:
    """The largest distance between the two empirical distribution functions of times, in steps of half a ms.

    Finer steps tell two halves of one run apart: a few microseconds of mood, thousands of times.
    """
    first, second = first_ns // 500_000, second_ns // 500_000
    values = np.sort(np.concatenate((first, second)))
    shares = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def test_two_workers_send_exactly_the_plan_and_see_what_one_process_sees() -> None:
    port = free_port()
    seconds, rate = 6.0, 300.0
    with fake_triton("--delay-ms", "2", "--one-at-a-time") as server, workers(port, (), ()):
        done = subprocess.run(
            [sys.executable, "-c", TWO_RUNS, server.url, str(port), str(seconds), str(rate)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    seen = json.loads(done.stdout)
    planned = schedule(LoadPlan(rate_per_s=rate, duration_s=seconds, seed=5))
    assert seen["scheduled_ns"] == planned.tolist()
    assert seen["server_requests"] == len(planned)
    assert seen["looks"] == sorted(seen["looks"])
    assert seen["looks"][-1] > 0.5 * len(planned)
    # A busy machine shifts latencies of 2 ms by a tenth between two runs, and one that stands still for half a
    # second makes a tenth of them wait; a lost half, or workers that do not know of each other's requests, would
    # be much further away.
    distance = kolmogorov_smirnov(np.array(seen["together_ns"]), np.array(seen["alone_ns"]))
    assert distance < 0.3
    assert min(seen["together_ns"]) >= 2e6


def test_a_worker_lost_in_mid_run_is_said_and_nothing_is_decided() -> None:
    port = free_port()
    options = ("--rate", "100", "--duration", "6s", "--p50", "250ms", "--warmup", "0s")
    with (
        fake_triton("--delay-ms", "2") as server,
        workers(port, (), ()) as (lost, _),
        subprocess.Popen(
            master(server.url, port, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        wait_until(lambda: server.document("/kept")["kept_ns"])
        time.sleep(1.5)
        lost.kill()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 98, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.outcome == "untrustworthy"
    assert "was lost" in " ".join(record.reasons)
    assert record.measurement is not None
    assert record.measurement.requests > 250  # all of the other worker's, and what the lost one had reported
    assert record.load.machines == 2


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_waits_is_there_and_one_that_is_stopped_is_not(stopped: bool) -> None:
    port = free_port()
    options = ("--rate", "1", "--duration", "2s", "--warmup", "0s", "--timeout", "60s", "--expect-workers", "1")
    with (
        fake_triton("--delay-ms", "12000") as server,
        workers(port, ()) as (worker,),
        subprocess.Popen(
            master(server.url, port, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert worker.stderr is not None
        assert "is connected" in worker.stderr.readline()
        if stopped:
            time.sleep(2)
            worker.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        out, err = process.communicate(timeout=120)
        took_s = time.monotonic() - began
        if stopped:
            worker.kill()
    if not stopped:
        record = LoadTestRecord.model_validate_json(out)
        assert record.measurement is not None, err
        assert not any("lost" in problem for problem in record.measurement.problems)
        return
    assert process.returncode == 98
    assert "stopped" in err
    assert took_s < 60  # the first request alone may take so long


def test_ctrl_c_at_the_master_keeps_the_result_and_ends_the_workers() -> None:
    port = free_port()
    with fake_triton("--delay-ms", "2") as server, workers(port, (), ()) as started:
        with subprocess.Popen(
            master(server.url, port, "--rate", "100", "--duration", "60s", "--warmup", "0s"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until(lambda: server.document("/kept")["kept_ns"])
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert LoadTestRecord.model_validate_json(out).measurement is not None
        for worker in started:
            assert worker.wait(timeout=120) == 0


COUNTED = """
import json, os, sys
import locust
from loadgen.cluster_secret import cluster_secret
secret = cluster_secret("127.0.0.1", os.environ)
from loadgen.distributed import DistributedGenerator
from loadgen.plan import LoadPlan, Target
from loadgen.tally import Tally

plan = LoadPlan(rate_per_s=300, duration_s=4.0, seed=6, timeout_s=1.0)
tally = Tally(timeout_s=1.0, limits_ms=[50.0], bin_s=1.0)
looks = []
with DistributedGenerator(host="127.0.0.1", port=int(sys.argv[2]), workers=2, secret=secret) as several:
    several.wait_for_workers(lambda: False)
    run = several.run(
        Target(url=sys.argv[1], model_name="delay"), plan, tally=tally,
        watch=lambda log: bool(looks.append(log.scheduled_ns.tolist())),
    )
print(json.dumps({
    "n": run.measurement.n, "server": run.measurement.server.requests, "problems": run.measurement.problems,
    "p50_ms": run.measurement.p50_ms, "looks": looks, "blocks": int(tally.blocks.counts(0).sum()),
}))
"""


def test_the_master_of_a_load_too_long_to_keep_counts_what_comes_and_drops_it() -> None:
    port = free_port()
    with fake_triton("--delay-ms", "3") as server, workers(port, (), ()):
        done = subprocess.run(
            [sys.executable, "-c", COUNTED, server.url, str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    seen = json.loads(done.stdout)
    planned = schedule(LoadPlan(rate_per_s=300, duration_s=4.0, seed=6)).tolist()
    assert seen["n"] == seen["server"] == len(planned)
    counted = [due for look in seen["looks"] for due in look]
    assert counted == planned[: len(counted)]  # the union of two workers, in the order of the plan
    assert len(counted) > 0.5 * len(planned)
    assert 3.0 <= seen["p50_ms"] < 6.0


def test_headers_do_not_travel_so_a_worker_without_them_refuses() -> None:
    port = free_port()
    environment = {**os.environ, "TOKEN": "s3cret"}
    with fake_triton() as server, workers(port, (), ()):
        done = subprocess.run(
            master(server.url, port, "--rate", "100", "--duration", "2s", "--header-env", "Authorization=TOKEN"),
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            check=False,
        )
    assert done.returncode == 2
    assert "--header-env" in done.stderr
    assert "s3cret" not in done.stderr


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            master("http://127.0.0.1:9", port, "--rate", "1"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert str(port) in done.stderr
