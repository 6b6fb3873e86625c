"""Calls of gRPC, sent on an HTTP/2 connection as far as the server's windows allow (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from loadgen.spec.target import Target
from loadgen.status import MALFORMED, outcome_of_grpc, outcome_of_http
from loadgen.wire import http2_frames as h2
from loadgen.wire.http2_frames import Field, RequestHead, frame, frame_head, request_head, settings_in
from loadgen.wire.sockets import Stream

PREFIX_BYTES = 5
"""Before a message of gRPC: one byte that tells whether it is compressed, and its length."""

_CANCEL = 8


@dataclass(slots=True, eq=False)
class Call:
    """One unary call: the unsent part of its message, and the received part of its response.

    `answer` is the beginning of the response's message with its prefix; `data_bytes` counts all of it. `early`: it
    ended before the kernel had the whole message, whose last byte in frames is number `end` of the connection.
    """

    row: int
    window: int
    unsent: memoryview | None = None
    end: int = 0
    early: bool = False
    fields: tuple[Field, ...] = ()
    answer: bytearray = field(default_factory=bytearray)
    data_bytes: int = 0
    blocks: int = 0  # of headers
    refused: int | None = None  # if the server says that it did nothing for it: the tries that this costs

    def fault_of_frame(self) -> str | None:
        """Return the fault if the data are not one complete, uncompressed message; None if they are."""
        if self.data_bytes < PREFIX_BYTES:
            return "a message cut off in its prefix" if self.data_bytes else "status OK without a message"
        if self.answer[0]:
            return "a compressed message, which was not asked for"
        announced, got = int.from_bytes(self.answer[1:PREFIX_BYTES], "big"), self.data_bytes - PREFIX_BYTES
        return None if got == announced else f"a message of {announced:,} bytes, of which {got:,} came"


class SendingHalf:
    """Starts calls; many may be in flight. A connection that breaks takes no more; reading raises its error."""

    def __init__(self, stream: Stream, head: RequestHead) -> None:
        self.stream = stream
        self.calls: dict[int, Call] = {}
        self.settled = False  # the server's settings are known
        self.leaving = False  # the server accepts no new calls here
        self.bytes_sent = 0
        self._head = head
        self._block = head.first
        self._next_id = 1
        self._window = h2.DEFAULT_WINDOW
        self._initial_window = h2.DEFAULT_WINDOW
        self._most_data = 16384
        self.most_calls = h2.LARGEST  # at a time
        self._waiting: dict[int, Call] = {}  # calls whose message is not completely sent
        self._outgoing = bytearray(h2.OPENING)
        self._replies = 0  # to pings and settings, since `_outgoing` was last empty

    @property
    def has_room(self) -> bool:
        """True if another call may be started now."""
        return not self.leaving and len(self.calls) < self.most_calls

    @property
    def idle_but_for_one(self) -> bool:
        """True if the settings are known, at most one call is open, and everything is sent."""
        return self.settled and len(self.calls) <= 1 and not self._waiting and not self._outgoing

    @property
    def wants_to_write(self) -> bool:
        """True if bytes wait for the kernel to take them."""
        return bool(self._outgoing)

    def start(self, row: int, message: bytes) -> bool:
        """Send a call; its message has gRPC's prefix of five bytes. True if the kernel took all of it."""
        stream_id = self._next_id
        self._next_id += 2
        self.leaving = self.leaving or self._next_id > h2.LARGEST
        block = self._block
        if block is self._head.first:
            self._block = self._head.later
        call = self.calls[stream_id] = Call(row, self._initial_window)
        size, outgoing = len(message), self._outgoing
        outgoing += frame_head(len(block), h2.HEADERS, h2.END_HEADERS, stream_id) + block
        if size <= self._most_data and size <= call.window and size <= self._window:  # the usual case
            self._window -= size
            outgoing += frame_head(size, h2.DATA, h2.END_STREAM, stream_id) + message
        else:
            call.unsent = memoryview(message)
            self._waiting[stream_id] = call
            self._send_waiting()
        self.flush()
        if outgoing:
            call.end = self.bytes_sent + len(outgoing)
        return not outgoing

    def cancel(self, row: int) -> None:
        """Cancel the call of a row; its end is not reported."""
        stream_id = next((number for number, call in self.calls.items() if call.row == row), 0)
        self._waiting.pop(stream_id, None)
        if self.calls.pop(stream_id, None) is not None:
            self._outgoing += frame(h2.RST_STREAM, 0, stream_id, struct.pack(">I", _CANCEL))
            self.flush()

    def flush(self) -> None:
        """Give the kernel as many waiting bytes as it takes; none if the connection broke.

        What the server sent before, such as a GOAWAY, is still to be read.
        """
        try:
            while self._outgoing:
                count = self.stream.send(self._outgoing)
                self.bytes_sent += count
                del self._outgoing[:count]
            self._replies = 0
        except BlockingIOError:
            return
        except OSError:
            self.leaving = True

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in settings_in(payload):
            if name == h2.INITIAL_WINDOW:
                for call in self.calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif name == h2.MAX_FRAME:
                self._most_data = value
            elif name == h2.MAX_STREAMS:
                self.most_calls = value
            elif name == h2.TABLE_SIZE and value < 4096:
                self._block = self._head.plain
        self.settled = True
        self._outgoing += frame(h2.SETTINGS, h2.ACK, 0)
        self._send_waiting()

    def _widen(self, stream_id: int, more: int) -> None:
        if stream_id == 0:
            self._window += more
        elif stream_id in self.calls:
            self.calls[stream_id].window += more
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Put as much of each message into frames as both windows allow."""
        outgoing = self._outgoing
        for stream_id, call in list(self._waiting.items()):
            while call.unsent is not None:
                size = max(0, min(len(call.unsent), self._most_data, self._window, call.window))
                if size == 0 and call.unsent:
                    break
                last = size == len(call.unsent)
                outgoing += frame_head(size, h2.DATA, h2.END_STREAM if last else 0, stream_id)
                outgoing += call.unsent[:size]
                self._window -= size
                call.window -= size
                call.unsent = None if last else call.unsent[size:]
            call.end = self.bytes_sent + len(outgoing)
            if call.unsent is None:
                del self._waiting[stream_id]


_MAX_STATUS_DIGITS = 5
INFER = "/inference.GRPCInferenceService/ModelInfer"


def grpc_message(data: bytes) -> bytes:
    """Return a message in gRPC's format: not compressed, after its length."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def grpc_head(target: Target, method: str) -> RequestHead:
    """Return the headers of a call of `method`."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if target.is_tls else b"http"),
        (b":path", method.encode()),
        (b":authority", target.authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"tritune"),
    ]
    return request_head(fields, [(name.lower().encode(), value.encode()) for name, value in target.own_headers])


def status_of(fields: Sequence[Field]) -> tuple[int, str]:
    """Return the outcome in the headers and trailers of a response, and its text, for `stranger_text`."""
    found = dict(fields)
    http = found.get(b":status", b"")
    if not http.isdigit() or len(http) != 3:
        return MALFORMED, "an answer without a status"
    if int(http) != 200:
        return outcome_of_http(int(http)), f"http {int(http)}"
    grpc = found.get(b"grpc-status", b"")
    if not grpc.isdigit() or len(grpc) > _MAX_STATUS_DIGITS:
        kind = found.get(b"content-type", b"no content type").decode(errors="replace")
        return MALFORMED, f"http 200 without a grpc-status, {kind}"
    return outcome_of_grpc(int(grpc)), unquote(found.get(b"grpc-message", b"").decode(errors="replace"))
