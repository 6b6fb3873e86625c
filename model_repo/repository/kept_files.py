"""Read files in a folder that others may have changed: follow no link, wait for no pipe, trust no size."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path, PurePosixPath

MAX_BYTES = 256 * 2**20
"""Files of a run are far smaller; a larger one is refused before it is in memory."""

_INSIDE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_kept(folder: Path, name: str) -> BufferedReader:
    """Open the regular file `name`, a relative path with `/`, below `folder`.

    `folder` itself may be a link. Raises OSError for any other link on the path, for a name that leads out of
    `folder`, and for all but regular files: a pipe or a device would block or never end.
    """
    parts = _parts(folder, name)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = _opened(part, os.O_DIRECTORY, at, folder / name)
            os.close(at)
            at = inner
        handle = _opened(parts[-1], os.O_NONBLOCK, at, folder / name)  # a pipe opens at once, and is refused
    finally:
        os.close(at)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, what, str(folder / name))
    return os.fdopen(handle, "rb")


def read_kept(folder: Path, name: str, *, most_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file that `open_kept` opens. Raises OSError, also above `most_bytes`."""
    with open_kept(folder, name) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(folder / name))
    return data


def _parts(folder: Path, name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b"\0"
    if not parts or parts[0] == "/" or ".." in parts or b"\0" in encoded:
        raise OSError(errno.EINVAL, f"{name!r} is not the name of a file in it", str(folder))
    return parts


def _opened(part: str, flags: int, at: int, path: Path) -> int:
    try:
        return os.open(part, _INSIDE | flags, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, "a link on the way to it is not followed", str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error
