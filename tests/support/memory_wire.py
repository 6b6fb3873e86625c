"""Provide wires with connections in memory: the test is the server, and decides which ones are ready."""

from collections.abc import Sequence
from typing import Protocol, cast

from tritonclient.grpc.service_pb2 import ModelInferResponse

from loadgen.sending.prepared import AnyWire
from loadgen.traffic.model_info import ModelInfo, Tensor
from loadgen.wire import addresses as wire_addresses
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.grpc import GrpcWire
from loadgen.wire.http1 import HttpWire
from loadgen.wire.http2_frames import HEADERS, request_head
from loadgen.wire.http2_sending import grpc_message
from loadgen.wire.poller import READ, WRITE, Poller

HEAD = request_head([(b":method", b"POST"), (b":path", b"/x")])
MODEL = ModelInfo(
    name="m",
    inputs=(),
    outputs=(Tensor(name="y", datatype="FP32", shape=(-1, 2)),),
    max_batch_size=8,
)


class Finished(Protocol):
    """See `loadgen.wire.load_wire.Finished`."""

    def __call__(self, row: int, outcome: int, arrived_ns: int, /) -> None: ...


class Memory:
    """A connection with the test at the other end: it returns `coming`, one per read, for ever with `again`.

    All bytes arrive at the time 7. `room` is the number of bytes taken before it blocks, None: all; `steps` is the
    number of calls until it is connected. `broken` is the error that it raises once what came has been read.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.arrived_ns = 7
        self.hides_data = False
        self.place = 0
        self.coming: list[bytes] = []
        self.again = b""
        self.sent = bytearray()
        self.given = 0  # bytes that were read
        self.reads = 0
        self.room: int | None = None
        self.steps = 1
        self.broken: OSError | None = None
        self.closed = False
        self.emptied = 0  # number of calls that asked for all hidden bytes

    def fileno(self) -> int:
        return self.fd

    def connected(self) -> bool:
        self._check()
        self.steps = max(0, self.steps - 1)
        return self.steps == 0

    def wants(self) -> int:
        return READ if self.steps == 0 else WRITE

    def send(self, data: bytes) -> int:
        self._check()
        taken = bytes(data[: self.room])
        if not taken:
            raise BlockingIOError
        if self.room is not None:
            self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def recv_into(self, buffer: memoryview) -> int:
        assert not self.closed, "it was closed before"
        if not self.coming and not self.again:
            self._check()
        self.reads += 1
        if not self.coming and not self.again:
            raise BlockingIOError
        piece = self.coming.pop(0) if self.coming else self.again
        if len(piece) > len(buffer):
            self.coming.insert(0, piece[len(buffer) :])
            piece = piece[: len(buffer)]
        buffer[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Return the HTTP/2 frames sent after the preface: kind, flags, stream, payload. The last may be cut."""
        found, at = [], len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        while at < len(self.sent):
            end = at + 9 + int.from_bytes(self.sent[at : at + 3], "big")
            number = int.from_bytes(self.sent[at + 5 : at + 9], "big")
            found.append((self.sent[at + 3], self.sent[at + 4], number, bytes(self.sent[at + 9 : end])))
            at = end
        return found

    def calls(self) -> int:
        """Return the number of gRPC calls that arrived."""
        return sum(kind == HEADERS for kind, *_ in self.frames())

    def take_no_more(self) -> None:
        self.emptied += 1

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        assert not self.closed, "it was closed before"
        if self.broken is not None:
            raise self.broken


class Addresses:
    """Opens connections in memory, the first with the file descriptor 100. `refusal`: the error of opening one."""

    def __init__(self) -> None:
        self.streams: list[Memory] = []
        self.steps = 1
        self.hides_data = False
        self.refusal: OSError | None = None

    connections_min = 0

    def closed(self, stream: object, *, was_ready: bool) -> None:
        """As the real one, which counts."""

    def open(self) -> Memory:
        if self.refusal is not None:
            raise self.refusal
        stream = Memory(100 + len(self.streams))
        stream.steps, stream.hides_data = self.steps, self.hides_data
        self.streams.append(stream)
        return stream


class Watched:
    """A poller that never waits; `events` are the events that it would watch for, by file descriptor.

    It raises the same errors as an epoll.
    """

    def __init__(self) -> None:
        self.events: dict[int, int] = {}

    def add(self, fd: int, events: int) -> None:
        if fd in self.events:
            raise FileExistsError(fd)
        self.events[fd] = events

    def change(self, fd: int, events: int) -> None:
        if fd not in self.events:
            raise FileNotFoundError(fd)
        self.events[fd] = events

    def remove(self, fd: int) -> None:
        if self.events.pop(fd, None) is None:
            raise FileNotFoundError(fd)


def http_wire(
    addresses: Addresses,
    finished: Finished,
    model: ModelInfo = MODEL,
    *,
    requests: Sequence[bytes] = (b"hello",),
    poller: Watched | None = None,
    version: str = "",
) -> HttpWire:
    """Return a wire over HTTP/1.1 without connections."""
    return HttpWire(
        addresses=cast("wire_addresses.Addresses", addresses),
        requests=requests,
        expected=ExpectedAnswer(model, version=version),
        poller=cast("Poller", poller or Watched()),
        finished=finished,
    )


def grpc_wire(
    addresses: Addresses,
    finished: Finished,
    model: ModelInfo = MODEL,
    *,
    messages: Sequence[bytes] = (b"hello",),
    poller: Watched | None = None,
    version: str = "",
) -> GrpcWire:
    """Return a wire over gRPC without connections."""
    return GrpcWire(
        addresses=cast("wire_addresses.Addresses", addresses),
        head=HEAD,
        requests=[grpc_message(message) for message in messages],
        expected=ExpectedAnswer(model, version=version),
        poller=cast("Poller", poller or Watched()),
        finished=finished,
    )


def connect(wire: AnyWire, addresses: Addresses) -> None:
    """Let all connections become ready."""
    for stream in list(addresses.streams):
        wire.handle(stream.fd, WRITE)


def right_message(**changed: object) -> bytes:
    """Return a ModelInferResponse of the model with its prefix, with these changes. `raw` None: no raw outputs."""
    answer = ModelInferResponse(model_name="m", model_version="1")
    described = {"name": "y", "datatype": "FP32", "shape": [1, 2], "raw": bytes(8)} | changed
    raw = described.pop("raw")
    answer.outputs.add(**described)
    if raw is not None:
        answer.raw_output_contents.append(raw)
    return grpc_message(answer.SerializeToString())
