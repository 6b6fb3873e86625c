"""A corpus of faults of servers: statuses, heads, bodies, documents, frames, ends and floods.

One or two of each kind, for what a whole load test makes of it. Which bytes are no answer is for the tests of the
wire.
"""

from typing import Any

from strange_grpc import OK, grpc_cases
from strange_servers import (
    CONFIG,
    COUNTERS,
    HEADERS,
    METADATA,
    PING,
    Close,
    Hang,
    Reset,
    Strange,
    document,
    drip,
    flood,
    http_answer,
    inference,
)

from loadgen.wire.http2_frames import frame

DEEP = b"[" * 200_000
SURROGATE = b'{"error":"\\ud800 half"}'
_LONG = b"a" * 100_000


_BIG_ERROR = http_answer(b"x" * (17 << 20), status="500 X")
_SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n "
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1"


def _with(entry: Any, **changed: object) -> dict[str, Any]:
    return {key: value for key, value in {**entry, **changed}.items() if value is not ...}


def _input(**changed: object) -> dict[str, Any]:
    return _with(METADATA, inputs=[_with(METADATA["inputs"][0], **changed)])


STATUSES = [
    "101 Switching Protocols",
    "204 No Content",
    "302 Found",
    "401 Who",
    "404 None",
    "500 Broken",
    "600 Odd",
]

WIRE: dict[str, Any] = {
    "nothing": Close,
    "a reset": Reset,
    "no head": b"hello\r\n\r\n",
    "tls": b"\x15\x03\x01\x00\x02\x02\x46" * 50,
    "http/2": b"HTTP/2 200\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + _LONG,
    "a head of a megabyte": b"HTTP/1.1 200 OK\r\nX: " + _LONG * 10 + b"\r\n\r\n",
    "ten thousand headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -6\r\n\r\n",
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length of an exabyte, then the end": [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", Close],
    "more than the length": http_answer(b"hello") + b"more",
    "less than the length": [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello", Close],
    "a JSON part longer than the body": http_answer(b"{}", "Inference-Header-Content-Length: 900"),
    "a JSON part of a terabyte": http_answer(b"{}", "Inference-Header-Content-Length: 1000000000000"),
    "interim answers without end": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body without end": flood(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000),
    "chunks without end": flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "trailers without end": flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    "a chunk's line without end": flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1"),
    "headers without end": flood(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    **{
        f"a chunk of size {size.decode()!r}": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + size + b"\r\nhello!\r\n0\r\n\r\n"
        for size in (b"-6", b"f" * 40)
    },
}  # fmt: skip

BODIES: dict[str, bytes] = {
    "html": b"<html><body>Sign in</body></html>",
    "a JSON error": b'{"error":"no"}',
    "half a character in an error": SURROGATE,
    "bytes that are no text": b"\xff\xfe\xfd",
    "JSON nested 200,000 deep": DEEP,
    "null": b"null",
    "NaN": b"NaN",
    "a number of 10,000 digits": b"9" * 10_000,
    "no outputs": b'{"outputs":[]}',
    "an output that is none": b'{"outputs":[null]}',
    "nothing for numbers": b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[null,null]}]}',
    "no rows": b'{"outputs":[{"name":"y","datatype":"FP32","shape":[0,2],"data":[]}]}',
    "data nested deep": b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":' + DEEP,
    "a shape of 5,000 digits": b'{"outputs":[{"name":"y","datatype":"FP32","shape":['
    + b"9" * 4000
    + b'],"data":[]}]}',
    "a rank of 1,000": b'{"outputs":[{"name":"y","datatype":"FP32","shape":[' + b"1," * 999 + b'1],"data":[1]}]}',
}

METADATA_VARIANTS: dict[str, Any] = {
    "no name": _with(METADATA, name=...),
    "half a character for a name": _with(METADATA, name="\ud800"),
    "inputs that are null": _with(METADATA, inputs=None),
    "an input that is a text": _with(METADATA, inputs=["x"]),
    "100,000 inputs": _with(METADATA, inputs=METADATA["inputs"] * 100_000),  # type: ignore[operator]
    "an input called [/nope]": _input(name="[/nope]"),
    "an input with half a character": _input(name="\udcff"),
    "an input of another type": _input(datatype="FP8"),
    "no shape": _input(shape=...),
    "a size of 1e12": _input(shape=[-1, 10**12]),
    "a size of 4e8": _input(shape=[-1, 4 * 10**8]),
    "a size of 1e400": _input(shape=[-1, 10**400]),
    "a size of NaN": _input(shape=[-1, float("nan")]),
    "a rank of 33": _input(shape=[1] * 33),
    "free sizes": _input(shape=[-1, -1, -1]),
    "texts without number": _input(datatype="BYTES", shape=[-1, 10**9]),
    "an output of 1e18 values": _with(METADATA, outputs=[_with(METADATA["outputs"][0], shape=[-1, 10**18])]),
}

CONFIG_VARIANTS: dict[str, Any] = {
    "a list": [1],
    "a batch of 1e30": _with(CONFIG, max_batch_size=10**30),
    "an input with a list for a name": _with(CONFIG, input=[{"name": [1], "optional": True}]),
    "every input optional": _with(CONFIG, input=[{"name": "x", "optional": True}]),
    "nested 200,000 deep": DEEP,
}

STATS_VARIANTS: dict[str, Any] = {
    "null": None,
    "counts in words": {"model_stats": [_with(COUNTERS, inference_count="many")]},
    "counts of 1e400": {"model_stats": [_with(COUNTERS, inference_count=10**400)]},
    "stages that are a list": {"model_stats": [_with(COUNTERS, inference_stats=[1])]},
    "nested 200,000 deep": DEEP,
    "no text": b"\xff\xfe",
}


def _http() -> list[Strange]:
    found = []
    for status in STATUSES:
        for question in ("metadata", "infer"):
            answer = http_answer(b"" if status[:3] == "204" else b'{"error":"so"}', status=status)
            found.append(Strange(name=f"{question}: {status}", answers={question: answer}))
    found += [Strange(name=f"metadata: {name}", answers={"metadata": _some(what)}) for name, what in WIRE.items()]
    for after in (0, 1):
        when = "at first" if after == 0 else "later"
        found += [
            Strange(name=f"infer, {when}: {name}", answers={"infer": _some(what)}, after=after)
            for name, what in WIRE.items()
        ]
        found += [
            Strange(name=f"infer, {when}: {name}", answers={"infer": http_answer(body)}, after=after)
            for name, body in BODIES.items()
        ]
    found += [
        Strange(name=f"metadata: {name}", answers={"metadata": http_answer(body)}) for name, body in BODIES.items()
    ]
    for question, variants in (
        ("metadata", METADATA_VARIANTS), ("config", CONFIG_VARIANTS), ("stats", STATS_VARIANTS),
    ):  # fmt: skip
        found += [
            Strange(name=f"{question}: {name}", answers={question: document(value)})
            for name, value in variants.items()
        ]
    found += [
        Strange(name="metadata: 17 MiB", answers={"metadata": document(b'"' + b"x" * (17 << 20) + b'"')}),
        Strange(name="metadata: an error of 17 MiB", answers={"metadata": _BIG_ERROR}),
        Strange(name="infer, at first: an error of 17 MiB", answers={"infer": _BIG_ERROR}),
        Strange(name="greeting: hello", greeting=b"220 hello\r\n"),
        Strange(name="greeting: an answer unasked", greeting=inference()),
        Strange(name="greeting: the end", greeting=Close),
        Strange(name="greeting: a reset", greeting=Reset),
        Strange(name="greeting: a flood", greeting=flood(b"", b"x" * 1000)),
    ]  # fmt: skip
    return found


def _some(what: Any) -> Any:
    """An answer; a list is bytes and then an end."""
    if not isinstance(what, list):
        return what

    def send(connection: Any) -> None:
        connection.sendall(what[0])
        raise what[1]

    return send


SLOW = [
    Strange(name="metadata: a head in drips", answers={"metadata": drip(b"HTTP/1.1 200 OK\r\nX: a")}),
    Strange(name="metadata: a body in drips", answers={"metadata": drip(_SIZED)}),
    Strange(name="metadata: chunks in drips", answers={"metadata": drip(_CHUNKED)}),
    Strange(name="metadata: no answer", answers={"metadata": Hang}),
    Strange(name="metadata: no answer", scheme="grpc", answers={"metadata": Hang}),
    Strange(name="metadata: frames in drips", scheme="grpc",
            answers={"metadata": lambda i: drip(frame(PING, 0, 0, bytes(8)) * 9999)}),
    Strange(name="metadata: headers of no end in drips", scheme="grpc",
            answers={"metadata": lambda i: drip(frame(HEADERS, 0, i, OK) + b"\0\x40\0\x09" + bytes(5))}),
    Strange(name="stats: a body in drips", answers={"stats": drip(_SIZED)}),
]  # fmt: skip
"""Requests to these servers end by the deadline of ten seconds, not before."""

QUICK = [*_http(), *grpc_cases()]
assert len({(one.scheme, one.name) for one in QUICK}) == len(QUICK)
