"""What a call makes of its message, byte by byte, and whether it asks and keeps no more than it needs."""

from collections.abc import Callable

import pytest
from memory_wire import HEAD
from wire_benches import Http2Bench, grpc_answer

from loadgen.errors import MalformedAnswer
from loadgen.transport.http2_call import Call
from loadgen.transport.http2_fast_path import PreparedCall


def asking(asked: list[int], keep: bool) -> Callable[[int], bool]:
    """Says each time whether to keep the message, and notes its length."""

    def wants(length: int) -> bool:
        asked.append(length)
        return keep

    return wants


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("length", [0, 1, 258])
@pytest.mark.parametrize("step", [1, 4, 6, 300])
def test_it_is_asked_once_and_nothing_is_kept_of_a_message_that_goes_on(
    length: int, step: int, keep: bool
) -> None:
    call, asked = Call(0, 0), list[int]()
    message = b"\0" + length.to_bytes(4, "big") + b"m" * length
    for at in range(0, len(message), step):
        call.take(message[at : at + step], asking(asked, keep))
    assert (call.answer, call.fault_of_frame()) == (message if keep else None, None)
    for size in (1, 1000):
        call.take(bytes(size), asking(asked, keep))
        assert call.answer is None
    assert asked == [length]
    assert call.fault_of_frame() == f"a message of {length} bytes, of which {length + 1001:,} came"


@pytest.mark.parametrize("compressed", [0, 1, 255])
@pytest.mark.parametrize("more", [0, 7, 258])
def test_the_beginning_of_a_message_that_nobody_wants_is_only_counted(compressed: int, more: int) -> None:
    call, asked = Call(0, 0), list[int]()
    data = bytes([compressed]) + b"\0\0\1\2" + bytes(more)
    assert call.skips(memoryview(data), asking(asked, False))
    assert (call.message_bytes, call.data_bytes, call.answer, asked) == (258, 5 + more, None, [258])
    if compressed:
        assert call.fault_of_frame() == "a compressed message, which was not asked for"
    else:
        assert call.fault_of_frame() == (None if more == 258 else f"a message of 258 bytes, of which {more} came")
    assert not call.skips(memoryview(data), asking(asked, False)), "only the beginning"


def test_what_is_wanted_or_has_no_whole_prefix_is_not_skipped() -> None:
    for data, keep in ((b"\0\0\0\0\1x", True), (b"\0\0\0\0", False)):
        call = Call(0, 0)
        assert not call.skips(memoryview(data), asking([], keep))
        assert call.data_bytes == 0


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


def test_answers_that_nobody_found_right_make_no_answer_known() -> None:
    bench = Http2Bench()
    for row in range(3):
        bench.http2.start(row, b"")
        bench.give(grpc_answer(2 * row + 1))
    assert bench.http2._shapes.by_length == {}
    assert not any(call.proven for _, _, call in bench.ended)


def test_a_known_answer_to_a_prepared_call_is_not_taken_apart() -> None:
    bench = Http2Bench()
    bench.http2._ended = lambda call, _reset: setattr(call, "proven", True)
    prepared = PreparedCall(HEAD, b"hello")
    for row in range(4):
        if row == 0:
            bench.http2.start(row, b"hello")
        else:
            assert bench.http2.start_prepared(row, prepared)
        if row == 2:
            bench.http2._act = lambda _data: pytest.fail("it was taken apart")  # type: ignore[assignment, method-assign]
        bench.give(grpc_answer(2 * row + 1))
        assert bench.http2.calls == {}
