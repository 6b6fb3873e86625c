"""A load process as its parent sees it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile

from loadgen import errors
from loadgen.messages import Channel, Message

PATIENCE_S = 120.0  # for what takes a second: a process that needs longer will not come back
_STDERR_LINES = 12


class LoadProcess:
    """`python -m loadgen.worker` and the channel to it, from construction to `close`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "loadgen.worker", str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: Message, fd: int | None = None) -> None:
        """Send a message. Raises WorkerDied."""
        try:
            self._channel.send(message, fd)
        except OSError as error:
            raise self._death() from error

    def receive(self, within_s: float = PATIENCE_S) -> Message:
        """The next message. Raises WorkerDied, also for a process that says nothing for `within_s`."""
        if not self.waits(within_s):
            self._process.kill()
        try:
            message, _ = self._channel.receive()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        return message

    def waits(self, timeout_s: float) -> bool:
        """Whether a message, or its death, can be received within so many seconds."""
        return self._channel.waits(timeout_s)

    def close(self) -> None:
        """End it, at once."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._stderr.close()

    def _death(self) -> errors.WorkerDied:
        code = self._process.wait(timeout=10)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()[-_STDERR_LINES:]
        said = "\n".join(lines) or "It wrote nothing to stderr."
        return errors.WorkerDied(f"a load process ended with exit code {code}. Its last words:\n{said}")


def error_from(message: Message) -> errors.LoadError:
    """The error that a worker reports, as the same class as there."""
    found = getattr(errors, message["error"], errors.LoadError)
    kind = found if isinstance(found, type) and issubclass(found, errors.LoadError) else errors.LoadError
    return kind(message["text"])
