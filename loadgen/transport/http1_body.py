"""Read the bodies of HTTP/1.1 responses: each byte is read once, and only the first ones are kept."""

from __future__ import annotations

from typing import Protocol

from loadgen.errors import MalformedAnswer

_LONGEST_LINE = 4096  # bytes of a chunk's size with its extensions
_LONGEST_TRAILERS = 1 << 16
_MAX_SIZE_DIGITS = 15
_MAX_SMALL_CHUNKS = 4096  # more chunks, if under 16 bytes on average, are malformed: too slow to read
_SMALL_BYTES = 16
_HEX_DIGITS = b"0123456789abcdefABCDEF"


class Body(Protocol):
    """Reads bytes as they arrive. `size` counts those of the body so far, `kept` holds the first ones."""

    kept: bytearray
    size: int
    ended: bool

    def take(self, data: bytearray, at: int, end: int) -> int:
        """Continue with `data[at:end]`; returns the position after the body, `end` if it is incomplete."""


class _Kept:
    """Base of the bodies: counts the bytes and keeps the first `most_kept` of them."""

    def __init__(self, most_kept: int) -> None:
        self.kept = bytearray()
        self.size = 0
        self.ended = False
        self._most_kept = most_kept

    def _keep(self, data: bytearray, at: int, end: int) -> None:
        self.size += end - at
        room = self._most_kept - len(self.kept)
        if room > 0:
            self.kept += data[at : min(end, at + room)]


class SizedBody(_Kept):
    """A body of `length` bytes."""

    def __init__(self, length: int, most_kept: int) -> None:
        super().__init__(most_kept)
        self.ended = length == 0
        self._length = length

    def take(self, data: bytearray, at: int, end: int) -> int:
        """See `Body`."""
        after = min(end, at + self._length - self.size)
        self._keep(data, at, after)
        self.ended = self.size == self._length
        return after


class OpenBody(_Kept):
    """A body that ends with the connection; its reader sets `ended`."""

    def take(self, data: bytearray, at: int, end: int) -> int:
        """See `Body`."""
        self._keep(data, at, end)
        return end


class ChunkedBody(_Kept):
    """A body in chunks, each after a line with its size, then trailers. `take` raises MalformedAnswer."""

    def __init__(self, most_kept: int) -> None:
        super().__init__(most_kept)
        self._line = bytearray()  # the beginning of an incomplete line
        self._chunks = 0
        self._missing = 0  # bytes of the chunk that are still to come
        self._after_data = False  # the line end of a chunk comes next
        self._trailer_bytes: int | None = None  # None: the last chunk has not arrived

    def take(self, data: bytearray, at: int, end: int) -> int:
        """See `Body`."""
        while at < end and not self.ended:
            if self._missing:
                after = min(end, at + self._missing)
                self._keep(data, at, after)
                self._missing -= after - at
                self._after_data = self._missing == 0
                at = after
                continue
            line_end = data.find(b"\n", at, end)
            after = end if line_end < 0 else line_end + 1
            if len(self._line) + after - at > _LONGEST_LINE:
                raise MalformedAnswer(f"a line between chunks is over {_LONGEST_LINE:,} bytes long")
            self._line += data[at:after]
            at = after
            if line_end >= 0:
                line, self._line = bytes(self._line), bytearray()
                self._take_line(line)
        return at

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise MalformedAnswer(f"a line between chunks ends without a carriage return: {line[:40]!r}")
        text = line[:-2]
        if self._after_data:
            if text:
                raise MalformedAnswer(f"a chunk is longer than its size: {text[:40]!r}")
            self._after_data = False
        elif self._trailer_bytes is not None:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _LONGEST_TRAILERS:
                raise MalformedAnswer(f"trailers of over {_LONGEST_TRAILERS:,} bytes")
            self.ended = not text
        else:
            self._missing = _chunk_size(text)
            if self._chunks >= _MAX_SMALL_CHUNKS and self.size < _SMALL_BYTES * self._chunks:
                raise MalformedAnswer(f"over {_MAX_SMALL_CHUNKS:,} chunks of under {_SMALL_BYTES} bytes")
            self._chunks += 1
            if not self._missing:
                self._trailer_bytes = 0


def _chunk_size(line: bytes) -> int:
    """Return the size before any extension; `int` alone would accept -6, +5, 0x5 and 1_0 as well."""
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not 0 < len(digits) <= _MAX_SIZE_DIGITS or digits.strip(_HEX_DIGITS):
        raise MalformedAnswer(f"chunk size {line[:40]!r}")
    return int(digits, 16)
