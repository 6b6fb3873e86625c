import atexit
import errno
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from full_disk import files_of_at_most
from waiting import wait_until

from optimizer.child import (
    ChildCrashed,
    ChildFailed,
    ChildLimits,
    ChildRaised,
    ChildTimedOut,
    call_in_child,
    threads,
)
from optimizer.errors import ModelError
from optimizer.model.files import load_proto


def test_what_the_call_returns_comes_back() -> None:
    assert call_in_child(partial(divmod, 17, 5)) == (3, 2)


def test_an_error_of_ours_comes_back_as_it_is_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        call_in_child(partial(load_proto, tmp_path / "absent.onnx"))
    assert caught.type is ModelError
    assert (caught.value.what, caught.value.fix) == (
        f"The model {tmp_path / 'absent.onnx'} does not exist.",
        "Check the path.",
    )
    assert isinstance(caught.value.__cause__, ChildFailed)
    assert "Traceback" in caught.value.__cause__.trace


def test_an_error_of_the_system_is_kept() -> None:
    with pytest.raises(ChildRaised, match=r"^FileNotFoundError: ") as caught:
        call_in_child(partial(os.stat, "/absent"))
    assert isinstance(caught.value.error, FileNotFoundError)
    assert caught.value.error.filename == "/absent"


def test_a_result_for_which_there_is_no_room_is_an_error_of_the_system() -> None:
    with files_of_at_most(1000), pytest.raises(ChildRaised) as caught:
        call_in_child(partial(bytes, 10_000))
    assert isinstance(caught.value.error, OSError)
    assert caught.value.error.errno == errno.EFBIG


def test_any_other_error_is_kept_as_text() -> None:
    with pytest.raises(ChildRaised) as caught:
        call_in_child(partial(int, "seven"))
    assert caught.value.reason == "ValueError: invalid literal for int() with base 10: 'seven'"
    assert caught.value.error is None
    assert caught.value.trace.splitlines()[-1] == caught.value.reason


@pytest.mark.parametrize(
    ("end", "returncode", "how"),
    [
        (os.abort, -6, "SIGABRT"),
        (partial(signal.raise_signal, signal.SIGKILL), -9, "SIGKILL"),
        (partial(os._exit, 3), 3, "exit code 3"),
        (partial(os._exit, 0), 0, "exit code 0"),
        (partial(sys.exit, 4), 4, "exit code 4"),
    ],
)
def test_a_child_that_ends_without_an_outcome(end: Callable[[], Any], returncode: int, how: str) -> None:
    with pytest.raises(ChildCrashed) as caught:
        call_in_child(end)
    assert (caught.value.returncode, caught.value.reason) == (returncode, how)


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with pytest.raises(ChildTimedOut, match=r"no result within 0\.5 s"):
        call_in_child(partial(os.open, tmp_path / "never", os.O_RDONLY), timeout_s=0.5)


def test_the_limits_hold_in_the_child_alone() -> None:
    limits = ChildLimits(memory_bytes=1 << 30, cpu_s=7)
    assert call_in_child(partial(resource.getrlimit, resource.RLIMIT_DATA), limits=limits)[0] == 1 << 30
    assert call_in_child(partial(resource.getrlimit, resource.RLIMIT_CPU), limits=limits)[0] == 7
    ours = resource.getrlimit(resource.RLIMIT_DATA)
    assert call_in_child(partial(resource.getrlimit, resource.RLIMIT_DATA)) == ours


def test_the_child_has_a_session_of_its_own() -> None:
    assert call_in_child(partial(os.getsid, 0)) != os.getsid(0)


def test_temporary_files_of_a_child_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = call_in_child(tempfile.mkdtemp)
    assert Path(folder).is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_has_its_outcome_is_not_taken_apart(tmp_path: Path) -> None:
    """That would take a second for PyTorch."""
    assert call_in_child(partial(atexit.register, os.mkdir, tmp_path / "at-exit")) is os.mkdir
    assert not (tmp_path / "at-exit").exists()


def test_a_block_that_is_left_early_ends_the_children_of_its_threads(tmp_path: Path) -> None:
    started = tmp_path / "started"
    wait = partial(os.execvp, "sh", ["sh", "-c", f"touch {started}; exec sleep 600"])
    calls: list[Any] = []

    def interrupted() -> None:
        with threads(1) as pool:
            calls.extend(pool.submit(call_in_child, wait) for _ in range(2))
            wait_until(started.exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert isinstance(calls[0].exception(), ChildCrashed)
    assert calls[1].cancelled()


def test_a_call_that_tries_again_when_its_child_is_ended_ends_too(tmp_path: Path) -> None:
    started = tmp_path / "started"
    wait = partial(os.execvp, "sh", ["sh", "-c", f"touch {started}; exec sleep 600"])
    ends: list[int] = []

    def stubborn() -> None:
        for _ in range(2):
            with pytest.raises(ChildCrashed) as ended:
                call_in_child(wait)
            ends.append(ended.value.returncode)

    def interrupted() -> None:
        with threads(1) as pool:
            pool.submit(stubborn)
            wait_until(started.exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ends == [-signal.SIGKILL, -signal.SIGKILL]
