"""Child processes that send load or show it, as their parent sees them, and the channel to them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from pydantic import TypeAdapter

from loadgen import errors
from loadgen.measurement.other_runs import LOAD_PROCESS
from loadgen.processes import LONGEST_S, Silence, die_with_parent, runs
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target

Message = dict[str, Any]
_LENGTH_BYTES = 4

TARGET, PAYLOAD = TypeAdapter(Target), TypeAdapter(Payload)
"""Turn them into parts of a message, and back. That of a target has its secrets: for sockets, never for a file."""


class Channel:
    """One end of a socket pair. Messages arrive whole and in order; a closed other end is EOFError.

    In a process of Locust, whose sockets are gevent's, others run while it waits.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)  # the host program may have set a default time-out, or a parent has gevent's sockets
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)

    def send(self, message: Message, fd: int | None = None) -> None:
        """Send a message, and a file descriptor with it. Raises OSError if the other end is closed."""
        data = json.dumps(message).encode()
        framed = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        sent = socket.send_fds(self._socket, [framed], [] if fd is None else [fd])
        while sent < len(framed):
            sent += self._socket.send(framed[sent:])

    def waits(self, timeout_s: float) -> bool:
        """True if a message, or the end, is there within so many seconds."""
        return bool(self._poll.poll(timeout_s * 1e3))

    def receive(self) -> tuple[Message, int | None]:
        """Return the next message and the file descriptor that came with it. Blocks."""
        head, fds, _, _ = socket.recv_fds(self._socket, _LENGTH_BYTES, 1)
        if not head:
            raise EOFError
        head += self._exactly(_LENGTH_BYTES - len(head))
        message: Message = json.loads(self._exactly(int.from_bytes(head, "big")))
        return message, fds[0] if fds else None

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Close this end; the other one reads EOFError."""
        self._socket.close()


def start_child(
    module: str, *words: str, stderr: IO[bytes] | int = subprocess.DEVNULL
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start `python -m MODULE OUR_PID WORDS`; return it, and a channel to it whose other end is its stdin."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid()), *words],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    return process, Channel(ours)


def channel_to_parent() -> Channel:
    """Return the other end, in the child. It ends with its parent, which alone decides about Ctrl-C."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Channel(socket.socket(fileno=os.dup(0)))


PATIENCE_S = 120.0  # a process that needs longer for the work of a second does not come back
_STDERR_LINES = 12
_LOOK_PERIOD_S = 0.5


class LoadProcess:
    """A process of `loadgen.sending.worker` and the channel to it, from construction to `close`."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process, self._channel = start_child(LOAD_PROCESS, stderr=self._stderr)
        self._silence = Silence(lambda: runs(self.pid))

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
        """Return the next message. Raises WorkerDied, also if the process is stopped or is late."""
        deadline = time.monotonic() + within_s
        while not self.waits(min(_LOOK_PERIOD_S, max(0.0, deadline - time.monotonic()))):
            self.check()
            if time.monotonic() >= deadline:
                self._process.kill()
                raise errors.WorkerDied(
                    f"the load process {self.pid} gave no answer in time, and was ended.\n"
                    "Stop other programs on this machine, and start again."
                )
        try:
            message, _ = self._channel.receive()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        return message

    def check(self) -> None:
        """Check that it runs; call at least once per second. Raises WorkerDied if it has been stopped for 5 s."""
        if self._silence.too_long():
            self._process.kill()
            raise errors.WorkerDied(
                f"the load process {self.pid} has been stopped for {LONGEST_S:g} s, and was ended: SIGSTOP, or a "
                "debugger.\nNothing is known about the server; start again, and let the load processes run."
            )

    def waits(self, timeout_s: float) -> bool:
        """True if a message, or the end of the process, can be received within so many seconds."""
        return self._channel.waits(timeout_s)

    def close(self) -> None:
        """Kill the process."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._stderr.close()

    def _death(self) -> errors.WorkerDied:
        code = self._process.wait(timeout=10)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()[-_STDERR_LINES:]
        stderr = "\n".join(lines) or "It wrote nothing to stderr."
        return errors.WorkerDied(f"a load process ended with exit code {code}. Its last words:\n{stderr}")


def error_from(name: str, text: str) -> errors.LoadError:
    """Return the error that a worker reports, of the class of that name."""
    found = getattr(errors, name, errors.LoadError)
    kind = found if isinstance(found, type) and issubclass(found, errors.LoadError) else errors.LoadError
    return kind(text)
