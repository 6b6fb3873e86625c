"""HTTP/2 answers are read the same however the network cuts them up, and windows are never overrun."""

import itertools
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_wire import Memory
from wire_benches import Http2Bench, widen

from loadgen.wire.http2_frames import CONTINUATION, DATA, HEADERS, INITIAL_WINDOW, PING, block_of, frame
from loadgen.wire.http2_sending import grpc_message

OK_HEADERS = block_of([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK_TRAILERS = block_of([(b"grpc-status", b"0")])


def cut(data: bytes, places: list[Any]) -> list[Any]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    places=st.lists(st.integers(0, 5000), max_size=20),
    keep=st.booleans(),
)
@settings(deadline=None)
def test_interleaved_answers_however_they_are_cut(bodies: list[Any], places: list[Any], keep: bool) -> None:
    calls = range(len(bodies))
    parts = [frame(HEADERS, 0x4, 2 * call + 1, OK_HEADERS) for call in calls]
    parts += [frame(PING, 0, 0, b"12345678")]
    parts += [
        frame(DATA, 0x8, 2 * call + 1, b"\x03" + grpc_message(body) + b"pad") for call, body in enumerate(bodies)
    ]
    split = len(OK_TRAILERS) // 2
    for call in calls:
        parts.append(frame(HEADERS, 0x1, 2 * call + 1, OK_TRAILERS[:split]))
        parts.append(frame(CONTINUATION, 0x4, 2 * call + 1, OK_TRAILERS[split:]))
    bench = Http2Bench(most_kept=1000 if keep else 5)
    for call in calls:
        bench.http2.start(call, b"message")
    bench.give(*(piece for piece in cut(b"".join(parts), places) if piece))
    assert [(row, reset) for row, reset, _ in bench.ended] == [(call, False) for call in calls]
    for row, _, ended in bench.ended:
        assert dict(ended.fields)[b":status"] == b"200"
        assert dict(ended.fields)[b"grpc-status"] == b"0"
        assert ended.fault_of_frame() is None
        assert ended.answer == grpc_message(bodies[row])[: None if keep else 5]
    assert (PING, 1, 0, b"12345678") in bench.stream.frames()


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    window=st.integers(0, 200),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 100)), max_size=40),
    takes=st.integers(1, 50),
)
@settings(deadline=None)
def test_no_more_is_sent_than_the_windows_allow_and_in_the_end_all(
    sizes: list[Any], window: int, steps: list[Any], takes: int
) -> None:
    """The kernel takes a few bytes at a time."""

    class InParts(Memory):
        def send(self, data: bytes) -> int:
            return super().send(data[:takes])

    bench = Http2Bench((INITIAL_WINDOW, window))
    messages = {2 * number + 1: bytes([number]) * size for number, size in enumerate(sizes)}
    bench.stream.__class__ = InParts
    for number, message in enumerate(messages.values()):
        bench.http2.start(number, message)
    allowed = dict.fromkeys(messages, window)

    def sent() -> Counter[int]:
        return Counter(number for kind, _, number, data in bench.stream.frames() if kind == DATA for _ in data)

    for which, more in steps:
        number = 2 * (which % len(sizes)) + 1
        allowed[number] += more
        bench.give(widen(number, more))
        assert all(sent()[one] <= allowed[one] for one in allowed)
    bench.give(*(widen(number, 1000) for number in allowed))
    whole = dict.fromkeys(allowed, b"")
    for kind, _, number, payload in bench.stream.frames():
        if kind == DATA:
            whole[number] += payload
    assert whole == messages
    ends = [number for kind, flags, number, _ in bench.stream.frames() if kind == DATA and flags & 1]
    assert sorted(ends) == sorted(allowed)
