"""Wires whose connections are in memory: the test is the server, and says itself what is ready."""

from typing import Protocol, cast

from tritonclient.grpc.service_pb2 import ModelInferResponse

from loadgen.expected_answer import ExpectedAnswer
from loadgen.grpc_wire import GrpcWire, grpc_message
from loadgen.http2_frames import request_head
from loadgen.http_wire import HttpWire
from loadgen.model_info import ModelInfo, Tensor
from loadgen.poller import READ, WRITE, Poller
from loadgen.streams import Address
from loadgen.triton import LoadWire

HEAD = request_head([(b":method", b"POST"), (b":path", b"/x")])
MODEL = ModelInfo(
    name="m",
    inputs=(),
    outputs=(Tensor(name="y", datatype="FP32", shape=(-1, 2)),),
    max_batch_size=8,
)


class Finished(Protocol):
    """See `loadgen.send_loop.Finished`."""

    def __call__(self, row: int, outcome: int, arrived_ns: int, /) -> None: ...


class Memory:
    """A connection of which the test is the other end: it gives `coming`, one a read, for ever with `again`.

    It stamps all that comes with the time 7.
    """

    hides_data = False
    arrived_ns = 7

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.coming: list[bytes] = []
        self.again = b""
        self.sent = bytearray()
        self.reads = 0

    def fileno(self) -> int:
        return self.fd

    def connected(self) -> bool:
        return True

    def wants(self) -> int:
        return READ

    def send(self, data: bytes) -> int:
        self.sent += data
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        self.reads += 1
        if not self.coming and not self.again:
            raise BlockingIOError
        piece = self.coming.pop(0) if self.coming else self.again
        if len(piece) > len(buffer):
            self.coming.insert(0, piece[len(buffer) :])
            piece = piece[: len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def take_no_more(self) -> None: ...

    def close(self) -> None: ...


class Addresses:
    """Opens connections in memory, the first with the file descriptor 100."""

    def __init__(self) -> None:
        self.streams: list[Memory] = []

    def open(self) -> Memory:
        self.streams.append(Memory(100 + len(self.streams)))
        return self.streams[-1]


class Nobody:
    """A poller that is never asked."""

    def add(self, fd: int, events: int) -> None: ...
    def change(self, fd: int, events: int) -> None: ...
    def remove(self, fd: int) -> None: ...


def http_wire(addresses: Addresses, finished: Finished, model: ModelInfo = MODEL) -> HttpWire:
    """A wire over HTTP/1.1 without connections."""
    return HttpWire(
        address=cast("Address", addresses),
        requests=[b"hello"],
        expected=ExpectedAnswer(model),
        poller=cast("Poller", Nobody()),
        finished=finished,
    )


def grpc_wire(addresses: Addresses, finished: Finished, model: ModelInfo = MODEL) -> GrpcWire:
    """A wire over gRPC without connections."""
    return GrpcWire(
        address=cast("Address", addresses),
        head=HEAD,
        requests=[grpc_message(b"hello")],
        expected=ExpectedAnswer(model),
        poller=cast("Poller", Nobody()),
        finished=finished,
    )


def connect(wire: LoadWire, addresses: Addresses) -> None:
    """Let all connections become ready."""
    for stream in list(addresses.streams):
        wire.handle(stream.fd, WRITE)


def right_message(**changed: object) -> bytes:
    """A ModelInferResponse of the model with its prefix, but for what is changed. `raw` None: none."""
    answer = ModelInferResponse(model_name="m", model_version="1")
    described = {"name": "y", "datatype": "FP32", "shape": [1, 2], "raw": bytes(8)} | changed
    raw = described.pop("raw")
    answer.outputs.add(**described)
    if raw is not None:
        answer.raw_output_contents.append(raw)
    return grpc_message(answer.SerializeToString())
