"""What a call makes of its message however it comes, and whether it keeps no more than it needs."""

import pytest
from wire_benches import Http2Bench

from loadgen.wire.http2_frames import DATA, HEADERS, frame
from loadgen.wire.http2_sending import Call


def taken(data: bytes, kept: int, step: int) -> Call:
    """Return the call whose answer had the data, in frames of `step` bytes."""
    bench = Http2Bench(most_kept=5 + kept)
    bench.http2.start(0, b"")
    parts = [frame(DATA, 0, 1, data[at : at + step]) for at in range(0, len(data), step)]
    bench.give(frame(HEADERS, 4, 1, b"\x88"), *parts, frame(HEADERS, 5, 1, b"\x88"))
    return bench.ended[0][2]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "status OK without a message"),
        (b"\0\0\0\0", "a message cut off in its prefix"),
        (b"\1\0\0\0\1x", "a compressed message, which was not asked for"),
        (b"\0\0\0\0\2x", "a message of 2 bytes, of which 1 came"),
        (b"\0\0\0\0\0x", "a message of 0 bytes, of which 1 came"),
        (b"\0\0\0\0\1x" + bytes(1000), "a message of 1 bytes, of which 1,001 came"),
        (b"\0\0\0\0\1x", None),
        (b"\0\0\0\0\0", None),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 6])
def test_what_is_wrong_with_a_message_is_told_however_it_came(data: bytes, fault: str | None, step: int) -> None:
    for kept in (0, 100):
        call = taken(data, kept, step)
        assert call.fault_of_frame() == fault
        assert len(call.answer) <= 5 + kept
