"""Temporary folders that end with their process, and the removal of those whose process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "tritune-"
MARKER = ".tritune-scratch"
MAGIC = b"tritune scratch folder; removed by the next run once its process has ended. Process: "


@contextmanager
def scratch_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """An empty folder of this process alone until the block ends, then it is gone with all that is in it.

    It lies in `within`, hidden, or else among the temporary files. Its owner holds a lock on a marker in it, which
    the kernel frees however the process ends; see `remove_leftovers`, which runs first. Raises OSError.
    """
    parent = Path(tempfile.gettempdir()) if within is None else within
    _remove_leftovers_once(parent)
    prefix = f"{'' if within is None else '.'}{NAME}{purpose}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with (folder / MARKER).open("xb") as marker:
            with contextlib.suppress(OSError):  # no locks here: then it is never taken for a leftover
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

    Only folders of this user, with our name and our marker, whose lock nobody holds. No link is followed.
    """
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.lstrip(".").startswith(NAME) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_dead(Path(entry.path))


_remove_leftovers_once = cache(remove_leftovers)
"""A run asks for many folders, and looking once is enough."""


def _remove_if_dead(folder: Path) -> None:
    no_links = os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | no_links)
    try:
        marker = os.open(MARKER, os.O_RDWR | os.O_NONBLOCK | no_links, dir_fd=directory)
        try:
            if _is_dead(directory, marker):
                shutil.rmtree(".", dir_fd=directory, ignore_errors=True)  # whatever its name is by now
                folder.rmdir()
        finally:
            os.close(marker)
    finally:
        os.close(directory)


def _is_dead(directory: int, marker: int) -> bool:
    """True if both are this user's and the marker is ours and free. Raises BlockingIOError if it is held."""
    file = os.fstat(marker)
    if {os.fstat(directory).st_uid, file.st_uid} != {os.geteuid()} or not stat.S_ISREG(file.st_mode):
        return False
    fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return os.read(marker, len(MAGIC)) == MAGIC
