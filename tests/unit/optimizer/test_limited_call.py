import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from bad_models import nested_functions
from waiting import wait_until

from optimizer.batching.kept import settled
from optimizer.child import ChildLimits, ChildRaised, call_limited
from optimizer.errors import UnsupportedModel

pytestmark = pytest.mark.slow

MODEL = Path("model.onnx")
LIMITS = ChildLimits(memory_bytes=2 << 30, cpu_s=60)
ENDS_S = 240.0


def limited(call: Callable[[], Any], limits: ChildLimits = LIMITS) -> Any:
    return call_limited(call, model=MODEL, limits=limits)


def test_any_other_error_names_the_model_and_keeps_its_traceback() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"model\.onnx cannot be prepared: ValueError: invalid lit"
    ) as caught:
        limited(partial(int, "seven"))
    assert isinstance(caught.value.__cause__, ChildRaised)
    assert "Traceback" in str(caught.value.__cause__)


def test_native_code_that_does_not_end_is_stopped() -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.onnx took more than 1 s of processor time"):
        limited(partial(pow, 3, 10**10), ChildLimits(memory_bytes=2 << 30, cpu_s=1))


def test_memory_beyond_the_limit_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"model\.onnx took more than 1\.0 GiB of memory"):
        limited(partial(bytes, 3 << 30), ChildLimits(memory_bytes=1 << 30, cpu_s=60))


@pytest.mark.parametrize(
    ("end", "how"),
    [(os.abort, "SIGABRT"), (partial(os._exit, 3), "exit code 3"), (partial(signal.raise_signal, 9), "killed")],
)
def test_a_crash_is_told(end: Any, how: str) -> None:
    with pytest.raises(UnsupportedModel, match=how):
        limited(end)


def test_functions_that_call_each_other_twice_are_given_up(tmp_path: Path) -> None:
    path = nested_functions(tmp_path / "m.onnx", depth=40)
    assert path.stat().st_size < 3000
    with pytest.raises(UnsupportedModel, match="took more than 2 s of processor time"):
        limited(partial(settled, path, {}, tmp_path), ChildLimits(memory_bytes=2 << 30, cpu_s=2))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_nothing_is_left_when_the_command_is_stopped_while_it_reads_a_model(tmp_path: Path, number: int) -> None:
    """Native code runs in the child; the signal comes as soon as it has started."""
    path = nested_functions(tmp_path / "m.onnx", depth=40)
    start = "from optimizer.cli import main; main()"
    words = ["--model", str(path), "--p99", "50ms", "--output", str(tmp_path / "run"), "--time-budget", "1m"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = subprocess.Popen(
        [sys.executable, "-P", "-c", start, *words], env=environment, stderr=subprocess.DEVNULL
    )
    child = busy_child(command.pid)
    command.send_signal(number)
    assert command.wait(ENDS_S) == (-9 if number == signal.SIGKILL else 130)
    psutil.wait_procs([child], timeout=ENDS_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    if number != signal.SIGKILL:
        assert list(tmp_path.glob("tritune-*")) == []


def busy_child(pid: int) -> psutil.Process:
    """Return the process's child, once it has used more than a second of CPU time."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
                if child.cpu_times().user > 1:
                    found.append(child)
        return bool(found)

    wait_until(is_there, most_s=ENDS_S)
    return found[0]
