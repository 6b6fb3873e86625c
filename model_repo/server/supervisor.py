"""The small parent process of a server; nothing of the server outlives the process that asked for it.

Run as a script, `python -I -S supervisor.py SPEC`, in a session of its own; imports only the standard library.
SPEC is a JSON object: `command`, `grace_s` (SIGTERM to SIGKILL), `shm_prefix` (files under /dev/shm to remove),
`cleanup_command` (run at the end, may be empty).

Prints the server's pid on standard output; all that the server prints goes to standard error. Then it waits until
the server ends, until a byte or the end of standard input asks it to stop, or until the process that started it is
gone, even by SIGKILL. It is the subreaper of all processes that the server starts, so that no orphan escapes, and
it exits with the server's return code.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PARENT_POLL_MS = 250
"""Interval at which it checks that the parent lives; the other events wake the supervisor at once."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(spec: dict[str, Any]) -> int:
    """Run the server of `spec` to its end, and return its return code (negative: the signal that ended it)."""
    parent = os.getppid()
    _hold_lock(spec["shm_prefix"])
    remove_leftovers()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The read end wakes up poll() when a child ends.
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        server = _start(spec["command"])
    except OSError as error:
        print(f"error: {error.strerror}: {spec['command'][0]}", flush=True)  # noqa: T201 - read by our parent
        _clean_up(spec)
        return 127
    try:
        print(server.pid, flush=True)  # noqa: T201
        _wait(server, parent, wake_read)
    finally:
        _end(server, spec["grace_s"])
        _clean_up(spec)
    return server.returncode


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the server in a process group of its own. It dies with the supervisor, even if that is killed."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        process_group=0,
        # Safe here: the supervisor has one thread.
        preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
    )


def _wait(server: subprocess.Popen[bytes], parent: int, wake_read: int) -> None:
    events = select.poll()
    events.register(0, select.POLLIN | select.POLLHUP)
    events.register(wake_read, select.POLLIN)
    while server.poll() is None and os.getppid() == parent:
        ready = [number for number, _ in events.poll(PARENT_POLL_MS)]
        if 0 in ready:
            return
        if wake_read in ready:
            os.read(wake_read, 4096)


def _end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """Stop the server, then all that it left: its process group, and orphans that came to us."""
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended == 0:
            for orphan in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.005)


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except FileNotFoundError:  # a kernel that does not list children: the process group has been ended already
        return []
    return [int(pid) for pid in text.split()]


def _clean_up(spec: dict[str, Any]) -> None:
    remove_shared_memory(spec["shm_prefix"])
    with contextlib.suppress(OSError):
        _lock_of(spec["shm_prefix"]).unlink()
    if spec["cleanup_command"]:
        subprocess.run(
            spec["cleanup_command"], stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=30, check=False
        )


def _lock_of(prefix: str) -> Path:
    return Path(f"/dev/shm/.{prefix}.supervisor")  # noqa: S108 - next to the shared memory


def _hold_lock(prefix: str) -> None:
    """Hold a lock until this process ends, by whatever cause; the file has content once the lock is held."""
    if not prefix:
        return
    with contextlib.suppress(OSError):
        lock = os.open(_lock_of(prefix), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, b"held")


def remove_leftovers() -> None:
    """Remove the shared memory of this user's servers whose supervisors were killed: their locks are free."""
    for path in Path("/dev/shm").glob(".tritune-*.supervisor"):  # noqa: S108 - next to the shared memory
        prefix = path.name[1:].removesuffix(".supervisor")
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                ours = os.fstat(lock).st_uid == os.geteuid() and os.read(lock, 1) != b""
                if ours and re.fullmatch(r"tritune-[0-9a-f]{12}", prefix):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_shared_memory(prefix)
                    path.unlink()
            finally:
                os.close(lock)


def remove_shared_memory(prefix: str) -> None:
    """Remove all of this user's files and folders under /dev/shm whose names begin with `prefix`; none for ""."""
    for path in Path("/dev/shm").glob(f"{prefix}*") if prefix else ():  # noqa: S108 - shared memory of this server
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # another user may have made it, as a trap for us
                path.unlink()


def _exit_on_signal(number: int, _frame: object) -> None:
    # The clean-up runs in main's `finally`; further signals must not interrupt it.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])) % 256)
