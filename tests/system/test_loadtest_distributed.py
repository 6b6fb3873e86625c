"""One load test from several machines' worth of processes: the same load, and honest about losses."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from clusters import LOADTEST, workers
from fake_triton import fake_triton
from machine import free_port
from waiting import wait_until

from loadgen.records.record import LoadTestRecord

pytestmark = [pytest.mark.system, pytest.mark.long]


@pytest.fixture(autouse=True)
def a_user_without_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Master and workers make one when they first need it, here and not in the home of whoever runs this."""
    monkeypatch.delenv("TRITUNE_CLUSTER_SECRET", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def master(url: str, port: int, *options: str) -> list[str]:
    command = [*LOADTEST, url, "--model", "delay", "--master", "--expect-workers", "2", "--bind", "127.0.0.1"]
    return [*command, "--port", str(port), "--json", *options]


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
        wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 150)
        lost.kill()
        out, err = process.communicate(timeout=240)
    assert process.returncode == 98, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.outcome == "untrustworthy"
    assert "was lost" in " ".join(record.reasons)
    assert record.measurement.requests > 250  # all of the other worker's, and what the lost one had reported
    assert record.load.machines == 2


def test_a_worker_that_is_stopped_before_the_load_is_said() -> None:
    port = free_port()
    options = ("--rate", "1", "--duration", "2s", "--warmup", "0s", "--timeout", "60s", "--expect-workers", "1")
    with (
        fake_triton("--delay-ms", "12000") as server,
        workers(port, ()) as (worker,),
        subprocess.Popen(
            master(server.url, port, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        wait_until(lambda: server.document("/kept")["arrived_ns"])
        worker.send_signal(signal.SIGSTOP)
        _, err = process.communicate(timeout=240)
        worker.kill()
    assert process.returncode == 98
    assert "stopped" in err


def test_ctrl_c_at_the_master_keeps_the_result_and_ends_the_workers() -> None:
    port = free_port()
    with fake_triton("--delay-ms", "2") as server, workers(port, (), ()) as started:
        with subprocess.Popen(
            master(server.url, port, "--rate", "100", "--duration", "60s", "--warmup", "0s"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 50)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)
        assert process.returncode == 130, err
        assert LoadTestRecord.model_validate_json(out).measurement is not None
        for worker in started:
            assert worker.wait(timeout=240) == 0


def test_input_data_of_many_frames_reaches_the_workers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((8_000, 256), np.float32))
    port = free_port()
    options = ("--rate", "50", "--duration", "2s", "--warmup", "0s", "--input-data", str(tmp_path / "x.npz"))
    with fake_triton() as server, workers(port, (), ()):
        done = subprocess.run(
            master(server.url, port, *options), capture_output=True, text=True, timeout=240, check=False
        )
        arrived = len(server.document("/kept")["kept_ns"]) - 2  # each worker tried one request
    record = LoadTestRecord.model_validate_json(done.stdout)
    assert record.measurement is not None, done.stderr
    assert record.measurement.requests == arrived > 50
    assert record.measurement.failures == 0


def test_headers_do_not_travel_so_a_worker_without_them_refuses() -> None:
    port = free_port()
    environment = {**os.environ, "TOKEN": "s3cret"}
    with fake_triton() as server, workers(port, (), ()):
        done = subprocess.run(
            master(server.url, port, "--rate", "100", "--duration", "2s", "--header-env", "Authorization=TOKEN"),
            capture_output=True,
            text=True,
            timeout=240,
            env=environment,
            check=False,
        )
    assert done.returncode == 2
    assert "--header-env" in done.stderr
    assert "s3cret" not in done.stderr
