"""One unary call of gRPC over HTTP/2: what is left to send, and what has come of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.wire_errors import MalformedAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.hpack import Field

PREFIX_BYTES = 5
_MOST_BLOCKS = 8
_MOST_FIELDS = 1000


class Call:
    """`answer` keeps the message while it is wanted; `data_bytes` counts all of it, its prefix of five included.

    `proven`: nothing is wrong with the answer, as far as the one that waits for it knows.
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
        self.message_bytes = -1  # as its prefix announces it
        self.compressed = False
        self.proven = False
        self._blocks = 0

    def add_fields(self, fields: tuple[Field, ...]) -> None:
        """Headers or trailers have come. Raises MalformedAnswer for more of them than any answer has."""
        self._blocks += 1
        if self._blocks > _MOST_BLOCKS or len(self.fields) + len(fields) > _MOST_FIELDS:
            raise MalformedAnswer(f"an answer with over {_MOST_BLOCKS} header blocks or {_MOST_FIELDS:,} fields")
        self.fields = (*self.fields, *fields)

    def skips(self, data: memoryview, wants: Callable[[int], bool]) -> bool:
        """Take the beginning of a message that need not be kept, which is then only counted; else False."""
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
        """Data have come; `wants` is asked once whether a message of this length is to be kept."""
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
        if 0 <= self.message_bytes < self.data_bytes - PREFIX_BYTES:  # too much, whatever comes
            self.answer = None

    def fault_of_frame(self) -> str | None:
        """What is wrong where the data are not one whole message, as it is; None: nothing."""
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
