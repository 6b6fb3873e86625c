"""Errors that a user can act on: what happened, and what to do about it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Base of all errors shown as two lines without a traceback. `exit_code` is the process's answer."""

    exit_code = 2

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n{fix}")
        self.what = what
        self.fix = fix


class BadInput(UserError):
    """An argument, a file or a combination of them cannot be used."""


class EnvironmentFailed(UserError):
    """What the command needs around it failed: a disk, a server, a storage. Not its input, nor a bug."""

    exit_code = 3


_KEPT = "What is finished is kept, and optimize --resume goes on with a run."
_ADVICE = {
    errno.ENOSPC: f"Free some space there. {_KEPT}",
    errno.EDQUOT: f"Free some of your quota there. {_KEPT}",
    errno.EROFS: f"Its file system is read-only; make it writable. {_KEPT}",
    errno.ENOENT: f"It was removed or renamed meanwhile; put it back. {_KEPT}",
    errno.ENOTDIR: f"It was replaced meanwhile; put it back. {_KEPT}",
    errno.ESTALE: f"Its file server has lost it; mount it again. {_KEPT}",
    errno.EACCES: f"Check its permissions. {_KEPT}",
    errno.EPERM: f"Check its permissions. {_KEPT}",
    errno.EIO: f"The disk or its file server fails; check it. {_KEPT}",
    errno.ELOOP: f"It is a link, which is not written through; put a file in its place. {_KEPT}",
    errno.EMFILE: "Raise the limit of open files (ulimit -n), and run the command again.",
    errno.ENFILE: "Close other programs: the machine has no more open files to give.",
    errno.ENOMEM: "Free some memory, and run the command again.",
}


def environment_failed(error: OSError) -> EnvironmentFailed:
    """What the operating system refused, on which file, and what to do about it."""
    on = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    advice = _ADVICE.get(error.errno or 0, f"Mend that, and run the command again. {_KEPT}")
    return EnvironmentFailed(f"{on}{error.strerror or error}.", advice)


def first_problem(error: ValidationError) -> str:
    """Where the first error is, and what is wrong there; only the latter where it is the whole."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
