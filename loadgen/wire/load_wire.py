"""The interface between clients and send loops, and what clients have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from loadgen.wire.addresses import Addresses
from loadgen.wire.poller import Poller
from loadgen.wire.sockets import ReadBuffer


class Wire(Protocol):
    """Connections to a server over one protocol. Rows name requests; the wire does not know their times."""

    @property
    def in_flight(self) -> Mapping[int, object]:
        """The rows of requests in flight, in the order of sending."""

    @property
    def answers_may_wait(self) -> bool:
        """True if only small responses, whose arrival the kernel records, are outstanding.

        The next request must also find a connection without an outstanding response.
        """

    def send(self, row: int) -> bool:
        """Start a request; False if `answers_may_wait` may no longer hold.

        Never blocks, and never raises for network errors: they end the request.
        """

    def handle(self, fd: int, events: int) -> None:
        """Continue with a file descriptor that the poller reported."""

    def give_up(self, row: int) -> None:
        """Forget a request in flight; its response is discarded."""


class Requests(Protocol):
    """Requests to send in turn: `HttpWire` takes that of a row modulo their number."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> bytes: ...


Finished = Callable[[int, int, int], None]
"""Takes a row, its outcome, and the time when the kernel got its response, in ns of the wall clock; 0: unknown."""


class LoadWire:
    """What the connections of a whole run have in common, whatever the protocol."""

    def __init__(self, *, addresses: Addresses, poller: Poller, finished: Finished) -> None:
        self.addresses = addresses
        self.places = bytearray()  # if not empty, takes for each row 1 + the place of the address it was sent to
        self.finished = finished
        self.connections_opened = 0
        self.connections_closed = 0  # by the server, once they were ready
        self.resent = 0  # requests that the server did not process and that were sent again, for each time
        self.error_example: str | None = None  # of the first failure, in full, for `stranger_text`
        self.retry_after = b""  # the header of the last such response
        self.in_front: Counter[str] = Counter()
        self._poller = poller
        self._buffer = ReadBuffer()

    @property
    def bytes_received(self) -> int:
        """All bytes of all responses, those of the protocol included."""
        return self._buffer.bytes_received
