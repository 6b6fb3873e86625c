"""End child processes with their parent, notice silent ones, and remove temporary folders."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill us when the parent's thread that started us ends, even by SIGKILL; at once if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


LONGEST_S = 5.0
_MAX_PER_LOOK_S = 1.0


class Silence:
    """Adds up the time in which a process did not run, check after check.

    A check counts for one second at most: if the checking process was stopped too, as by Ctrl-Z or a paused
    virtual machine, that is not the other's silence.
    """

    def __init__(self, runs: Callable[[], bool], now_s: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._now_s = now_s
        self._last_s = now_s()
        self._silent_s = 0.0

    def too_long(self) -> bool:
        """Check, at least once per second; True if the process has not run for 5 s."""
        now_s = self._now_s()
        since_s, self._last_s = now_s - self._last_s, now_s
        self._silent_s = 0.0 if self._runs() else self._silent_s + min(since_s, _MAX_PER_LOOK_S)
        return self._silent_s >= LONGEST_S


def runs(pid: int) -> bool:
    """False if the process has been stopped, by SIGSTOP or by a debugger; True if unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] not in ("T", "t")


NAME = "tritune-"
MARKER = ".tritune-scratch"
MAGIC = b"tritune scratch folder; removed by the next run once its process has ended. Process: "


@contextmanager
def scratch_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder that belongs to this process; the end of the block removes it with its contents.

    It lies in `within`, hidden, or else among the temporary files. Its owner holds a lock on a marker in it; the
    kernel frees the lock however the process ends. `remove_leftovers` runs first. Raises OSError.
    """
    parent = Path(tempfile.gettempdir()) if within is None else within
    _remove_leftovers_once(parent)
    prefix = f"{'' if within is None else '.'}{NAME}{purpose}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (folder / MARKER).open("xb") as marker:
            with contextlib.suppress(OSError):  # no locks here: then the folder never counts as a leftover
                fcntl.flock(marker, fcntl.LOCK_EX)
                marker.write(MAGIC + f"{os.getpid()}\n".encode())  # after the lock: unlocked and marked means dead
                marker.flush()
            contents = folder / "files"
            contents.mkdir()
            yield contents
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch folders in `parent` whose processes have ended without doing so.

    Only folders of this user, with our name and our marker, whose lock is free. No link is followed.
    """
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.lstrip(".").startswith(NAME) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_dead(Path(entry.path))


_remove_leftovers_once = cache(remove_leftovers)
"""Leftovers are removed once per process and folder: a run makes many folders."""


def _remove_if_dead(folder: Path) -> None:
    """Remove the folder if it is this user's and its marker is ours. Raises BlockingIOError if that is held."""
    marker = folder / MARKER
    file = marker.lstat()
    if {folder.lstat().st_uid, file.st_uid} != {os.geteuid()} or not stat.S_ISREG(file.st_mode):
        return
    with marker.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if held.read(len(MAGIC)) == MAGIC:
            shutil.rmtree(folder, ignore_errors=True)
