"""Find the end of an HTTP/1.1 response with the least parsing that is correct."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.printable import printable
from loadgen.transport.http1_body import Body, ChunkedBody, OpenBody, SizedBody
from loadgen.transport.sockets import Stream

MAX_OF_AN_ERROR = 1 << 16
"""The body of a failed response is kept up to so many bytes."""

MAX_OF_A_DOCUMENT = 1 << 20
"""The JSON of an inference is kept up to so many bytes; the tensors after it are only counted."""

_HEAD_END = b"\r\n\r\n"
_MAX_HEADS = 1024
_LONGEST_KNOWN_HEAD = 2048
_EXAMPLE_CHARACTERS = 500
_LONGEST_HEAD = 1 << 16
_MAX_LENGTH_DIGITS = 15
_MAX_INTERIM = 8
_LITTLE = 1 << 14


@dataclass(slots=True)
class Head:
    """The head of a response. `length` None: until the connection closes, or chunked.

    `json_bytes` is the length of the JSON before the tensors of an inference; None if all of it is JSON.
    """

    status: int
    length: int | None
    chunked: bool
    keep_alive: bool
    content_type: str = ""
    json_bytes: int | None = None


def parse_head(head: bytes) -> Head:
    """Parse status line and headers, including the empty line. Raises MalformedAnswer."""
    lines = head.split(b"\r\n")
    version, _, rest = lines[0].partition(b" ")
    digits, _, _ = rest.partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(digits) != 3 or not digits.isdigit() or digits < b"100":
        raise MalformedAnswer(f"no HTTP answer: {head[:40]!r}")
    status = int(digits)
    if status == 101:
        raise MalformedAnswer("http 101, another protocol, which was not asked for")
    fields = _fields(lines[1:])
    options = {option.strip() for option in fields.get(b"connection", b"").lower().split(b",")}
    keep_alive = b"close" not in options and (version != b"HTTP/1.0" or b"keep-alive" in options)
    chunked = fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
    length = _length(fields, b"content-length")
    if status in (204, 304) or status < 200:
        return Head(status, 0, chunked=False, keep_alive=keep_alive)
    if chunked:
        length = None
    json_bytes = _length(fields, b"inference-header-content-length")
    most = MAX_OF_A_DOCUMENT if length is None else min(MAX_OF_A_DOCUMENT, length)
    if json_bytes is not None and json_bytes > most:
        raise MalformedAnswer(f"inference-header-content-length {json_bytes:,}, over {most:,}")
    return Head(
        status,
        length,
        chunked=chunked,
        keep_alive=keep_alive and (chunked or length is not None),
        content_type=fields.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1"),
        json_bytes=json_bytes,
    )


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip()
        if name == b"content-length" and fields.get(name, value) != value:
            raise MalformedAnswer(f"two lengths, {fields[name][:40]!r} and {value[:40]!r}")
        if name == b"connection" and name in fields:
            value = fields[name] + b"," + value
        fields[name] = value
    return fields


def _length(fields: dict[bytes, bytes], name: bytes) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if not text.isdigit() or len(text) > _MAX_LENGTH_DIGITS:
        raise MalformedAnswer(f"{name.decode()} {text[:40]!r}")
    return int(text)


def error_text(status: int, body: bytes) -> str:
    """Return status and text of a failed response; Triton's error message if it sent one."""
    text = excerpt(body)
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        text = printable(str(json.loads(body)["error"]), most=_EXAMPLE_CHARACTERS)
    return f"http {status}, {text}" if text else f"http {status}"


def excerpt(body: bytes) -> str:
    """Return the beginning of a body as text."""
    return printable(body[:_EXAMPLE_CHARACTERS].decode(errors="replace").strip(), most=_EXAMPLE_CHARACTERS)


class ReadBuffer:
    """Shared by all connections of one process: the bytes just read, and the heads seen before.

    `takes_little`: so far no more than 16 KiB came at once, far below the size of a socket's buffer.
    """

    def __init__(self, size: int = 1 << 20) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)
        self.bytes_received = 0
        self.takes_little = True
        self._heads: dict[bytes, Head] = {}

    def received(self, count: int) -> None:
        """Count the bytes of one read."""
        self.bytes_received += count
        if count > _LITTLE:
            self.takes_little = False

    def head(self, raw: bytes) -> Head:
        """Return the parsed head, from memory if known: servers repeat few heads. A full memory is cleared."""
        known = self._heads.get(raw)
        if known is None:
            known = parse_head(raw)
            if len(self._heads) == _MAX_HEADS:
                self._heads.clear()
            if len(raw) <= _LONGEST_KNOWN_HEAD:
                self._heads[raw] = known
        return known


class AnswerReader:
    """Reads the responses of one connection, one at a time.

    `body` holds the beginning of a response and `size` counts all of it. With `most_kept`,
    whole bodies are kept, and a longer one is malformed; None: the JSON of an inference, or the text of an error.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_head",
        "_interim",
        "_most_kept",
        "_searched",
        "_start",
        "body",
        "size",
    )

    def __init__(self, buffer: ReadBuffer, most_kept: int | None = None) -> None:
        self._buffer = buffer
        self._most_kept = most_kept
        self._head: Head | None = None
        self._start = bytearray()  # a head in pieces
        self._searched = 0  # up to this position it has no end of a head
        self._interim = 0
        self._body: Body | None = None
        self.body = b""
        self.size = 0

    def read(self, stream: Stream) -> Head | None:
        """Read once; returns the head if the response is complete, else None.

        Raises BlockingIOError if no bytes are there, ClosedEarly and MalformedAnswer.
        """
        buffer = self._buffer
        count = stream.recv_into(buffer.view)
        buffer.received(count)
        return self._take(count) if count else self._closed()

    def _take(self, count: int) -> Head | None:
        """Continue with a response that is parsed: heads in pieces, interim responses, bodies that are kept."""
        if self._body is not None:
            return self._go_on_with_body(self._body, self._buffer.data, count)
        self._start += self._buffer.view[:count]
        head = self._find_head()
        while head is not None and head.status < 200:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise MalformedAnswer(f"over {_MAX_INTERIM} interim answers, the last with status {head.status}")
            head = self._find_head()
        if head is None:
            return None
        self._head, self._body, self._interim = head, self._body_of(head), 0
        start, self._start = self._start, bytearray()
        return self._go_on_with_body(self._body, start, len(start))

    def _find_head(self) -> Head | None:
        """Remove one head from the beginning of the bytes, if it is complete."""
        end = self._start.find(_HEAD_END, self._searched)
        if end > _LONGEST_HEAD or (end < 0 and len(self._start) > _LONGEST_HEAD):
            raise MalformedAnswer(f"no end of the head within {_LONGEST_HEAD:,} bytes")
        if end < 0:
            self._searched = max(0, len(self._start) - 3)
            return None
        raw = bytes(self._start[: end + 4])
        del self._start[: end + 4]
        self._searched = 0
        return self._buffer.head(raw)

    def _body_of(self, head: Head) -> Body:
        if self._most_kept is not None:
            most = self._most_kept
        elif head.status != 200:
            most = MAX_OF_AN_ERROR
        else:
            most = MAX_OF_A_DOCUMENT if head.json_bytes is None else head.json_bytes
        if head.chunked:
            return ChunkedBody(most)
        return OpenBody(most) if head.length is None else SizedBody(head.length, most)

    def _go_on_with_body(self, body: Body, data: bytearray, end: int) -> Head | None:
        at = body.take(data, 0, end)
        if self._most_kept is not None and body.size > self._most_kept:
            raise MalformedAnswer(f"an answer of over {self._most_kept:,} bytes")
        if at < end:
            raise MalformedAnswer("bytes after the end of the answer")
        return self._whole(body) if body.ended else None

    def _closed(self) -> Head:
        if isinstance(self._body, OpenBody):
            return self._whole(self._body)
        where = "before the whole head was there" if self._body is None else "in the middle of the body"
        raise ClosedEarly(f"closed {where}")

    def _whole(self, body: Body) -> Head:
        assert self._head is not None
        self.body, self.size = bytes(body.kept), body.size
        self._body = None
        return self._head
