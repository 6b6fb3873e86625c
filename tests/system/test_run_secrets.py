"""A run with a password in its storage's URL: no file, no output and no process beside it has the password."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from onnx_models import small_cnn
from postgresql import PASSWORD, postgresql

from optimizer.run.workers import COMMAND

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.long]
pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")

EASY = ("--p90", "200ms", "--confidence", "0.8", "--max-send-lag", "1s", "--despite-noise", "--time-budget", "30s")
TOKEN = "t0ken-of-the-test"


def holds_secret(data: bytes) -> bool:
    return PASSWORD.encode() in data or TOKEN.encode() in data


def told_by(process: Any) -> bytes:
    """What `ps` and /proc show of a process; nothing of one that has just ended."""
    try:
        return "\0".join([*process.cmdline(), *process.environ().values()]).encode()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return b""


def test_no_file_and_no_other_process_has_the_password(tmp_path: Path) -> None:
    model = small_cnn(tmp_path / "m.onnx")
    run_dir = tmp_path / "run"
    with postgresql() as cluster:
        url = f"{cluster.url}?application_name=tritune&options=-c%20search_path%3Dpublic%2C{TOKEN}"
        environment = {**os.environ, "TRITUNE_STORAGE": url, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [*COMMAND[:-1], "--model", str(model), *EASY, "--output", str(run_dir)]
        with (tmp_path / "out").open("wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        seen: dict[str, bytes] = {}
        try:
            while process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    seen[str(child.pid)] = seen.get(str(child.pid), b"") + told_by(child)
                assert not holds_secret("\0".join(psutil.Process(process.pid).cmdline()).encode())
                time.sleep(1.0)
        except psutil.NoSuchProcess:
            process.wait(timeout=240)
        finally:
            process.kill()
            process.wait()
    assert process.returncode in (0, 96, 98, 99), (tmp_path / "out").read_text()[-3000:]
    assert len(seen) >= 2, "a server and its model were started"
    assert not [pid for pid, told in seen.items() if holds_secret(told)]
    written = [path for path in (*run_dir.rglob("*"), tmp_path / "out") if path.is_file()]
    assert run_dir / "optimize.log" in written
    assert not [path for path in written if holds_secret(path.read_bytes())]


@pytest.mark.parametrize(
    "url",
    [
        "host=127.0.0.1 user=me password=t0ken-of-the-test",
        "postgresql:me:t0ken-of-the-test@127.0.0.1/db",
        "postgresql://me:t0ken-of-the-test@127.0.0.1:1/db",
        "postgresql://t0ken-of-the-test@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?password=t0ken-of-the-test",
        "postgresql://127.0.0.1:1/db?token=t0ken-of-the-test",
        "postgresql://me:x t0ken-of-the-test@127.0.0.1:1/db",
    ],
)
def test_odd_forms_are_told_without_it(tmp_path: Path, url: str) -> None:
    """By a worker, which opens the storage before anything else."""
    environment = {**os.environ, "TRITUNE_STORAGE": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*COMMAND, "--study", "m", "--output", str(tmp_path / "worker")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=240, check=False)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) <= 3, done.stderr.decode()
    assert not holds_secret(done.stdout + done.stderr)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and holds_secret(path.read_bytes())]
