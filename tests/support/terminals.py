"""A command on a terminal of its own, a pty with a size, as a person would type it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

LOOK_EVERY_S = 0.05
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
DRAWN = "\x1b[2K"
"""A live display erases its line before it draws the next picture; plain lines never do that."""


class Terminal:
    """A command that is the foreground job of its own terminal, whose output is read all the time.

    The block ends it by force, so that a command that hangs is a failure and not a test that hangs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        term: str = "xterm-256color",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        echo: Callable[[str], object] = id,
    ) -> None:
        self._master, slave = pty.openpty()
        self._echo, self._chunks, self._closing = echo, list[str](), False
        self.resize(columns, rows)
        variables = {**os.environ, **(environment or {}), "TERM": term}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
            variables.pop(name, None)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C arrives
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.hang_up()

    @property
    def written(self) -> str:
        """All that was written to the terminal so far, with what controls it."""
        return "".join(self._chunks)

    @property
    def lines(self) -> list[str]:
        """What was written without what controls a terminal: a line, or a picture of a line, each."""
        return re.split(r"[\r\n]+", ESCAPES.sub("", self.written))

    @property
    def pictures(self) -> int:
        """How many pictures a live display has drawn over the one before."""
        return self.written.count(DRAWN)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, of which the terminal tells the command by SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press_ctrl_c(self) -> None:
        """Send what the key sends: the terminal makes a signal of it, to all processes of the job."""
        os.write(self._master, b"\x03")

    def hang_up(self) -> None:
        """Close the terminal: its job gets SIGHUP, and each write to it fails with EIO from now on."""
        if not self._closing:
            self._closing = True
            self._reader.join()
            os.close(self._master)

    def wait_for(self, seen: Callable[[], object], *, most_s: float = 240.0) -> None:
        """Return once it is so; fail if the command ends before, or if it takes too long."""
        deadline = time.monotonic() + most_s
        while not seen():
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self._last()}"
            assert time.monotonic() < deadline, f"waited {most_s:.0f} s in vain:\n{self._last()}"
            time.sleep(LOOK_EVERY_S)

    def end(self, *, most_s: float = 240.0) -> int:
        """Return the exit code; fail if the command hangs."""
        try:
            code = self.process.wait(most_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {most_s:.0f} s:\n{self._last()}") from None
        if not self._closing:
            self._reader.join()  # the end of what it wrote
        return code

    def _last(self) -> str:
        return repr(self.written[-3000:])

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two parts
        while not self._closing:
            if not select.select([self._master], [], [], LOOK_EVERY_S)[0]:
                continue
            try:
                read = os.read(self._master, 65536)
            except OSError:  # EIO: nothing holds the other end any more
                return
            if not read:
                return
            text = decoder.decode(read)
            self._chunks.append(text)
            self._echo(text)
