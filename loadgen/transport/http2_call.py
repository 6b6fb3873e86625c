"""The state of one unary gRPC call over HTTP/2: the unsent part, and the received part of its response."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.errors import MalformedAnswer
from loadgen.transport.hpack import Field

PREFIX_BYTES = 5
_MAX_BLOCKS = 8
_MAX_FIELDS = 1000


class Call:
    """One call. `answer` keeps the message if needed; `data_bytes` counts all of it, with its five-byte prefix.

    `proven`: the client that waits for the response found no fault in it.
    """

    __slots__ = (
        "_blocks", "answer", "compressed", "data_bytes", "fields", "message_bytes", "proven", "row", "unsent",
        "window",
    )  # fmt: skip

    def __init__(self, row: int, window: int) -> None:
        self.row = row
        self.unsent: memoryview | None = None
        self.window = window
        self.fields: tuple[Field, ...] = ()
        self.answer: bytearray | None = None
        self.data_bytes = 0
        self.message_bytes = -1  # as announced by its prefix; -1: not known yet
        self.compressed = False
        self.proven = False
        self._blocks = 0

    def add_fields(self, fields: tuple[Field, ...]) -> None:
        """Add headers or trailers. Raises MalformedAnswer for over 8 header blocks or 1,000 fields."""
        self._blocks += 1
        if self._blocks > _MAX_BLOCKS or len(self.fields) + len(fields) > _MAX_FIELDS:
            raise MalformedAnswer(f"an answer with over {_MAX_BLOCKS} header blocks or {_MAX_FIELDS:,} fields")
        self.fields = (*self.fields, *fields)

    def skips(self, data: memoryview, wants: Callable[[int], bool]) -> bool:
        """Take the beginning of a message and only count it; False if the message must be kept."""
        if self.data_bytes or len(data) < PREFIX_BYTES:
            return False
        prefix = bytes(data[:PREFIX_BYTES])
        length = int.from_bytes(prefix[1:], "big")
        if wants(length):
            return False
        self.compressed = prefix[0] != 0
        self.message_bytes = length
        self.data_bytes = len(data)
        return True

    def take(self, data: bytes, wants: Callable[[int], bool]) -> None:
        """Add data; `wants` is called once with the message's length, to decide if it is kept."""
        self.data_bytes += len(data)
        if self.answer is None:
            if self.message_bytes >= 0 or not data:
                return
            self.answer = bytearray()
        self.answer += data
        if self.message_bytes < 0 and len(self.answer) >= PREFIX_BYTES:
            self.compressed = self.answer[0] != 0
            self.message_bytes = int.from_bytes(self.answer[1:PREFIX_BYTES], "big")
            if not wants(self.message_bytes):
                self.answer = None
        if 0 <= self.message_bytes < self.data_bytes - PREFIX_BYTES:  # already too long
            self.answer = None

    def fault_of_frame(self) -> str | None:
        """Return the fault if the data are not one complete, uncompressed message; None if they are."""
        got = self.data_bytes - PREFIX_BYTES
        if self.message_bytes < 0:
            return "status OK without a message" if self.data_bytes == 0 else "a message cut off in its prefix"
        if self.compressed:
            return "a compressed message, which was not asked for"
        return (
            None
            if got == self.message_bytes
            else f"a message of {self.message_bytes:,} bytes, of which {got:,} came"
        )
