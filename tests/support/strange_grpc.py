"""The part of the corpus of faults that gRPC servers have: messages, frames, heads and ends."""

import struct
from typing import Any

from header_bytes import literal
from strange_servers import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    RIGHT_GRPC,
    RIGHT_HTTP,
    RST,
    SETTINGS,
    WINDOW,
    Close,
    Reset,
    Strange,
    flood,
    grpc_answer,
)
from tritonclient.grpc import service_pb2 as pb

from loadgen.wire.http2_frames import block_of, frame
from loadgen.wire.http2_sending import grpc_message

OK = block_of([(b":status", b"200")])


def _infer(**changed: object) -> bytes:
    answer = pb.ModelInferResponse(model_name="m")
    described = {"name": "y", "datatype": "FP32", "shape": [1, 2], "raw": bytes(8)} | changed
    raw = described.pop("raw")
    answer.outputs.add(**described)
    answer.raw_output_contents.append(raw)
    return grpc_message(answer.SerializeToString())


def _each(payload: bytes, kind: int, flags: int = 0, *, stream: int | None = None) -> object:
    """A frame on the call's stream, or on this one."""
    return lambda stream_id: frame(kind, flags, stream_id if stream is None else stream, payload)


GRPC: dict[str, Any] = {
    "nothing": Close,
    "a reset": Reset,
    "http/1.1": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "a frame of 16 MiB": b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100),
    "no message": grpc_answer(None),
    "a message cut off": grpc_answer(_infer()[:-3]),
    "two messages": grpc_answer(_infer() * 2),
    "a message of 4 GiB": grpc_answer(b"\0\xff\xff\xff\xff"),
    "another message": grpc_answer(grpc_message(b"\xff" * 40)),
    "no status": grpc_answer(_infer(), status=None),
    "a status of 5,000 digits": grpc_answer(_infer(), status=b"9" * 5000),
    "an error that is no text": grpc_answer(None, status=b"13", text=b"%ff%fe\xff"),
    "an error with escapes": grpc_answer(None, status=b"13", text=b"%1b[2Jgone"),
    "half a character in an error": grpc_answer(None, status=b"13", text=b"%ed%a0%80"),
    "headers of http 404": lambda i: frame(HEADERS, 5, i, block_of([(b":status", b"404")])),
    "headers that are none": _each(b"\xff\xff\xff\xff\xff\xff", HEADERS, 5),
    "headers cut off": _each(literal((b"a", b"b" * 50), remember=False)[:-9], HEADERS, 5),
    "a head that is interrupted": lambda i: frame(HEADERS, 0, i, OK) + frame(DATA, 0, i, b"x"),
    "continuations without end": lambda i: flood(frame(HEADERS, 0, i, OK), frame(CONTINUATION, 0, i, b"")),
    "continuations of a megabyte": lambda i: flood(
        frame(HEADERS, 0, i, OK), frame(CONTINUATION, 0, i, bytes(16000))
    ),
    "data without end": lambda i: flood(frame(HEADERS, 4, i, OK), frame(DATA, 0, i, bytes(16000))),
    "empty data without end": lambda i: flood(frame(HEADERS, 4, i, OK), frame(DATA, 0, i, b"")),
    "headers without end": lambda i: flood(b"", frame(HEADERS, 4, i, OK)),
    "pings without end": lambda i: flood(b"", frame(PING, 0, 0, bytes(8))),
    "settings without end": lambda i: flood(b"", frame(SETTINGS, 0, 0)),
    "windows without end": lambda i: flood(b"", frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30))),
    "a goodbye of three bytes": _each(b"123", GOAWAY, stream=0),
    "a goodbye": _each(struct.pack(">II", 0, 2), GOAWAY, stream=0),
    "a reset call": _each(struct.pack(">I", 7), RST),
    "no calls allowed": _each(struct.pack(">HI", 3, 0), SETTINGS, stream=0),
    "a window of 4 GiB": _each(struct.pack(">HI", 4, (1 << 32) - 1), SETTINGS, stream=0),
    "no window": _each(struct.pack(">HI", 4, 0), SETTINGS, stream=0),
    "a table of 4 GiB": _each(struct.pack(">HI", 1, (1 << 32) - 1), SETTINGS, stream=0),
}

GRPC_INFER: dict[str, Any] = {
    "another output": grpc_answer(_infer(name="other")),
    "a size that its bytes have not": grpc_answer(_infer(raw=bytes(7))),
    "a size below zero": grpc_answer(_infer(shape=[-1, 2])),
    "sizes of 2 to the 62": grpc_answer(_infer(shape=[1 << 62, 2])),
}


def grpc_cases() -> list[Strange]:
    found = []
    for name, what in GRPC.items():
        found.append(Strange(name=f"metadata: {name}", scheme="grpc", answers={"metadata": what}))
    for after in (0, 1):
        when = "at first" if after == 0 else "later"
        found += [
            Strange(name=f"infer, {when}: {name}", scheme="grpc", answers={"infer": what}, after=after)
            for name, what in (GRPC | GRPC_INFER).items()
        ]
    found += [
        Strange(name="stats: another message", scheme="grpc", answers={"stats": GRPC["another message"]}),
        Strange(name="stats: no message", scheme="grpc", answers={"stats": GRPC["no message"]}),
        Strange(name="greeting: http/1.1", scheme="grpc", greeting=RIGHT_HTTP["metadata"]),
        Strange(name="greeting: zeros", scheme="grpc", greeting=bytes(1000)),
        Strange(name="greeting: the end", scheme="grpc", greeting=Close),
        Strange(name="greeting: a reset", scheme="grpc", greeting=Reset),
        Strange(name="greeting: an answer unasked", scheme="grpc", greeting=RIGHT_GRPC["infer"](1)),
    ]
    return found
