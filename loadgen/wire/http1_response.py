"""Read HTTP/1.1 responses with `httptools`, and limit what a server can make it keep."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.printable import printable
from loadgen.wire.sockets import ReadBuffer, Stream

_MAX_KEPT = 1 << 20
_MAX_BESIDES = 1 << 16
_MAX_LENGTH_DIGITS = 15


@dataclass(slots=True)
class Answer:
    """A complete response: `body` is the beginning of its body, of `size` bytes. Names in `fields` are lowercase.

    `keep_alive`: the connection may be used again.
    """

    status: int
    fields: dict[bytes, bytes]
    keep_alive: bool
    body: bytes
    size: int

    @property
    def content_type(self) -> str:
        """The type without its parameters; empty if there is none."""
        text = self.fields.get(b"content-type", b"").decode("latin-1")
        return text.partition(";")[0].strip().lower()

    @property
    def json_bytes(self) -> int:
        """The length of the JSON before the tensors of an inference; `size` if all of it is JSON.

        Raises MalformedAnswer.
        """
        text = self.fields.get(b"inference-header-content-length")
        if text is None:
            return self.size
        text = text.strip()
        if not text.isdigit() or len(text) > _MAX_LENGTH_DIGITS:
            raise MalformedAnswer(f"inference-header-content-length {text!r}")
        return int(text)


class AnswerReader:
    """Reads the responses of one connection, one at a time; keeps `most_kept` bytes of each body.

    If `whole`, a response with a longer body is malformed. So is any with more bytes besides its body (heads,
    interim responses, lines between chunks, trailers) than 64 KiB and those of the body.
    """

    def __init__(self, buffer: ReadBuffer, most_kept: int = _MAX_KEPT, *, whole: bool = False) -> None:
        self._buffer = buffer
        self._most_kept = most_kept
        self._must_fit = whole
        self._parser = HttpResponseParser(self)
        self._answer: Answer | None = None
        self.arrived_ns = 0  # of the last bytes that were read, see `TcpStream`
        self._more = False  # bytes came after the answer
        self._begin()

    def _begin(self) -> None:
        self._fields: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._size = self._besides = 0
        self._in_body = False

    def read(self, stream: Stream) -> Answer | None:
        """Read once; returns the response if it is complete, else None.

        Raises BlockingIOError if no bytes are there, ClosedEarly and MalformedAnswer.
        """
        view = self._buffer.view
        count = stream.recv_into(view)
        self.arrived_ns = stream.arrived_ns
        self._buffer.received(count)
        if count == 0:
            return self._closed()
        before = self._size
        try:
            self._parser.feed_data(view[:count])
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, MalformedAnswer):  # from `on_body`
                raise error.__context__ from None
            reason = "http 101" if isinstance(error, HttpParserUpgrade) else str(error)
            raise MalformedAnswer(
                "bytes after the end of the answer" if self._answer else f"no HTTP answer: {printable(reason)}"
            ) from None
        self._besides += count - (self._size - before)
        if self._besides > _MAX_BESIDES + self._size:
            raise MalformedAnswer(
                f"over {_MAX_BESIDES:,} bytes, and more than those of its body, besides the body"
            )
        if self._must_fit and self._size > self._most_kept:
            raise MalformedAnswer(f"an answer of over {self._most_kept:,} bytes")
        answer, self._answer = self._answer, None
        if answer is None:
            return None
        if self._more:
            raise MalformedAnswer("bytes after the end of the answer")
        if answer.status < 200:
            raise MalformedAnswer(f"http {answer.status}, which ends no request")
        self._begin()
        return answer

    def _closed(self) -> Answer:
        chunked = b"chunked" in self._fields.get(b"transfer-encoding", b"").lower()
        if self._in_body and not chunked and b"content-length" not in self._fields:
            return self._whole(keep_alive=False)  # its body ends with the connection
        where = "in the middle of the body" if self._in_body else "before the whole head was there"
        raise ClosedEarly(f"closed {where}")

    def _whole(self, *, keep_alive: bool) -> Answer:
        status, body = self._parser.get_status_code(), b"".join(self._parts)
        return Answer(status, self._fields, keep_alive, body, self._size)

    # What httptools calls; after a complete response it would go on with the next.

    def on_message_begin(self) -> None:
        """Note bytes that come after a response."""
        self._more = self._answer is not None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which changes no header."""
        self._fields.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """Note that the body begins. Raises MalformedAnswer for one that cannot be read, but for an error's."""
        self._in_body = True
        if self._parser.get_status_code() == 200 and (fault := _encoded(self._fields)):
            raise MalformedAnswer(fault)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        room = self._most_kept - self._size
        if room > 0:
            self._parts.append(data[:room])
        self._size += len(data)

    def on_message_complete(self) -> None:
        """Take a complete response; an interim one is not the answer."""
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._fields, self._in_body = {}, False
        else:
            self._answer = self._whole(keep_alive=self._parser.should_keep_alive())


def error_text(answer: Answer) -> str:
    """Return status and text of a failed response, for `stranger_text`; Triton's or OpenAI's message if any.

    Before it stands the target of a redirect.
    """
    text = _encoded(answer.fields) or body_text(answer.body)
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        error = json.loads(answer.body)["error"]
        error = (isinstance(error, dict) and error.get("message")) or error
        text = str(error)
    if 300 <= answer.status < 400 and b"location" in answer.fields:
        text = f"to {answer.fields[b'location'].decode('latin-1')} {text}".rstrip()
    return f"http {answer.status}, {text}" if text else f"http {answer.status}"


def _encoded(fields: dict[bytes, bytes]) -> str:
    """Return what is wrong with a compressed body, which no request asks for; empty: it is none."""
    encoding = fields.get(b"content-encoding", b"").decode("latin-1").lower()
    if encoding in ("", "identity"):
        return ""
    return f"a body with Content-Encoding: {encoding} (--header 'Accept-Encoding: identity' asks for a plain one)"


def body_text(body: bytes | bytearray) -> str:
    """Return a body as text, for `stranger_text`."""
    return body.decode(errors="replace").strip()
