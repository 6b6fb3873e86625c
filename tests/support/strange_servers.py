"""Run servers with one fault each, correct otherwise.

A `Strange` defines the response in place of the correct one to a query (`metadata`, `config`, `stats`) or to an
inference (`infer`), and `serving` runs it on its own port, in threads of this process.
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fake_triton import answer_body
from tritonclient.grpc import service_pb2 as pb

from loadgen.wire.http2_frames import HeaderDecoder, block_of, frame
from loadgen.wire.http2_sending import grpc_message

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
CONFIG = {"name": "m", "max_batch_size": 8, "input": [{"name": "x"}]}
COUNTERS = {"version": "1", "inference_count": 5, "execution_count": 5}
STATS = {"model_stats": [{**COUNTERS, "inference_stats": {"success": {"count": 5, "ns": 5000}}}]}


class Hang(Exception):
    """Send nothing more, and keep the connection."""


class Close(Exception):
    """Close the connection now."""


class Reset(Exception):
    """Close it so that the other end gets an error."""


Answer = bytes | type[Exception] | Callable[[socket.socket], None]
"""Bytes to send, an end, or a function that may do anything with the connection."""


@dataclass(frozen=True, kw_only=True)
class Strange:
    """One strange server. `after`: so many inferences are answered well before. `scheme` is http or grpc."""

    name: str
    scheme: str = "http"
    answers: dict[str, Any] = field(default_factory=dict)
    greeting: Answer | None = None
    after: int = 0


def http_answer(body: bytes, *fields: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, f"Content-Length: {len(body)}", "", ""]).encode() + body


def document(value: object) -> bytes:
    return http_answer(value if isinstance(value, bytes) else json.dumps(value).encode())


def inference() -> bytes:
    body, json_bytes = answer_body(2, "m")
    return http_answer(body, f"Inference-Header-Content-Length: {json_bytes}")


RIGHT_HTTP: dict[str, bytes] = {
    "metadata": document(METADATA),
    "config": document(CONFIG),
    "stats": document(STATS),
    "infer": inference(),
}


def drip(data: bytes, gap_s: float = 0.02) -> Callable[[socket.socket], None]:
    """Send byte after byte, repeatedly, for longer than any client waits."""

    def send(connection: socket.socket) -> None:
        for at in range(100_000):
            connection.sendall(data[at : at + 1] or data[-1:])
            time.sleep(gap_s)

    return send


def flood(begin: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Send one piece after the other without end, as fast as they are taken."""

    def send(connection: socket.socket) -> None:
        connection.sendall(begin)
        pieces = piece * max(1, 65536 // len(piece))
        while True:
            connection.sendall(pieces)

    return send


def grpc_answer(message: bytes | None, status: bytes | None = b"0", text: bytes = b"") -> Callable[[int], bytes]:
    """Return the frames of a complete response: headers, a message with its prefix, trailers."""
    trailers = [] if status is None else [(b"grpc-status", status)]
    trailers += [(b"grpc-message", text)] if text else []

    def frames(stream_id: int) -> bytes:
        head = block_of([(b":status", b"200"), (b"content-type", b"application/grpc")])
        whole = message or b""
        parts = [frame(DATA, 0, stream_id, whole[at : at + 16384]) for at in range(0, len(whole), 16384)]
        return (
            frame(HEADERS, 4, stream_id, head) + b"".join(parts) + frame(HEADERS, 5, stream_id, block_of(trailers))
        )

    return frames


def _right_grpc() -> dict[str, Callable[[int], bytes]]:
    metadata = pb.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
    metadata.outputs.add(name="y", datatype="FP32", shape=[-1, 2])
    config = pb.ModelConfigResponse()
    config.config.max_batch_size = 8
    statistics = pb.ModelStatisticsResponse()
    statistics.model_stats.add(version="1", inference_count=5)
    answer = pb.ModelInferResponse(model_name="m")
    answer.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    answer.raw_output_contents.append(bytes(8))
    messages = {"metadata": metadata, "config": config, "stats": statistics, "infer": answer}
    return {name: grpc_answer(grpc_message(one.SerializeToString())) for name, one in messages.items()}


RIGHT_GRPC = _right_grpc()
_METHODS = {
    "ModelMetadata": "metadata",
    "RepositoryIndex": "metadata",  # asked for if a server refuses the metadata
    "ModelConfig": "config",
    "ModelStatistics": "stats",
    "ModelInfer": "infer",
}


class _Server:
    def __init__(self, strange: Strange) -> None:
        self.strange = strange
        self.inferences = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.connections: list[socket.socket] = []
        self.closing = False

    def accept(self) -> None:
        while not self.closing:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.strange.greeting is not None:
                self.give(connection, self.strange.greeting)
            (self.http if self.strange.scheme == "http" else self.grpc)(connection)
        except Hang:
            return  # closed with the server
        except Reset:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        except (Close, OSError):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def give(self, connection: socket.socket, answer: Any) -> None:
        if isinstance(answer, bytes):
            connection.sendall(answer)
        elif isinstance(answer, type):
            raise answer
        else:
            answer(connection)

    def answer_to(self, question: str) -> Answer | None:
        if question == "infer":
            self.inferences += 1
            if self.inferences <= self.strange.after:
                return None
        return self.strange.answers.get(question)

    def http(self, connection: socket.socket) -> None:
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                data += self.more(connection)
            head, _, data = data.partition(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            length = int(lengths[0].partition(b":")[2]) if lengths else 0
            while len(data) < length:
                data += self.more(connection)
            data = data[length:]
            last = path.rpartition("/")[2]
            question = last if last in ("config", "stats", "infer") else "metadata"
            self.give(connection, self.answer_to(question) or RIGHT_HTTP[question])

    def grpc(self, connection: socket.socket) -> None:
        data, decoder, questions = b"", HeaderDecoder(), {}
        while len(data) < 24:
            data += self.more(connection)
        data = data[24:]
        connection.sendall(frame(SETTINGS, 0, 0))
        while True:
            while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
                data += self.more(connection)
            length, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            stream_id, payload = int.from_bytes(data[5:9], "big"), data[9 : 9 + length]
            data = data[9 + length :]
            if kind == HEADERS:
                path = dict(decoder.decode(payload))[b":path"].decode()
                questions[stream_id] = _METHODS[path.rpartition("/")[2]]
            if kind == DATA and flags & 1:
                question = questions.pop(stream_id)
                answer = self.answer_to(question)
                if answer is None:
                    connection.sendall(RIGHT_GRPC[question](stream_id))
                else:
                    self.give(connection, answer if isinstance(answer, type | bytes) else answer(stream_id))  # type: ignore[arg-type]

    def more(self, connection: socket.socket) -> bytes:
        data = connection.recv(1 << 16)
        if not data:
            raise Close
        return data


@contextmanager
def serving(strange: Strange) -> Iterator[str]:
    """Run a strange server during the block; yields its address."""
    server = _Server(strange)
    thread = threading.Thread(target=server.accept, daemon=True)
    thread.start()
    try:
        yield f"{strange.scheme}://127.0.0.1:{server.listener.getsockname()[1]}"
    finally:
        server.closing = True
        with contextlib.suppress(OSError):
            server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join(timeout=10)
        for connection in server.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
