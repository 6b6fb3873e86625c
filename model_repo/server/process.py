"""A server process that cannot outlive its owner, and the kernel's count of out-of-memory kills."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_repo.errors import ServerStartFailed

if TYPE_CHECKING:
    import psutil


_COUNTERS = Path("/proc/vmstat")

WORDS = "The kernel has killed a process since: out of memory."


def count_memory_kills() -> int | None:
    """Return how many processes the kernel has killed for memory since boot; None if it has no such count."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", _COUNTERS.read_text(), re.MULTILINE):
            return int(found[1])
    return None


_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command that starts a server, and the clean-up after it.

    `folder` is the server's current directory, from which Triton's Python backend imports before anything else.
    `shm_prefix` begins the names of the shared memory that the server makes under /dev/shm ("": none).
    `cleanup_command` runs after the end, also after a crash (empty: none).
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    shm_prefix: str = ""
    cleanup_command: tuple[str, ...] = ()


class ServerProcess:
    """A running server. It starts with this object, and ends on `stop`, by itself, or if our process dies.

    It runs in a session of its own, under a small supervisor process: Ctrl-C in the terminal reaches us alone, and
    SIGKILL to us still ends it, its children and its shared memory. `pid` is the server's. Its output is appended
    to `log_file`. Raises ServerStartFailed if the program cannot be run at all.
    """

    def __init__(self, launch: Launch, log_file: Path, *, grace_s: float) -> None:
        spec = {
            "command": launch.command,
            "grace_s": grace_s,
            "shm_prefix": launch.shm_prefix,
            "cleanup_command": launch.cleanup_command,
        }
        with log_file.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(spec)],
                env=dict(launch.environment),
                cwd=launch.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        assert self._supervisor.stdout is not None
        answer = self._supervisor.stdout.readline().strip()
        if not answer.isdigit():
            self.stop()
            raise ServerStartFailed(
                f"{launch.command[0]} cannot be started: "
                f"{answer.removeprefix('error: ') or 'its supervisor ended'}.\n"
                "Run `optimize doctor` to see which servers can run here."
            )
        self.pid = int(answer)

    @property
    def returncode(self) -> int | None:
        """None while it runs; then its exit status, or 256 minus the number of the signal that ended it."""
        return self._supervisor.poll()

    @property
    def runs(self) -> bool:
        """True if the server's own process exists; its supervisor lives longer, to clean up."""
        import psutil

        try:
            status = psutil.Process(self.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} and self.returncode is None

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL after the grace. Return when nothing of it is left; may be repeated."""
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        if not self._supervisor.stdin.closed:
            with contextlib.suppress(OSError):
                self._supervisor.stdin.write("stop\n")
                self._supervisor.stdin.close()
        self._supervisor.wait()
        self._supervisor.stdout.close()

    def kill_children(self, command_part: str, *, timeout_s: float = 5.0) -> None:
        """Kill (SIGKILL) the server's children with `command_part` in their command line; wait for their end."""
        import psutil

        for child in self.children(command_part):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        deadline = time.monotonic() + timeout_s
        while self.children(command_part) and time.monotonic() < deadline:
            time.sleep(0.005)

    def memory_bytes(self) -> int:
        """Return the resident memory of the server and its children; shared pages count for each of them."""
        import psutil

        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.pid)
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total

    def children(self, command_part: str) -> list[psutil.Process]:
        """Return the living children of the server with `command_part` in their command line."""
        import psutil

        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                # A zombie, dead but not yet reaped by its parent, has an empty command line.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if command_part in " ".join(child.cmdline()):
                        found.append(child)
        return found
