"""The end of an HTTP/1.1 answer, found with as little parsing as is correct."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.streams import Stream

_HEAD_END = b"\r\n\r\n"
_MOST_HEADS = 1024
_EXAMPLE_BYTES = 500
_LONGEST_HEAD = 1 << 16


class MalformedAnswer(OSError):
    """The bytes are no HTTP answer."""


class ClosedEarly(OSError):
    """The server closed the connection before its answer was whole."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the header of an answer says about its end. `length` None: until the connection closes, or chunked."""

    status: int
    length: int | None
    chunked: bool
    keep_alive: bool


def parse_head(head: bytes) -> Head:
    """Read status line and headers, up to and with the empty line. Raises MalformedAnswer."""
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise MalformedAnswer(f"no HTTP answer: {head[:40]!r}")
    status = int(rest[:3])
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
    }
    connection = fields.get(b"connection", b"").lower()
    keep_alive = connection != b"close" and (version != b"HTTP/1.0" or connection == b"keep-alive")
    chunked = fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
    length = fields.get(b"content-length")
    if status in (204, 304) or status < 200:
        return Head(status, 0, chunked=False, keep_alive=keep_alive)
    if chunked or length is None:
        return Head(status, None, chunked=chunked, keep_alive=keep_alive and chunked)
    if not length.isdigit():
        raise MalformedAnswer(f"content-length {length[:40]!r}")
    return Head(status, int(length), chunked=False, keep_alive=keep_alive)


def error_text(status: int, body: bytes) -> str:
    """Status and text of an answer that was no success; Triton's own words where it sends them."""
    text = body[:_EXAMPLE_BYTES].decode(errors="replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(body)["error"])
    return f"http {status}, {text}" if text else f"http {status}"


_LITTLE = 1 << 14


class ReadBuffer:
    """What all connections of one process share: the bytes just read, and the heads seen before.

    `takes_little`: so far no more than 16 KiB came at once, far from what would fill a socket's buffer.
    """

    def __init__(self, size: int = 1 << 20) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)
        self.bytes_received = 0
        self.takes_little = True
        self._heads: dict[bytes, Head] = {}

    def received(self, count: int) -> None:
        """Count what was read."""
        self.bytes_received += count
        if count > _LITTLE:
            self.takes_little = False

    def head(self, raw: bytes) -> Head:
        """Parse, or remember: a server repeats the same few heads."""
        known = self._heads.get(raw)
        if known is None:
            known = parse_head(raw)
            if len(self._heads) < _MOST_HEADS:
                self._heads[raw] = known
        return known


class AnswerReader:
    """Reads the answers of one connection, one at a time. `body` holds the text of an answer that failed."""

    __slots__ = ("_buffer", "_head", "_kept", "_missing", "body")

    def __init__(self, buffer: ReadBuffer) -> None:
        self._buffer = buffer
        self._head: Head | None = None
        self._missing = 0  # bytes of a body of known length that are still to come, and need not be kept
        self._kept: bytearray | None = None  # all of the answer so far, where its end is harder to find
        self.body = b""

    def read(self, stream: Stream) -> Head | None:
        """Read once; the head when the answer is whole, None when more is to come.

        Raises BlockingIOError when nothing is there, ClosedEarly and MalformedAnswer for what they say.
        """
        buffer = self._buffer
        count = stream.recv_into(buffer.view)
        buffer.received(count)
        if self._missing:
            return self._go_on(count)
        if self._kept is None:
            end = buffer.data.find(_HEAD_END, 0, count)
            if end > 0:
                head = buffer.head(bytes(buffer.view[: end + 4]))
                if head.length is not None and head.status == 200:
                    self._missing = end + 4 + head.length - count
                    if self._missing == 0:
                        return head
                    if self._missing > 0:
                        self._head = head
                        return None
                    raise MalformedAnswer("bytes after the end of the answer")
            self._kept = bytearray()
        self._kept += buffer.view[:count]
        return self._search(self._kept, ended=count == 0)

    def _go_on(self, count: int) -> Head | None:
        if count == 0:
            raise ClosedEarly("closed in the middle of the body")
        self._missing -= count
        if self._missing < 0:
            raise MalformedAnswer("bytes after the end of the answer")
        return None if self._missing else self._head

    def _search(self, kept: bytearray, *, ended: bool) -> Head | None:
        """Look for the end in all that was kept: heads in pieces, chunked bodies, bodies without a length."""
        end = kept.find(_HEAD_END)
        if end < 0:
            if ended:
                raise ClosedEarly("closed before the whole head was there")
            if len(kept) > _LONGEST_HEAD:
                raise MalformedAnswer(f"no end of the head within {_LONGEST_HEAD} bytes")
            return None
        head = self._buffer.head(bytes(kept[: end + 4]))
        if head.status < 200:
            del kept[: end + 4]
            return self._search(kept, ended=ended)
        body = _whole_body(head, kept, end + 4, ended=ended)
        if body is None:
            if ended:
                raise ClosedEarly("closed in the middle of the body")
            return None
        self._kept = None
        self.body = body
        return head


def _whole_body(head: Head, kept: bytearray, start: int, *, ended: bool) -> bytes | None:
    """The body, or None while it is not whole."""
    if head.chunked:
        return _dechunked(kept, start)
    if head.length is None:
        return bytes(kept[start:]) if ended else None
    if len(kept) > start + head.length:
        raise MalformedAnswer("bytes after the end of the answer")
    return bytes(kept[start:]) if len(kept) == start + head.length else None


def _dechunked(kept: bytearray, at: int) -> bytes | None:
    body = bytearray()
    while True:
        line_end = kept.find(b"\r\n", at)
        if line_end < 0:
            return None
        try:
            size = int(kept[at:line_end].partition(b";")[0], 16)
        except ValueError:
            raise MalformedAnswer(f"chunk size {bytes(kept[at : at + 20])!r}") from None
        start = line_end + 2
        if size == 0:  # then trailers, if any, and an empty line
            whole = kept[start : start + 2] == b"\r\n" or kept.find(_HEAD_END, start) >= 0
            return bytes(body) if whole else None
        if len(kept) < start + size + 2:
            return None
        body += kept[start : start + size]
        at = start + size + 2
