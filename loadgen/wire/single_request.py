"""Send one HTTP request outside the load, on its own connection, with one deadline for the exchange."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loadgen.errors import ClosedEarly, MalformedAnswer, TargetRefused, TargetUnreachable
from loadgen.printable import printable
from loadgen.spec.target import Target
from loadgen.wire.http1_response import AnswerReader
from loadgen.wire.poller import GIVE_WAY_NS, READ, WRITE, Poller, give_way
from loadgen.wire.sockets import ReadBuffer, address_of

PATIENCE_S = 10.0
MAX_BYTES = 16 << 20
"""A response with a body of more bytes is malformed."""

_BUFFER_BYTES = 1 << 16


class Line:
    """An open connection and the deadline of its exchange."""

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
        """Wait for events, at most 0.25 s, and let other greenlets run. Raises like `hurry`."""
        self._poller.change(self.stream.fileno(), events)
        self._poller.wait(min(GIVE_WAY_NS, self._ends_ns - time.monotonic_ns()))
        give_way()
        self.hurry()

    def hurry(self) -> None:
        """Raise TimeoutError if the time is up, even if bytes keep arriving."""
        if time.monotonic_ns() >= self._ends_ns:
            raise TimeoutError(f"no whole answer within {self._patience_s:g} s")


@contextmanager
def line_to(target: Target, patience_s: float | None = None) -> Iterator[Line]:
    """Yield a connection; faults of the network or the server in the block become our errors.

    `patience_s` is the time for the whole block, ten seconds by default.
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
            "Give its authority as a CA file, or use the name it was made for, as the address or as --server-name."
        ) from error
    except ssl.SSLError as error:
        raise TargetUnreachable(f"the TLS handshake with {target.url} failed: {_tls_problem(error)}") from error
    except MalformedAnswer as error:
        raise TargetRefused(
            f"{target.url} answers, but not as a server of its protocol does: {printable(str(error))}.\n"
            "Check the address, its scheme and its port."
        ) from error
    except OSError as error:
        reason = printable(str(error)) or type(error).__name__
        fix = "Start the server, or correct the address."
        if target.is_tls and isinstance(error, ClosedEarly | ConnectionResetError | BrokenPipeError):
            fix = "If it asks for a client certificate, give one that it accepts: --client-cert. Else see its log."
        raise TargetUnreachable(f"{target.url} does not answer: {reason}.\n{fix}") from error
    finally:
        poller.close()
        if line is not None:
            line.stream.close()


def _tls_problem(error: ssl.SSLError) -> str:
    """Return the reason and the advice; the server's alerts on certificates are about the client's."""
    reason = error.reason or str(error)
    words = reason.rpartition("_ALERT_")[2].replace("_", " ").lower()
    if "_ALERT_" in reason and ("certificate" in words or words == "unknown ca"):
        return f"{words}.\nGive a client certificate that it accepts: --client-cert and --client-key."
    if words.endswith("handshake failure"):
        return f"{words}.\nCheck its TLS settings; if it asks for a client certificate, give --client-cert."
    return f"{printable(words)}.\nCheck its address, scheme and TLS settings."


def http_answer(target: Target, request: bytes, patience_s: float | None = None) -> tuple[int, bytes]:
    """Send a complete HTTP request; returns status and body. Raises TargetUnreachable, TargetRefused."""
    with line_to(target, patience_s) as line:
        unsent = memoryview(request)
        while unsent:
            try:
                unsent = unsent[line.stream.send(unsent) :]
            except BlockingIOError:
                line.wait(line.stream.wants() | WRITE)
        reader = AnswerReader(ReadBuffer(_BUFFER_BYTES), MAX_BYTES, whole=True)
        while True:
            line.hurry()
            try:
                answer = reader.read(line.stream)
            except BlockingIOError:
                line.wait(line.stream.wants() | READ)
                continue
            if answer is not None:
                return answer.status, answer.body
