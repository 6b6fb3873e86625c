"""Define the interface between clients and send loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from loadgen.wire.addresses import Addresses


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


class LoadWire(Wire, Protocol):
    """A wire with the functions for a whole run: opening, closing, and byte counts."""

    finished: Finished
    error_example: str | None
    in_front: Counter[str]
    connections_opened: int
    addresses: Addresses
    places: bytearray
    """If not empty, takes for each row 1 + the place of the address that it was sent to."""
    connections_closed: int
    """By the server, once they were ready."""

    resent: int
    """Requests that the server did not process and that were sent again, for each time."""

    retry_after: bytes
    """The header of the last response that was not a success; empty if it had none."""

    @property
    def connecting(self) -> int:
        """The number of connections that are not ready yet."""

    @property
    def bytes_sent(self) -> int:
        """All bytes sent so far."""

    @property
    def bytes_received(self) -> int:
        """All bytes received so far."""

    def open(self, count: int) -> None:
        """Begin to open connections, up to `count`. Raises OSError if one is refused at once."""

    def close(self) -> None:
        """Close all connections; requests in flight are forgotten."""
