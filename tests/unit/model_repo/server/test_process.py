"""Tests of server processes and their supervisor, with shell scripts in place of Triton."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_until

from model_repo.errors import ServerStartFailed
from model_repo.server.process import Launch, ServerProcess


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Yield a function that starts a shell script as the server; after the test every server is stopped."""
    started = []

    def start(script: Any, *, grace_s: float = 60.0, **launch: Any) -> ServerProcess:
        command = ("/bin/sh", "-c", script)
        process = ServerProcess(
            Launch(command=command, environment=os.environ, folder=tmp_path, **launch),
            tmp_path / "log",
            grace_s=grace_s,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.stop()


def gone(pid: Any) -> Any:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_output_is_appended_to_the_log(start: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    process = start("echo out; echo err >&2")
    wait_until(lambda: process.returncode is not None)
    assert (tmp_path / "log").read_text() == "before\nout\nerr\n"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 256 - 9)])
def test_the_end_is_told(start: Any, script: str, code: int) -> None:
    process = start(script)
    wait_until(lambda: process.returncode is not None)
    assert process.returncode == code


def test_a_running_server_has_no_return_code_and_a_stopped_one_has(start: Any) -> None:
    process = start("exec sleep 600")
    assert process.returncode is None
    assert not gone(process.pid)
    process.stop()
    process.stop()
    assert process.returncode == 256 - signal.SIGTERM
    assert gone(process.pid)


def test_a_server_that_has_died_does_not_run_however_late_its_supervisor_is(start: Any) -> None:
    process = start("sleep 600")
    supervisor = psutil.Process(process.pid).parent()
    assert process.runs
    supervisor.suspend()
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: gone(process.pid))
    assert not process.runs
    assert process.returncode is None
    supervisor.resume()
    process.stop()
    assert not process.runs


def test_who_ignores_sigterm_is_killed_after_the_grace(start: Any, tmp_path: Path) -> None:
    process = start("trap '' TERM; echo ready; while :; do sleep 0.01; done", grace_s=0.05)
    wait_until(lambda: "ready" in (tmp_path / "log").read_text())
    process.stop()
    assert process.returncode == 256 - signal.SIGKILL


def test_children_end_with_the_server_also_those_that_broke_away(start: Any, tmp_path: Path) -> None:
    """setsid takes a child out of the server's process group; it still belongs to the supervisor."""
    process = start("sleep 610 & setsid sleep 620 & echo ready; wait")
    wait_until(lambda: len(psutil.Process(process.pid).children()) == 2)
    children = psutil.Process(process.pid).children()
    process.stop()
    assert [child.pid for child in children if not gone(child.pid)] == []


def test_orphans_of_a_crashed_server_end_too(start: Any, tmp_path: Path) -> None:
    orphan = "setsid sh -c 'echo $$ > orphan; exec sleep 630'"
    process = start(f"{orphan} & while [ ! -s orphan ]; do sleep 0.01; done; kill -9 $$")
    wait_until(lambda: process.returncode is not None)
    assert gone(int((tmp_path / "orphan").read_text()))


def test_shared_memory_is_removed_also_after_a_kill(start: Any) -> None:
    prefix = f"tritune-test-{os.getpid()}"
    process = start(f"touch /dev/shm/{prefix}-a /dev/shm/{prefix}-b; exec sleep 600", shm_prefix=prefix)
    regions = [Path(f"/dev/shm/{prefix}-{letter}") for letter in "ab"]
    wait_until(lambda: all(region.exists() for region in regions))
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: process.returncode is not None)
    assert [region for region in regions if region.exists()] == []


def test_folders_in_shared_memory_go_too_and_those_of_others_do_not_stop_the_rest(
    start: Any, tmp_path: Path
) -> None:
    prefix = f"tritune-test-{os.getpid()}"
    shared, kept = Path("/dev/shm"), tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("precious")
    (shared / f"{prefix}-link").symlink_to(kept)
    (shared / f"{prefix}-folder" / "deep").mkdir(parents=True)
    start("exit 0", shm_prefix=prefix).stop()
    assert list(shared.glob(f"{prefix}*")) == []
    assert (kept / "file").read_text() == "precious"


def test_a_program_that_is_not_there_is_a_clear_error_and_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    prefix = f"tritune-test-{os.getpid()}"
    left = Path(f"/dev/shm/{prefix}-control")
    left.mkdir()
    launch = Launch(command=("/nowhere",), environment=os.environ, folder=tmp_path, shm_prefix=prefix)
    with pytest.raises(ServerStartFailed, match="No such file") as caught:
        ServerProcess(launch, tmp_path / "log", grace_s=1)
    assert len(str(caught.value).splitlines()) == 2
    assert not left.exists()


def test_the_clean_up_command_runs_at_the_end(start: Any, tmp_path: Path) -> None:
    process = start("exit 1", cleanup_command=("touch", str(tmp_path / "cleaned")))
    wait_until(lambda: process.returncode is not None)
    assert (tmp_path / "cleaned").exists()


def test_the_server_gets_the_environment_the_folder_and_no_standard_input(start: Any, tmp_path: Path) -> None:
    launch = Launch(
        command=("/bin/sh", "-c", "read line; echo $GREETING/$line; pwd"),
        environment={"GREETING": "hello"},
        folder=tmp_path,
    )
    process = ServerProcess(launch, tmp_path / "log", grace_s=1)
    wait_until(lambda: process.returncode is not None)
    process.stop()
    assert (tmp_path / "log").read_text() == f"hello/\n{tmp_path}\n"


def test_children_can_be_counted_and_killed_by_their_command(start: Any) -> None:
    process = start("sleep 640 & sleep 640 & sleep 650 & wait")
    # Between fork and exec a child still has the shell's command line.
    wait_until(lambda: [len(process.children(f"sleep {number}")) for number in (640, 650)] == [2, 1])
    process.kill_children("sleep 640")
    assert not process.children("sleep 640")
    wait_until(lambda: len(process.children("sleep 650")) == 1)  # processes are read while they change


def test_the_supervisor_stands_alone() -> None:
    """The supervisor must start fast and in any environment, so it imports only the standard library."""
    from model_repo.server import supervisor

    text = Path(supervisor.__file__).read_text()
    imported = {
        line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported - {"__future__"} <= set(sys.stdlib_module_names)
