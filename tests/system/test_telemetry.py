"""ONNX Runtime's telemetry, which queues paths and a device id in a thread of its own, is off in all we start."""

import os
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
    assert threads_of(model, first="import optimizer") == off
    assert call_in_child(partial(os.getenv, "ORT_DISABLE_TELEMETRY")) == "1"
