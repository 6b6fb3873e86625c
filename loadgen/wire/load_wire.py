"""The interface between clients and send loops, and what clients have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from loadgen.wire.addresses import Addresses
from loadgen.wire.poller import Poller
from loadgen.wire.sockets import ReadBuffer

EARLY = "an answer before its request was sent whole"


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


@dataclass(kw_only=True, eq=False)
class LoadWire:
    """What the connections of a whole run have in common, whatever the protocol."""

    addresses: Addresses
    requests: Requests
    poller: Poller
    finished: Finished
    # If `places` is not empty, it takes for each row 1 + the place of the address that it was sent to.
    places: bytearray = field(default_factory=bytearray, init=False)
    connections_opened: int = field(default=0, init=False)
    connections_closed: int = field(default=0, init=False)  # by the server, once they were ready
    resent: int = field(default=0, init=False)  # requests that were sent again, as the server did not process them
    error_example: str | None = field(default=None, init=False)  # the first failure in full, for `stranger_text`
    retry_after: bytes = field(default=b"", init=False)  # the header of the last such response
    in_front: Counter[str] = field(default_factory=Counter, init=False)
    _buffer: ReadBuffer = field(default_factory=ReadBuffer, init=False)

    @property
    def bytes_received(self) -> int:
        """All bytes of all responses, those of the protocol included."""
        return self._buffer.bytes_received
