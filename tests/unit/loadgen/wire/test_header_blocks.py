"""Header blocks: whole ones of one frame or many, without what a frame holds besides (RFC 9113, 6.2 and 6.10)."""

import pytest
from header_bytes import literal
from wire_benches import Http2Bench

from loadgen.errors import MalformedAnswer
from loadgen.wire.http2_frames import CONTINUATION, HEADERS, Field, frame

END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
STATUS, DONE = (b":status", b"200"), (b"grpc-status", b"0")
BLOCK = b"\x88\x00\x0bgrpc-status\x010"
"""Both fields as RFC 7541 spells them: the eighth of the static table, and one that is not to be remembered."""


def fields_of(*frames: bytes) -> list[tuple[Field, ...]]:
    """Return the headers of each answer that ended, of the calls 1, 3 and 5."""
    bench = Http2Bench()
    for row in range(3):
        bench.http2.start(row, b"")
    bench.give(*frames)
    return [call.fields for _, _, call in bench.ended]


@pytest.mark.parametrize("first", [0, 1, 5, len(BLOCK)])
@pytest.mark.parametrize("second", [0, 1, 6, len(BLOCK)])
def test_a_block_is_one_however_many_frames_it_comes_in(first: int, second: int) -> None:
    """Whether the answer ends with it is said with its first frame, and of a later one it means nothing."""
    at = max(first, second)
    for stream in (3, 5):
        parts = [frame(CONTINUATION, 0, stream, BLOCK[first:at]), frame(CONTINUATION, 4, stream, BLOCK[at:])]
        assert fields_of(frame(HEADERS, END_STREAM, stream, BLOCK[:first]), *parts) == [(STATUS, DONE)]
        assert fields_of(frame(HEADERS, 0, stream, BLOCK[:first]), *parts) == []


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0, BLOCK),
        (PADDED, b"\0" + BLOCK),
        (PADDED, b"\3" + BLOCK + b"abc"),
        (PRIORITY, b"\0\0\0\1\x0f" + BLOCK),
        (PADDED | PRIORITY, b"\2\x80\0\0\1\xff" + BLOCK + bytes(2)),
    ],
)
def test_padding_and_priority_are_no_part_of_a_block(flags: int, payload: bytes) -> None:
    assert fields_of(frame(HEADERS, flags | END_HEADERS | END_STREAM, 1, payload)) == [(STATUS, DONE)]
    begun = frame(HEADERS, flags | END_STREAM, 1, payload)
    rest = frame(CONTINUATION, END_HEADERS | PADDED | PRIORITY, 1, b"\x88")
    assert fields_of(begun, rest) == [(STATUS, DONE, STATUS)]


@pytest.mark.parametrize("more", [0, 1])
def test_a_block_has_at_most_64_kib(more: int) -> None:
    field = (b"a", b"x" * 65_529)
    block = literal(field, remember=False) + b"\x88" * more
    parts = [block[at : at + (1 << 14)] for at in range(0, len(block), 1 << 14)]
    frames = [frame(HEADERS, END_STREAM, 1, parts[0]), *(frame(CONTINUATION, 0, 1, part) for part in parts[1:])]
    if not more:
        assert fields_of(*frames, frame(CONTINUATION, END_HEADERS, 1)) == [(field,)]
    else:
        with pytest.raises(MalformedAnswer, match="a header block of over 65,536 bytes"):
            fields_of(*frames)


@pytest.mark.parametrize("more", [62, 63])
def test_a_block_has_at_most_64_frames_whatever_came_before_it(more: int) -> None:
    frames = [
        frame(HEADERS, END_STREAM, 1, b"\x88") + frame(CONTINUATION, 0, 1) * 62 + frame(CONTINUATION, 4, 1),
        frame(HEADERS, END_STREAM, 3, b"\x88") + frame(CONTINUATION, 0, 3) * more + frame(CONTINUATION, 4, 3),
    ]
    if more == 62:
        assert fields_of(*frames) == [(STATUS,), (STATUS,)]
    else:
        with pytest.raises(MalformedAnswer, match="or in over 64 frames"):
            fields_of(*frames)


def test_a_block_may_point_to_the_fields_of_those_before() -> None:
    remembered = literal(DONE, remember=True)
    frames = [frame(HEADERS, END_STREAM, 1, remembered[:4]), frame(CONTINUATION, END_HEADERS, 1, remembered[4:])]
    assert fields_of(*frames, frame(HEADERS, 5, 3, b"\xbe\x88")) == [(DONE,), (DONE, STATUS)]
