"""All errors of load runs and commands.

User errors are shown as two lines and end with an exit code; load and connection errors are converted to them.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from loadgen.exit_codes import CODES, Status

if TYPE_CHECKING:
    from pydantic import ValidationError


def unforeseen(error: Exception) -> UserError:
    """Convert an unexpected error: to one of the environment if the system reports it, else to a bug."""
    if isinstance(error, OSError) and error.errno is not None:
        return environment_failed(error)
    if isinstance(error, MemoryError):
        return EnvironmentFailed("There is not enough memory.", "Free some, and run the command again.")
    if "surrogates not allowed" in str(error):  # a UnicodeEncodeError, or pydantic's of one: our texts have none
        text = ascii(getattr(error, "object", str(error)))[:300]
        return BadInput(f"A name or a text is not UTF-8: {text}.", "Rename the file, or correct the text.")
    return Bug(
        f"This is a bug in tritune: {type(error).__name__}: {error}",
        "Please report it with the output of the same command with --debug.",
    )


class UserError(Exception):
    """Base of all errors shown as two lines without a traceback. `status` is how the command ends."""

    status: Status = "bad_input"
    result: Any = None
    """What there is in spite of it: what `tritune.loadtest` had measured, or the `Run` of `tritune.optimize`."""
    kept: str = ""
    """Where the work until the error is kept, and the command that goes on with it; printed after `fix`."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)  # both, so that it can be pickled
        self.what = what
        self.fix = fix

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return CODES[self.status]

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}"


class Bug(UserError):
    """An error in tritune itself."""

    status = "bug"


class ClientFailed(UserError):
    """The load could not be sent to its end, so nothing is known about the server."""

    status = "untrustworthy"


class BadInput(UserError):
    """An argument, a file or a combination of them cannot be used."""


class Interrupted(UserError):
    """The user or a scheduler stopped the command."""

    status = "interrupted"


class EnvironmentFailed(UserError):
    """The environment of the command failed: a disk, a server, a storage. Not its input, nor a bug."""

    status = "environment_failed"


_KEPT = "Finished work is saved, and optimize --resume goes on with a run."
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
    """Convert an error of the operating system: the problem, the file, and a remedy."""
    on = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    advice = _ADVICE.get(error.errno or 0, f"Mend that, and run the command again. {_KEPT}")
    return EnvironmentFailed(f"{on}{error.strerror or error}.", advice)


def first_problem(error: ValidationError) -> str:
    """Return the place of the first error and its message; only the message if the whole value is wrong."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


class LoadError(Exception):
    """The load could not be sent or planned. Base of all errors that loadgen raises on purpose."""


class PlanError(LoadError, ValueError):
    """The plan, the target or the payload contradicts itself or cannot be carried out by any client."""


class PayloadError(PlanError):
    """The given payload makes no request for this model: a free dimension, a wrong name, a wrong shape."""


class TargetUnreachable(LoadError):
    """Nothing answers at the target's address, or its certificate is not accepted."""


class TargetRefused(LoadError):
    """The server responded, but not with an inference: no such model, a wrong request, a redirect."""


class WorkerDied(LoadError):
    """A load process ended by itself; the message has its last lines on stderr."""


class MalformedAnswer(OSError):
    """The bytes are not a response of the protocol; the connection cannot continue."""


class ClosedEarly(OSError):
    """The server closed the connection before its response was complete."""
