"""Provide wires on connections in memory, with the server's end of each, and the ended requests."""

import struct
from collections.abc import Sequence
from typing import Any, Self, cast

from memory_wire import HEAD, MODEL, Addresses, Memory, Watched, grpc_wire, http_wire, right_message

from loadgen.traffic.model_info import ModelInfo
from loadgen.wire.grpc import GrpcWire
from loadgen.wire.http1 import HttpWire
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_frames import DATA, HEADERS, SETTINGS, WINDOW_UPDATE, block_of, frame
from loadgen.wire.http2_sending import Call
from loadgen.wire.poller import READ, WRITE
from loadgen.wire.sockets import ReadBuffer

REQUESTS = (b"POST /first HTTP/1.1\r\n\r\n", b"POST /second HTTP/1.1\r\n\r\n+body", b"third")
BODY = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1.0,2.0]}]}'


def http_answer(*fields: str, status: str = "200 OK", body: bytes = BODY) -> bytes:
    """Return a response with its length; an inference of the model unless changed."""
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}", "", ""]).encode() + body


class _Bench:
    """Base of the benches: at the end of its `with` block it checks that the wire has left no connection open."""

    wire: HttpWire | GrpcWire
    streams: list[Memory]
    watched: Watched

    def open_streams(self) -> list[Memory]:
        """Return the streams that are not closed, after a check that exactly these are watched."""
        found = [stream for stream in self.streams if not stream.closed]
        assert [stream.fd for stream in found] == sorted(self.watched.events)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.wire.close()
        assert self.open_streams() == []


class HttpBench(_Bench):
    """A wire, the server's ends of its connections, the watched events, and the ended rows: row, outcome, time."""

    def __init__(self, count: int = 0) -> None:
        self.addresses, self.watched = Addresses(), Watched()
        self.streams = self.addresses.streams
        self.ended: list[tuple[int, int, int]] = []
        self.wire = http_wire(
            self.addresses, lambda *ended: self.ended.append(ended), requests=REQUESTS, poller=self.watched
        )
        self.wire.open(count)
        self.connect()

    def connect(self) -> None:
        """Let connections become ready; as with an epoll, only watched events of a connection are reported."""
        for stream in list(self.streams):
            if self.watched.events.get(stream.fd, 0) & WRITE:
                self.wire.handle(stream.fd, WRITE)

    def of(self, row: int) -> Memory:
        stream = self.wire.in_flight[row].stream  # type: ignore[union-attr]
        assert isinstance(stream, Memory)
        return stream

    def give(self, stream: Memory, *pieces: bytes, events: int = READ) -> None:
        for piece in pieces:
            stream.coming.append(piece)
            self.wire.handle(stream.fd, events)


class GrpcBench(_Bench):
    """A wire with `count` connections, which are ready unless `settle` is false, and its ended rows."""

    def __init__(
        self,
        count: int = 0,
        model: ModelInfo = MODEL,
        *,
        messages: Sequence[bytes] = (b"hello",),
        settle: bool = True,
        version: str = "",
    ) -> None:
        self.ended: list[tuple[int, int, int]] = []
        self.addresses, self.watched = Addresses(), Watched()
        self.wire = grpc_wire(
            self.addresses,
            lambda *ended: self.ended.append(ended),
            model,
            messages=messages,
            poller=self.watched,
            version=version,
        )
        self.wire.open(count)
        self.streams = self.addresses.streams
        if settle:
            self.settle()

    def settle(self, settings: bytes = b"") -> None:
        """Let all connections that are being opened become ready, with these settings of the server."""
        for stream in list(self.streams):
            if stream.steps and self.watched.events.get(stream.fd, 0) & WRITE:
                self.wire.handle(stream.fd, WRITE)
                self.give(stream, frame(SETTINGS, 0, 0, settings))

    def give(self, stream: Memory, *pieces: bytes) -> None:
        for piece in pieces:
            stream.coming.append(piece)
            while stream.coming:  # a piece may be larger than what is read at once
                self.wire.handle(stream.fd, READ)

    def answer(self, stream: Memory, call: int, message: bytes | None = None) -> None:
        """Return the response to the connection's n-th call, with this prefixed message or the right one."""
        self.give(stream, grpc_answer(2 * call - 1, message))

    def of(self, row: int) -> Memory:
        """Return the connection of a row in flight."""
        connection = self.wire.in_flight[row]
        assert connection is not None
        return cast("Memory", connection.stream)


def grpc_answer(number: int, message: bytes | None = None, *, status: bytes = b"0") -> bytes:
    """Return a complete response to the call with this number, with this prefixed message or the right one."""
    head = frame(HEADERS, 4, number, block_of([(b":status", b"200")]))
    whole = right_message() if message is None else message
    parts = [whole[at : at + 16_384] for at in range(0, max(1, len(whole)), 16_384)]
    data = b"".join(frame(DATA, 0, number, part) for part in parts)
    return head + data + frame(HEADERS, 5, number, block_of([(b"grpc-status", status)]))


class Http2Bench:
    """A connection, the server's end of it, and the calls that ended: row, reset, call."""

    def __init__(self, *settings: tuple[int, int], most_kept: int = 5) -> None:
        self.stream = Memory(100)
        self.ended: list[tuple[int, bool, Call]] = []
        self.http2 = Http2Connection(
            cast("Any", self.stream),
            HEAD,
            ReadBuffer(),
            lambda call, reset: self.ended.append((call.row, reset, call)),
            most_kept,
        )
        self.give(settings_frame(*settings))

    def give(self, *frames: bytes) -> None:
        for data in frames:
            self.stream.coming.append(data)
            while self.stream.coming:
                self.http2.receive()

    def data(self) -> list[int]:
        """Return the sizes of the DATA frames so far."""
        return [len(payload) for kind, _, _, payload in self.stream.frames() if kind == DATA]


def settings_frame(*settings: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *setting) for setting in settings))


def widen(stream_id: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", more))
