"""Long runs: one that does not fit into memory is refused before the load, and the times of others can be kept."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_triton import FakeTriton, fake_triton
from waiting import wait_until

from loadgen.records.record import LoadTestRecord

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-c", "from loadgen.cli import main; main()"]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeTriton]:
    with fake_triton("--delay-ms", "2") as running:
        yield running


def started(server: FakeTriton, folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [*COMMAND, server.url, "--model", "delay", "--timeout", "60s", "--max-send-lag", "30s", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def test_a_run_of_twelve_million_requests_is_reported_and_kept_when_it_is_stopped(
    server: FakeTriton, tmp_path: Path
) -> None:
    options = ("--rate", "2000", "--duration", "6000s", "--warmup", "0s", "--json", "--keep-log", "log")
    with started(server, tmp_path, *options) as process:
        wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 2000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    record = LoadTestRecord.model_validate_json(out)
    done_ns, scheduled_ns = (np.load(tmp_path / "log" / f"{name}.npy") for name in ("done_ns", "scheduled_ns"))
    assert len(done_ns) == record.measurement.requests > 2000
    assert record.measurement.latency_max_ms == ((done_ns - scheduled_ns) / 1e6).max()
