"""One question to a server outside the load, on a connection of its own, with one deadline over all of it."""

from __future__ import annotations

import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.http_answer import AnswerReader, ReadBuffer
from loadgen.poller import GIVE_WAY_NS, READ, WRITE, Poller, give_way
from loadgen.printable import printable
from loadgen.streams import address_of
from loadgen.wire_errors import MalformedAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadgen.plan import Target

PATIENCE_S = 10.0
MOST_BYTES = 16 << 20
"""The longest document that an answer may carry."""

_BUFFER_BYTES = 1 << 16


class Line:
    """An open connection and the time that is left for the question."""

    def __init__(self, target: Target, poller: Poller, patience_s: float) -> None:
        self._poller = poller
        self._patience_s = patience_s
        self._ends_ns = time.monotonic_ns() + round(patience_s * 1e9)
        self.stream = address_of(target).open()
        self._poller.add(self.stream.fileno(), WRITE)

    def connect(self) -> None:
        """Wait until data can be sent. Raises OSError, such as TimeoutError."""
        while not self.stream.connected():
            self.wait(self.stream.wants())

    def wait(self, events: int) -> None:
        """Until there is something to do, but not for long: other greenlets of this process go on. See `hurry`."""
        self._poller.change(self.stream.fileno(), events)
        self._poller.wait(min(GIVE_WAY_NS, self._ends_ns - time.monotonic_ns()))
        give_way()
        self.hurry()

    def hurry(self) -> None:
        """Raises TimeoutError when the time is up, however much comes meanwhile."""
        if time.monotonic_ns() >= self._ends_ns:
            raise TimeoutError(f"no whole answer within {self._patience_s:g} s")


@contextmanager
def line_to(target: Target, patience_s: float | None = None) -> Iterator[Line]:
    """A connection for the time of the block; what the network or the server does wrong there becomes an error.

    `patience_s` is the time for the whole of the block, ten seconds unless given.
    Raises TargetUnreachable, TargetRefused.
    """
    poller = Poller()
    line = None
    try:
        line = Line(target, poller, PATIENCE_S if patience_s is None else patience_s)
        line.connect()
        yield line
    except ssl.SSLCertVerificationError as error:
        raise TargetUnreachable(
            f"the certificate of {target.url} is not accepted: {error.verify_message}.\n"
            "Give its authority as a CA file, or use the name it was made for."
        ) from error
    except MalformedAnswer as error:
        raise TargetRefused(
            f"{target.url} answers, but not as a server of its protocol does: {printable(str(error))}.\n"
            "Check the address, its scheme and its port."
        ) from error
    except OSError as error:
        reason = printable(str(error)) or type(error).__name__
        raise TargetUnreachable(
            f"{target.url} does not answer: {reason}.\nStart the server, or correct the address."
        ) from error
    finally:
        poller.close()
        if line is not None:
            line.stream.close()


def http_answer(target: Target, request: bytes, patience_s: float | None = None) -> tuple[int, bytes]:
    """Status and body of the answer to a whole HTTP request. Raises TargetUnreachable, TargetRefused."""
    with line_to(target, patience_s) as line:
        unsent = memoryview(request)
        while unsent:
            try:
                unsent = unsent[line.stream.send(unsent) :]
            except BlockingIOError:
                line.wait(line.stream.wants() | WRITE)
        reader = AnswerReader(ReadBuffer(_BUFFER_BYTES), most_kept=MOST_BYTES)
        while True:
            line.hurry()
            try:
                head = reader.read(line.stream)
            except BlockingIOError:
                line.wait(line.stream.wants() | READ)
                continue
            if head is not None:
                return head.status, reader.body
