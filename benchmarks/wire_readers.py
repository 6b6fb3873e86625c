"""Compare our readers of responses with httptools and h2, in memory: CPU time, and the responses they refuse.

    pip install h2 httptools
    python benchmarks/wire_readers.py [--repeats 9]

Prints the CPU time per response, as the median of the repeats, which take turns. HTTP: a response of 1 kB is read.
gRPC: a call of 1 kB is encoded, and its response is read. There is no network in these figures. Then it prints
which malformed HTTP responses httptools and our reader accept as complete.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from loadgen.clients.grpc import INFER, grpc_head, grpc_message
from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.spec.target import Target
from loadgen.transport.hpack import block_of
from loadgen.transport.http1_response import AnswerReader, Head, ReadBuffer
from loadgen.transport.http2 import Http2Connection
from loadgen.transport.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, WINDOW_UPDATE, frame
from loadgen.transport.http2_sending import Call

CALLS = 5000  # per repeat
_SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: "
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "more bytes than its length": _SIZED + b"2\r\n\r\n{}more",
    "two responses to one request": (_SIZED + b"2\r\n\r\n{}") * 2,
    "two lengths": _SIZED + b"2\r\nContent-Length: 3\r\n\r\n{} ",
    "a length with a sign": _SIZED + b"+2\r\n\r\n{}",
    "a length with an underscore": _SIZED + b"1_0\r\n\r\n" + b" " * 10,
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a status under 100": b"HTTP/1.1 020 OK\r\nContent-Length: 2\r\n\r\n{}",
    "another protocol (101)": b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "a head of 1 MB": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "10,000 interim responses": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + _SIZED + b"2\r\n\r\n{}",
    "a tensor offset beyond the body": _SIZED + b"2\r\nInference-Header-Content-Length: 900\r\n\r\n{}",
    "a chunk size with a sign": _CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than its size": _CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "20,000 chunks of one byte": _CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
    "a chunk extension of 1 MB": _CHUNKED + b"2;" + b"a" * 1_000_000 + b"\r\n{}\r\n0\r\n\r\n",
    "trailers of 1 MB": _CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 170_000 + b"\r\n",
}


_MESSAGE = grpc_message(bytes(1000))
_HTTP_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: 137\r\nContent-Length: 1137\r\n\r\n" + bytes(1137)
)
_STATUS = block_of([(b":status", b"200"), (b"content-type", b"application/grpc")])
_DONE = block_of([(b"grpc-status", b"0")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    print_costs(parser.parse_args().repeats)
    print_malformed()


def print_costs(repeats: int) -> None:
    """Print one line per reader."""
    calls = {
        "HTTP: ours, a head seen before": http(AnswerReader),
        "HTTP: httptools": http(HttptoolsReader),
        "gRPC: ours": grpc(),
        "gRPC: h2": h2(),
    }
    costs: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # the first is a warm-up
        for name, call in calls.items():
            before = time.process_time()
            for _ in range(CALLS):
                call()
            costs[name].append((time.process_time() - before) / CALLS * 1e6)
    print("| reader | CPU us per response | lowest to highest |")
    print("|---|---|---|")
    for name, (_, *runs) in costs.items():
        print(f"| {name} | {statistics.median(runs):.1f} | {min(runs):.1f} to {max(runs):.1f} |")


def http(make: Callable[[ReadBuffer], Any]) -> Callable[[], None]:
    stream = Pieces(b"")
    reader = make(ReadBuffer())

    def call() -> None:
        stream.data = _HTTP_RESPONSE
        assert reader.read(stream).status == 200

    return call


def grpc() -> Callable[[], None]:
    head = grpc_head(Target(url="grpc://localhost:1", model_name="m"), INFER)
    stream = Pieces(frame(SETTINGS, 0, 0))
    ended: list[Call] = []

    def note(call: Call, _reset: bool) -> None:
        assert call.fields[-1] == (b"grpc-status", b"0")
        ended.append(call)

    connection: Any = Http2Connection(stream, head, ReadBuffer(), note, 1 << 16)  # type: ignore[arg-type]
    connection.receive()
    numbers = iter(range(1, 1 << 31, 2))

    def call() -> None:
        connection.start(0, _MESSAGE)
        stream.data = response(next(numbers))
        connection.receive()
        assert ended.pop()  # type: ignore[truthy-bool]

    return call


def h2() -> Callable[[], None]:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived

    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    connection.receive_data(frame(SETTINGS, 0, 0))
    connection.data_to_send()
    head = [
        (":method", "POST"), (":scheme", "http"), (":path", INFER), (":authority", "localhost:1"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "tritune"),
    ]  # fmt: skip

    def call() -> None:
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, head)
        connection.send_data(stream, _MESSAGE, end_stream=True)
        connection.data_to_send()
        for event in connection.receive_data(response(stream)):
            if isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, stream)

    return call


def response(number: int) -> bytes:
    """Return a complete response to the call with this number; the server has taken the message."""
    taken = frame(WINDOW_UPDATE, 0, 0, len(_MESSAGE).to_bytes(4, "big"))
    parts = ((HEADERS, END_HEADERS, _STATUS), (DATA, 0, _MESSAGE), (HEADERS, END_HEADERS | END_STREAM, _DONE))
    return taken + b"".join(frame(kind, flags, number, payload) for kind, flags, payload in parts)


class HttptoolsReader:
    """Does the work of `AnswerReader` for correct responses. A known list of headers is not parsed again."""

    heads: dict[tuple[bytes, ...], Head] = {}  # noqa: RUF012

    def __init__(self, buffer: ReadBuffer) -> None:
        import httptools

        self._buffer = buffer
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[bytes] = []
        self._body: list[bytes] = []
        self._whole = self._keep_alive = False
        self.body, self.size = b"", 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += name, value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._whole = self._parser.get_status_code() >= 200
        self._keep_alive = self._parser.should_keep_alive()
        if not self._whole:
            self._fields.clear()

    def read(self, stream: Any) -> Head | None:
        count = stream.recv_into(self._buffer.view)
        self._buffer.received(count)
        if not count:
            raise ClosedEarly("closed")
        self._parser.feed_data(self._buffer.view[:count])
        if not self._whole:
            return None
        self._whole = False
        self.body = b"".join(self._body)
        self.size = len(self.body)
        key = tuple(self._fields)
        self._fields.clear()
        self._body.clear()
        head = self.heads.get(key)
        if head is None:
            fields = dict(zip([name.lower() for name in key[::2]], key[1::2], strict=True))
            json_bytes = fields.get(b"inference-header-content-length")
            head = self.heads[key] = Head(
                self._parser.get_status_code(),
                self.size,
                chunked=False,
                keep_alive=self._keep_alive,
                content_type=fields.get(b"content-type", b"").decode(),
                json_bytes=None if json_bytes is None else int(json_bytes),
            )
        self.body = self.body[: head.json_bytes]
        return head


class Pieces:
    """A stream that returns these bytes, and accepts any."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv_into(self, view: memoryview) -> int:
        if not self.data:
            raise BlockingIOError
        count = min(len(self.data), 65_536)
        view[:count], self.data = self.data[:count], self.data[count:]
        return count

    def send(self, data: bytes) -> int:
        return len(data)


def print_malformed() -> None:
    """Print one line per malformed response, with the readers that accept it as complete."""
    import httptools

    print("| response | httptools | ours |")
    print("|---|---|---|")
    for name, data in MALFORMED.items():
        verdicts = []
        for make in (HttptoolsReader, AnswerReader):
            reader, stream, verdict = make(ReadBuffer()), Pieces(data), "waits for more"
            try:
                while verdict == "waits for more":
                    if reader.read(stream) is not None:  # type: ignore[arg-type]
                        verdict = "taken"
            except BlockingIOError:
                pass
            except (MalformedAnswer, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                verdict = f"refused ({type(error).__name__})"
            verdicts.append(verdict)
        print(f"| {name} | {verdicts[0]} | {verdicts[1]} |")


if __name__ == "__main__":
    main()
