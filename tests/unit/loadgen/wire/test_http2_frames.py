"""Frames of HTTP/2 as they are on the wire, and what their payloads may say (RFC 9113, 4, 6.5 and 6.9)."""

import pytest
from memory_wire import HEAD
from wire_benches import Http2Bench

from loadgen.errors import MalformedAnswer
from loadgen.wire.http2_frames import HEADERS, frame, frame_head, number_in, settings_in, unpadded


def test_a_frame_begins_with_its_length_its_kind_its_flags_and_its_stream() -> None:
    assert frame(1, 0x24, 0x01020304, b"abc") == bytes.fromhex("000003 01 24 01020304 616263")
    assert frame_head(0x012345, 0, 1, 3) == bytes.fromhex("012345 00 01 00000003")
    assert frame(6, 0, 0) == bytes.fromhex("000000 06 00 00000000")


@pytest.mark.parametrize(
    ("payload", "settings"),
    [
        ("", []),
        ("0001 00000000", [(1, 0)]),  # no table
        ("0002 00000000 0003 00000000", [(2, 0), (3, 0)]),
        ("0003 ffffffff", [(3, (1 << 32) - 1)]),
        ("0004 7fffffff", [(4, (1 << 31) - 1)]),
        ("0005 00004000", [(5, 1 << 14)]),
        ("0005 00ffffff", [(5, (1 << 24) - 1)]),
        ("0006 00000000", [(6, 0)]),
        ("0006 ffffffff ffff 00000001", [(6, (1 << 32) - 1), (65_535, 1)]),
        ("0004 80000000", None),
        ("0005 00003fff", None),
        ("0005 01000000", None),
        ("0001 00001000 0005 00000000", None),
        ("0001 000000", None),
        ("0001 00000000 00", None),
    ],
)
def test_settings_are_those_of_the_payload_or_none_that_a_server_may_send(
    payload: str, settings: list[tuple[int, int]] | None
) -> None:
    if settings is None:
        with pytest.raises(MalformedAnswer, match="setting"):
            settings_in(bytes.fromhex(payload))
    else:
        assert settings_in(bytes.fromhex(payload)) == settings


@pytest.mark.parametrize(
    ("size", "exactly", "taken"), [(3, 4, 0), (4, 4, 1), (5, 4, 0), (3, None, 0), (9, None, 1)]
)
def test_a_number_has_31_bits_and_the_length_of_its_frame_is_right(
    size: int, exactly: int | None, taken: int
) -> None:
    payload = bytes.fromhex("ff0000010000000000")[:size]
    if taken:
        assert number_in(8, payload, exactly=exactly) == 0x7F000001
    else:
        with pytest.raises(MalformedAnswer, match=f"a frame of kind 8 with {size} bytes"):
            number_in(8, payload, exactly=exactly)


def test_padding_may_be_of_any_length_that_the_frame_has_room_for() -> None:
    assert unpadded(b"\0", 0x8) == b""
    assert unpadded(b"\xff" + b"x" * 300, 0x8) == b"x" * 45
    assert unpadded(b"\1x", 0x1) == b"\1x"
    with pytest.raises(MalformedAnswer, match="a frame is shorter than its padding"):
        unpadded(b"\1", 0x8)


@pytest.mark.parametrize(("size", "remembers"), [(0, False), (4095, False), (4096, True)])
def test_a_server_whose_table_is_too_small_is_sent_every_head_spelled_out(size: int, remembers: bool) -> None:
    """The first setting is the size of its table (RFC 9113, 6.5.2)."""
    bench = Http2Bench((1, size))
    for row in range(2):
        bench.http2.start(row, b"")
    heads = [payload for kind, _, _, payload in bench.stream.frames() if kind == HEADERS]
    assert heads == ([HEAD.first, HEAD.later] if remembers else [HEAD.plain, HEAD.plain])
