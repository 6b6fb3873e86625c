"""A call that is prepared once and sent again and again: its head, and its message in frames."""

import pytest
from memory_wire import HEAD

from loadgen.transport.http2_fast_path import PreparedCall
from loadgen.transport.http2_frames import DATA, HEADERS, frame


@pytest.mark.parametrize("size", [0, 10, 16_384, 16_385, 40_000])
def test_a_prepared_call_is_its_head_and_its_message_in_frames_that_any_server_takes(size: int) -> None:
    message = bytes(number % 251 for number in range(size))
    prepared = PreparedCall(HEAD, message)
    *parts, last = [message[at : at + 16_384] for at in range(0, size, 16_384)] or [b""]
    for number in (1, 0x01020304):
        data = [frame(DATA, 0, number, part) for part in parts] + [frame(DATA, 1, number, last)]
        assert prepared.numbered(number) == frame(HEADERS, 4, number, HEAD.later) + b"".join(data)
    assert (prepared.size, prepared.message()) == (size, message)
