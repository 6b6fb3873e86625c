"""Header blocks: whole ones of one frame or many, without what a frame holds besides (RFC 9113, 6.2 and 6.10)."""

import pytest
from header_bytes import literal

from loadgen.errors import MalformedAnswer
from loadgen.transport.http2_frames import HeaderBlock, HeaderBlocks

END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
STATUS, DONE = (b":status", b"200"), (b"grpc-status", b"0")
BLOCK = b"\x88\x00\x0bgrpc-status\x010"
"""Both fields as RFC 7541 spells them: the eighth of the static table, and one that is not to be remembered."""


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("first", [0, 1, 5, len(BLOCK)])
@pytest.mark.parametrize("second", [0, 1, 6, len(BLOCK)])
def test_a_block_is_one_however_many_frames_it_comes_in(first: int, second: int, ends: bool) -> None:
    """Whether the answer ends with it is said with its first frame, and of a later one it means nothing."""
    blocks, at = HeaderBlocks(), max(first, second)
    for stream in (3, 5):
        assert blocks.begin(stream, END_STREAM * ends, BLOCK[:first]) is None
        assert blocks.go_on(stream, END_STREAM * (not ends), BLOCK[first:at]) is None
        whole = blocks.go_on(stream, END_HEADERS, BLOCK[at:])
        assert whole == HeaderBlock(stream, (STATUS, DONE), ends)
    assert blocks.begin(7, END_HEADERS | END_STREAM * ends, BLOCK) == HeaderBlock(7, (STATUS, DONE), ends)


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
    assert HeaderBlocks().begin(1, flags | END_HEADERS, payload) == HeaderBlock(1, (STATUS, DONE), False)
    blocks = HeaderBlocks()
    assert blocks.begin(1, flags, payload) is None
    assert blocks.go_on(1, END_HEADERS | PADDED | PRIORITY, b"\x88") == HeaderBlock(
        1, (STATUS, DONE, STATUS), False
    )


@pytest.mark.parametrize("more", [0, 1])
def test_a_block_has_at_most_64_kib(more: int) -> None:
    field = (b"a", b"x" * 65_529)
    block = literal(field, remember=False)
    assert len(block) == 65_536
    blocks, quarters = HeaderBlocks(), [block[at : at + (1 << 14)] for at in range(0, 1 << 16, 1 << 14)]
    blocks.begin(1, 0, quarters[0])
    for quarter in quarters[1:3]:
        assert blocks.go_on(1, 0, quarter) is None
    if not more:
        assert blocks.go_on(1, END_HEADERS, quarters[3]) == HeaderBlock(1, (field,), False)
    else:
        assert blocks.go_on(1, 0, quarters[3]) is None
        with pytest.raises(MalformedAnswer, match="a header block of over 65,536 bytes"):
            blocks.go_on(1, 0, b"\x88")


@pytest.mark.parametrize("frames", [64, 65])
def test_a_block_has_at_most_64_frames_whatever_came_before_it(frames: int) -> None:
    blocks = HeaderBlocks()
    for stream in (1, 3):
        blocks.begin(stream, 0, b"\x88")
        for _ in range(62):
            assert blocks.go_on(stream, 0, b"") is None
        if stream == 1 or frames == 64:
            assert blocks.go_on(stream, END_HEADERS, b"") == HeaderBlock(stream, (STATUS,), False)
    if frames == 65:
        assert blocks.go_on(3, 0, b"") is None
        with pytest.raises(MalformedAnswer, match="or in over 64 frames"):
            blocks.go_on(3, END_HEADERS, b"")


def test_a_block_goes_on_on_its_own_stream_alone_and_not_after_its_end() -> None:
    blocks = HeaderBlocks()
    for begun in (False, True):
        if begun:
            blocks.begin(1, 0, BLOCK)
        with pytest.raises(MalformedAnswer, match="a header block goes on that never began"):
            blocks.go_on(3, END_HEADERS, b"")
    assert blocks.unfinished is not None
    assert blocks.go_on(1, END_HEADERS, b"") == HeaderBlock(1, (STATUS, DONE), False)
    assert blocks.unfinished is None
    with pytest.raises(MalformedAnswer, match="never began"):
        blocks.go_on(1, END_HEADERS, b"")


def test_headers_belong_to_a_stream() -> None:
    for flags in (0, END_HEADERS):
        with pytest.raises(MalformedAnswer, match="headers of no stream"):
            HeaderBlocks().begin(0, flags, BLOCK)


def test_a_block_may_point_to_the_fields_of_those_before() -> None:
    blocks = HeaderBlocks()
    blocks.begin(1, 0, literal(DONE, remember=True)[:4])
    blocks.go_on(1, END_HEADERS, literal(DONE, remember=True)[4:])
    assert blocks.begin(3, END_HEADERS | END_STREAM, b"\xbe\x88") == HeaderBlock(3, (DONE, STATUS), True)
