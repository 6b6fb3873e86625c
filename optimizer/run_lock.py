"""A run's directory belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optimizer.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_FILE = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory against a second run. The kernel frees the lock of a process that ends, however it does.

    The file names the owner's process, for people. Raises BadInput where another one lives.
    """
    with (directory / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            raise BadInput(
                f"Another run is using {directory}{f' (process {owner})' if owner else ''}.",
                "Wait for it, or give another directory with --output.",
            ) from error
        except OSError as error:
            raise BadInput(
                f"{directory} cannot be locked: {error.strerror}.",
                "Give a directory on a local disk with --output.",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
