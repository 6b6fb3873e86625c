"""ONNX Runtime's telemetry, which queues paths and a device id in a thread of its own, is off in all we start.

It looks a host up, which a system call shows: no process of a run may do so, whatever its library.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from onnx_models import small_cnn

from optimizer.child import call_in_child

pytestmark = pytest.mark.system

SESSION = """
import os, sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(len(os.listdir("/proc/self/task")))
"""


def threads_of(model: Path, *, first: str = "", **variables: str) -> int:
    """Return the threads of a process that has loaded a model, after the statement `first`."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", first + SESSION, str(model)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_no_process_of_ours_has_the_thread_of_the_telemetry(tmp_path: Path) -> None:
    model = small_cnn(tmp_path / "cnn.onnx")
    off, on = (threads_of(model, ORT_DISABLE_TELEMETRY=value) for value in "10")
    if off == on:
        pytest.skip("this ONNX Runtime has no telemetry")
    command = "from optimizer.cli import run_command; run_command(['--no-such-option'])"
    assert threads_of(model, first=command) == off
    assert call_in_child(partial(os.getenv, "ORT_DISABLE_TELEMETRY")) == "1"


LOOKS_UP = "import socket\ntry: socket.getaddrinfo('telemetry.invalid', 443)\nexcept OSError: pass"


def foreign_connects(trace: Path, *command: str) -> list[str]:
    """Run a command; return the calls by which its processes connect beyond this machine, or to a resolver."""
    strace = ["strace", "-f", "-qq", "-e", "trace=connect", "-o", str(trace)]
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([*strace, *command], capture_output=True, text=True, env=environment, check=False)
    calls = [line for line in trace.read_text().splitlines() if "connect(" in line]
    if not calls:
        pytest.skip(f"strace shows no system calls here: {done.stderr}")
    here = re.compile(r"AF_UNIX|AF_UNSPEC|AF_NETLINK|inet_addr\(.127\.|.::1.")
    return [line for line in calls if not here.search(line) or "htons(53)" in line or "systemd.Resolve" in line]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_process_of_a_run_looks_a_host_up(tmp_path: Path) -> None:
    if not foreign_connects(tmp_path / "control", sys.executable, "-c", LOOKS_UP):
        pytest.skip("names are looked up here without a system call that shows it")
    command = [sys.executable, "-c", "from optimizer.cli import main; main()", "--despite-noise"]
    command += ["--model", str(small_cnn(tmp_path / "cnn.onnx")), "--p99", "50ms", "--time-budget", "10s"]
    assert foreign_connects(tmp_path / "run", *command, "--output", str(tmp_path / "out")) == []
    assert "successfully loaded" in (tmp_path / "out" / "server.log").read_text()
