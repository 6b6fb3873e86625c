"""A server process that cannot outlive its owner, seen from the owner's side."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_repo.errors import ServerStartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psutil

_WARDEN = Path(__file__).with_name("warden.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start, and how to take it away again.

    `folder` is the server's current directory, from which Triton's Python backend imports before anything else.
    `shm_prefix` begins the names of the shared memory that the server makes under /dev/shm ("": none);
    `private_files` keeps what it writes, and its shared memory, from other users; it cannot raise its privileges
    then. `cleanup_command` runs after the end, whatever the end was (empty: none).
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    shm_prefix: str = ""
    private_files: bool = False
    cleanup_command: tuple[str, ...] = ()


class ServerProcess:
    """A running server: begins when this is made, ends on `stop`, or by itself when our process dies.

    It runs in a session of its own, under a small warden process, so that Ctrl-C in the terminal reaches only us,
    and SIGKILL to us still ends it, its children and its shared memory. `pid` is the server's. Its output is
    appended to `log_file`. Raises ServerStartFailed where the program cannot be run at all.
    """

    def __init__(self, launch: Launch, log_file: Path, *, grace_s: float) -> None:
        spec = {
            "command": launch.command,
            "grace_s": grace_s,
            "shm_prefix": launch.shm_prefix,
            "private_files": launch.private_files,
            "cleanup_command": launch.cleanup_command,
        }
        with log_file.open("ab") as log:
            self._warden = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WARDEN), json.dumps(spec)],
                env=dict(launch.environment),
                cwd=launch.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        assert self._warden.stdout is not None
        answer = self._warden.stdout.readline().strip()
        if not answer.isdigit():
            self.stop()
            raise ServerStartFailed(
                f"{launch.command[0]} cannot be started: {answer.removeprefix('error: ') or 'its warden ended'}.\n"
                "Run `optimize doctor` to see which servers can run here."
            )
        self.pid = int(answer)

    @property
    def returncode(self) -> int | None:
        """None while it runs; then its exit status, or 256 minus the number of the signal that ended it."""
        return self._warden.poll()

    @property
    def runs(self) -> bool:
        """Whether the server's own process is there; its warden outlives it while it removes what is left."""
        import psutil

        try:
            status = psutil.Process(self.pid).status()
        except psutil.NoSuchProcess:
            return False
        return status not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} and self.returncode is None

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL after the grace. Returns when nothing of it is left; may be repeated."""
        assert self._warden.stdin is not None
        assert self._warden.stdout is not None
        if not self._warden.stdin.closed:
            with contextlib.suppress(OSError):
                self._warden.stdin.write("stop\n")
                self._warden.stdin.close()
        self._warden.wait()
        self._warden.stdout.close()

    def count_children(self, command_part: str) -> int:
        """How many living children of the server have `command_part` in their command line."""
        return len(self._children(command_part))

    def kill_children(self, command_part: str, *, timeout_s: float = 5.0) -> None:
        """SIGKILL the server's children with `command_part` in their command line, and wait for their end."""
        for child in self._children(command_part):
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        deadline = time.monotonic() + timeout_s
        while self._children(command_part) and time.monotonic() < deadline:
            time.sleep(0.005)

    def memory_bytes(self) -> int:
        """Resident memory of the server and its children. What they share counts for each: never too little."""
        import psutil

        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.pid)
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total

    def _children(self, command_part: str) -> list[psutil.Process]:
        import psutil

        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                # A zombie, dead but not yet seen by its parent, has an empty command line.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if command_part in " ".join(child.cmdline()):
                        found.append(child)
        return found
