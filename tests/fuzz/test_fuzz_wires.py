"""Whatever bytes a server sends, a wire counts an outcome, reads no more than its share, and keeps little."""

import itertools
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from fuzzing import fuzz
from header_bytes import indexed, literal
from hypothesis import strategies as st
from memory_wire import Addresses, Finished, connect, grpc_wire, http_wire, right_message
from strange_answers import BODIES
from strange_servers import inference

from loadgen.sending.prepared import AnyWire
from loadgen.status import outcome_name
from loadgen.wire.http2_frames import block_of, frame
from loadgen.wire.poller import READ

pytestmark = pytest.mark.long

MAX_BYTES = 64 << 20
MAX_READS = 8  # in one go, before the clock is looked at again
ROWS = 4
Make = Callable[[Addresses, Finished], AnyWire]

# A server's bytes: fragments in any order, cut anywhere, and then one piece for ever, or silence, or the end.
LINES = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 500 X", b"HTTP/1.0 200 OK", b"HTTP/1.1 100 Continue", b"HTTP/1.1 204 X",
     b"HTTP/1.1 2000 X", b"HTTP/2 200", b"", b":", b"Connection: close", b"Transfer-Encoding: chunked",
     b"Content-Type: text/html", b"0", b"1", b"-6", b"+6", b"0x6", b"1_0", b"5;x=y", b"fffffffff", b"hello"]
)  # fmt: skip
NUMBERS = st.integers(-2, 70) | st.sampled_from([10**6, 10**12, 10**400])
NAMES = st.sampled_from([b"Content-Length", b"Inference-Header-Content-Length"])
HTTP_FRAGMENTS = st.one_of(
    st.builds(lambda line: line + b"\r\n", LINES),
    st.builds(lambda name, number: b"%b: %d\r\n" % (name, number), NAMES, NUMBERS),
    st.just(inference()),
    st.sampled_from(list(BODIES.values())).map(lambda body: body[:2000]),
    st.sampled_from([b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"x" * 70_000]),
    st.binary(max_size=40),
)
FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b":status", b"grpc-status", b"grpc-message", b"content-type", b""]),
        st.sampled_from([b"200", b"0", b"13", b"404", b"-1", b"9" * 5000, b"%ff%1b", b"x"]),
    ),
    max_size=4,
)
BLOCKS = st.one_of(
    st.builds(block_of, FIELDS),
    st.builds(lambda fields: b"".join(literal(field, remember=True) for field in fields), FIELDS),
    st.builds(indexed, st.integers(0, 80)),
    st.binary(max_size=30),
)
MESSAGES = st.one_of(
    st.just(right_message()),
    st.builds(lambda size: b"\0" + struct.pack(">I", size), st.integers(0, (1 << 32) - 1)),
    st.binary(max_size=30),
    st.just(bytes(16_384)),
)
PAYLOADS = BLOCKS | MESSAGES | st.builds(struct.pack, st.just(">HI"), st.integers(0, 7), st.integers(0, 2**32 - 1))
FRAMES = st.builds(
    frame,
    st.sampled_from([0, 0, 0, 1, 1, 1, 3, 4, 5, 6, 7, 8, 9, 200]),
    st.sampled_from([0, 1, 4, 5, 8, 9, 13, 32, 37, 255]),
    st.sampled_from([1, 1, 1, 3, 5, 7, 0, 2, 2**31 - 1]),
    PAYLOADS,
)
RIGHT_GRPC = st.sampled_from([1, 3, 5, 7]).map(
    lambda stream: (
        frame(1, 4, stream, block_of([(b":status", b"200")]))
        + frame(0, 0, stream, right_message())
        + frame(1, 5, stream, block_of([(b"grpc-status", b"0")]))
    )
)
GRPC_FRAGMENTS = st.one_of(FRAMES, FRAMES, RIGHT_GRPC, st.binary(max_size=40))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def outcomes_of(make: Make, opening: bytes, fragments: list[bytes], places: list[int], then: bytes | None) -> int:
    """Give one connection after the other these bytes, and then the last piece for ever; None: its end."""
    addresses, ended = Addresses(), dict[int, int]()

    def finished(row: int, outcome: int, _arrived_ns: int) -> None:
        assert row not in ended, "a row ends once"
        assert outcome_name(outcome)
        ended[row] = outcome

    wire = make(addresses, finished)
    wire.open(1)
    connect(wire, addresses)
    for row in range(ROWS):
        wire.send(row)
    connect(wire, addresses)
    for stream in list(addresses.streams):
        stream.coming = cut(opening + b"".join(fragments), places)
        stream.coming += [b""] if then is None else []
        stream.again = then or b""
        for _ in range(len(stream.coming) + 20):
            before = stream.reads
            wire.handle(stream.fd, READ)
            assert stream.reads - before <= MAX_READS
    for row in list(wire.in_flight):  # the loop's time-out
        wire.give_up(row)
    assert not wire.in_flight
    assert (wire.error_example is not None) == any(ended.values())
    (wire.error_example or "").encode()
    wire.close()
    return len(ended)


@pytest.mark.parametrize(
    ("make", "opening", "fragments"),
    [(http_wire, b"", HTTP_FRAGMENTS), (grpc_wire, frame(4, 0, 0), GRPC_FRAGMENTS)],
    ids=["http", "grpc"],
)
def test_any_bytes_end_as_outcomes(make: Make, opening: bytes, fragments: st.SearchStrategy[bytes]) -> None:
    ends = 0

    def check(parts: list[bytes], places: list[int], then: bytes | None) -> None:
        nonlocal ends
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        ends += outcomes_of(make, opening, parts, places, then)
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < MAX_BYTES

    then = st.none() | st.just(b"") | st.builds(lambda part: part[:64] * 500, fragments)
    tracemalloc.start()
    try:
        calls = fuzz(check, st.lists(fragments, max_size=12), st.lists(st.integers(0, 5000), max_size=10), then)
    finally:
        tracemalloc.stop()
    assert ends > calls / 4  # most of what is drawn ends requests, and is not just waited for
