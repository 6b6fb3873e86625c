"""Errors of serving: failures of the server or its repository, each with advice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version

_REASON = re.compile(
    r"^(?:.*Model '([^']+)' loading failed)?(?:.*UNAVAILABLE state: )?(?:Internal: |Invalid argument: )?"
    r"(.*?)(?:\n+At:\n.*)?;?\s*$",
    re.DOTALL,
)


AFTER_DEATH = "See its last log lines; a single request from elsewhere can end Triton, too."


class ServerError(Exception):
    """Base of all serving errors. The message has at most two lines: the event, then advice.

    `log_tail` holds the server's last log lines if they may explain the error, else "".
    """

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class LauncherMissing(ServerError):
    """The chosen kind of server is not installed here; the message gives the command that adds it."""


class PortInUse(ServerError):
    """Another process has taken a port that the user gave."""


class ServerStartFailed(ServerError):
    """The server ended, or did not become ready in time, before it served anything."""


class ServerDied(ServerError):
    """A server that was running no longer answers. `Server.restart` gives a fresh one."""


class ServerTimeout(ServerError):
    """The server accepted a request and gave no answer in time."""


class RequestRefused(ServerError):
    """The server is alive and refused a control request; `status` is its HTTP status."""

    def __init__(self, message: str, *, status: int, log_tail: str = "") -> None:
        super().__init__(message, log_tail=log_tail)
        self.status = status


class BadServer(ServerError):
    """What a server answers, or what others do to its models, is not as a run needs it."""


class CredentialsRefused(RequestRefused):
    """The server, or a proxy in front of it, refused a request for its credentials: HTTP status 401 or 403."""


class ModelLoadFailed(ServerError):
    """A model could not be loaded. `reason` is the message of the server or the runtime, on one line."""

    def __init__(self, model_name: str, reason: str, *, log_tail: str = "") -> None:
        super().__init__(
            f"{model_name} does not load: {reason}\nThe server's log has the details; a model that runs in "
            "ONNX Runtime without Triton should load here.",
            log_tail=log_tail,
        )
        self.model_name = model_name
        self.reason = reason


class NotAsSent(ServerError):
    """A model is served with another configuration than the one that its server was sent."""

    def __init__(self, model_name: str, differences: Sequence[str]) -> None:
        super().__init__(
            f"{model_name} is not served as it was sent: {'; '.join(differences)}.\n"
            "The server ignores these fields or sets them itself: leave them as it has them, or change the server."
        )


class ModelCrashed(ServerError):
    """The process that executes a model died in service; the server is alive. `why`: the cause, if known."""

    def __init__(self, model_name: str, *, why: str = "", log_tail: str = "") -> None:
        super().__init__(
            f"The process that executes {model_name} died while it was being served.\n"
            f"{why or 'See the last log lines; too little memory is the usual cause.'}",
            log_tail=log_tail,
        )
        self.model_name = model_name


class RepositoryWriteFailed(ServerError):
    """A model repository could not be written: a full or read-only disk, or a missing engine file."""


OF_THE_ENVIRONMENT = (RepositoryWriteFailed, ServerDied, ServerStartFailed, ServerTimeout, BadServer)
"""What no other input of the user would change."""


def reason_of(refusal: str) -> str:
    """Return the model's own error message, or the fate of its process, on one line without Triton's wrapping.

    That of an ensemble's member begins with the member's name.
    """
    found = _REASON.search(refusal)
    member, words = found.groups() if found else (None, refusal)
    reason = " ".join(words.split())
    if reason.startswith("Stub process"):
        reason = f"its process died while it loaded ({reason.rstrip('.')})"
    return f"{member}: {reason}" if member else reason


def install_command(extra: str) -> str:
    """Return the command that adds one of tritune's extras. It needs a checkout: no package index has tritune.

    On an installation for a CPU it names what the extra adds, as tritune itself would bring the GPU's libraries.
    """
    what = [f".[{extra}]"]
    if installed_version("onnxruntime") and not installed_version("onnxruntime-gpu"):
        marked = [text.partition(";") for text in requires("tritune") or ()]
        own = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
        what = [requirement.strip() for requirement, _, marker in marked if own.search(marker)] or what
    return f"pip install -c constraints.txt {' '.join(map(repr, what))} (in tritune's checkout)"


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
