"""A load process as its parent sees it."""

from __future__ import annotations

import tempfile
import time

from loadgen import errors
from loadgen.measurement.other_runs import LOAD_PROCESS
from loadgen.processes import LONGEST_S, Silence, runs
from loadgen.sending.messages import Message, start_child

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
