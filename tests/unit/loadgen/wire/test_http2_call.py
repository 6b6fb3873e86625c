"""What a call makes of its message however it comes, and whether it keeps no more than it needs."""

import pytest

from loadgen.errors import MalformedAnswer
from loadgen.wire.http2_sending import Call


def taken(data: bytes, kept: int, step: int) -> Call:
    """Return a call that took the data in steps."""
    call = Call(0, 0)
    for at in range(0, len(data), step):
        call.take(memoryview(data)[at : at + step], 5 + kept)
    return call


@pytest.mark.parametrize("kept", [0, 3, 258])
@pytest.mark.parametrize("length", [0, 1, 258])
@pytest.mark.parametrize("step", [1, 4, 6, 300])
def test_as_much_is_kept_as_is_wanted(length: int, step: int, kept: int) -> None:
    message = b"\0" + length.to_bytes(4, "big") + b"m" * length
    call = taken(message, kept, step)
    assert (call.answer, call.data_bytes) == (message[: 5 + kept], len(message))
    assert call.fault_of_frame() is None


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


def test_an_answer_has_at_most_eight_blocks_and_a_thousand_fields() -> None:
    call = Call(0, 0)
    for count in (993, 1, 1, 1, 1, 1, 1, 1):
        call.add_fields(((b"a", b"b"),) * count)
    assert len(call.fields) == 1000
    with pytest.raises(MalformedAnswer, match="over 8 header blocks or 1,000 fields"):
        call.add_fields(())
    call = Call(0, 0)
    call.add_fields(((b"a", b"b"),) * 1000)
    with pytest.raises(MalformedAnswer, match="over 8 header blocks or 1,000 fields"):
        call.add_fields(((b"c", b"d"),))
