"""Answers that are known by their shape, and what only looks like one."""

import struct

import pytest
from header_bytes import literal
from memory_wire import right_message
from wire_benches import GrpcBench, Http2Bench, grpc_answer, widen

from loadgen.clients.grpc import grpc_message
from loadgen.status import MALFORMED, OK
from loadgen.transport.hpack import HeaderDecoder, block_of
from loadgen.transport.http2_call import Call
from loadgen.transport.http2_fast_path import shape_of
from loadgen.transport.http2_frames import DATA, HEADERS, INITIAL_WINDOW, PING, frame

STATUS = block_of([(b":status", b"200")])
DONE = block_of([(b"grpc-status", b"0")])


WIDENED = widen(0, 70_000)


@pytest.mark.parametrize(
    ("data", "stream_id", "window"),
    [
        (grpc_answer(5), 5, 0),
        (WIDENED + grpc_answer(5) + WIDENED, 5, 140_000),
        (grpc_answer(7).replace(STATUS, STATUS), 7, 0),
    ],
)
def test_the_shape_of_an_answer_fits_the_next_one_but_for_its_number(
    data: bytes, stream_id: int, window: int
) -> None:
    shape = shape_of(memoryview(data), HeaderDecoder().decode)
    assert shape is not None
    assert shape.stream_of(data) == stream_id  # type: ignore[arg-type]
    assert (shape.window, shape.data_bytes) == (window, len(right_message()))
    assert shape.fields == ((b":status", b"200"), (b"grpc-status", b"0"))
    other = data.replace(struct.pack(">I", stream_id), struct.pack(">I", 999))
    assert shape.stream_of(bytearray(other)) == 999
    message = data.index(right_message())
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        inside = message + 5 <= at < message + len(right_message())
        assert shape.stream_of(changed) == (stream_id if inside else 0), "all but the message is told apart"


ANSWER = grpc_answer(1)
HEAD_OF_IT, BODY_OF_IT = frame(HEADERS, 4, 1, STATUS), frame(DATA, 0, 1, right_message())
END_OF_IT = frame(HEADERS, 5, 1, DONE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        ANSWER[:-1],
        ANSWER + b"x",
        ANSWER + ANSWER,
        HEAD_OF_IT + BODY_OF_IT,
        BODY_OF_IT + END_OF_IT,
        END_OF_IT,
        HEAD_OF_IT + HEAD_OF_IT + END_OF_IT,
        HEAD_OF_IT + frame(DATA, 8, 1, b"\0" + right_message()) + END_OF_IT,
        HEAD_OF_IT + frame(DATA, 1, 1, right_message()),
        HEAD_OF_IT + frame(DATA, 0, 3, right_message()) + END_OF_IT,
        HEAD_OF_IT + BODY_OF_IT + frame(HEADERS, 5, 3, DONE),
        HEAD_OF_IT + frame(PING, 0, 0, bytes(8)) + BODY_OF_IT + END_OF_IT,
        ANSWER + widen(0, 1)[:-1],
        ANSWER + widen(1, 1),
        frame(HEADERS, 0, 1, STATUS) + BODY_OF_IT + END_OF_IT,
    ],
)
def test_what_is_not_one_whole_answer_in_its_usual_frames_has_no_shape(data: bytes) -> None:
    assert shape_of(memoryview(data), HeaderDecoder().decode) is None


def test_an_answer_of_many_bytes_in_many_frames_has_a_shape() -> None:
    message = grpc_message(bytes(40_000))
    parts = [frame(DATA, 0, 1, message[at : at + 16_384]) for at in range(0, len(message), 16_384)]
    data = b"".join((HEAD_OF_IT, *parts, END_OF_IT))
    shape = shape_of(memoryview(data), HeaderDecoder().decode)
    assert shape is not None
    assert (shape.stream_of(bytearray(data)), shape.data_bytes) == (1, 40_005)


@pytest.mark.parametrize("first", [5, 20])
def test_of_a_message_in_two_frames_the_first_five_bytes_are_told_apart(first: int) -> None:
    message = right_message()
    data = HEAD_OF_IT + frame(DATA, 0, 1, message[:first]) + frame(DATA, 0, 1, message[first:]) + END_OF_IT
    shape = shape_of(memoryview(data), HeaderDecoder().decode)
    assert shape is not None
    assert shape.data_bytes == len(message)
    known = [*range(len(HEAD_OF_IT) + 9 + 5), *range(len(data) - len(END_OF_IT), len(data))]
    known += range(len(HEAD_OF_IT) + 9 + first, len(HEAD_OF_IT) + 18 + first)  # the head of the second frame
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        assert shape.stream_of(changed) == (0 if at in known else 1)


@pytest.mark.parametrize("first", [1, 4, 5, 20])
@pytest.mark.parametrize("at", [0, 4])
def test_a_wrong_message_is_one_however_its_first_bytes_are_cut_after_right_ones(first: int, at: int) -> None:
    """It says that it is compressed, or another length; its frames are as long as those of the answers before."""
    wrong = bytearray(right_message())
    wrong[at] ^= 1
    with GrpcBench(1) as bench:
        for row, message in enumerate([right_message()] * 4 + [bytes(wrong), right_message()]):
            bench.wire.send(row)
            number = 2 * row + 1
            parts = frame(DATA, 0, number, message[:first]) + frame(DATA, 0, number, message[first:])
            bench.give(
                bench.streams[0], frame(HEADERS, 4, number, STATUS) + parts + frame(HEADERS, 5, number, DONE)
            )
        assert [outcome for _, outcome, _ in bench.ended] == [OK, OK, OK, OK, MALFORMED, OK]


def test_shapes_are_forgotten_when_the_table_changes_and_no_more_are_learned_after_a_while() -> None:
    bench = Http2Bench()
    bench.http2._ended = lambda call, _reset: setattr(call, "proven", True)
    shapes = bench.http2._shapes.by_length
    for row in range(40):
        bench.http2.start(row, b"")
        bench.give(grpc_answer(2 * row + 1, grpc_message(bytes(row))))
        assert len(shapes) == min(row + 1, 32)
    bench.http2.start(40, b"")
    block = literal((b":status", b"200"), remember=True)
    bench.give(frame(HEADERS, 4, 81, block))
    assert shapes == {}


class Known(Http2Bench):
    """A connection on which answers of one shape are known: two calls were answered so."""

    def __init__(self, *settings: tuple[int, int]) -> None:
        super().__init__(*settings)
        self.fields: list[tuple[tuple[bytes, bytes], ...]] = []
        self.http2._ended = self._end
        for row in range(2):
            self.http2.start(row, b"")
            self.give(grpc_answer(2 * row + 1))

    def _end(self, call: Call, reset: bool) -> None:
        self.ended.append((call.row, reset, call))
        self.fields.append(call.fields)
        call.proven = not reset


def test_an_answer_of_a_known_shape_is_not_taken_apart_and_says_the_same() -> None:
    bench = Known()
    bench.http2._act = lambda _data: pytest.fail("it was taken apart")  # type: ignore[assignment, method-assign]
    for row in range(2, 5):
        bench.http2.start(row, b"")
        bench.give(grpc_answer(2 * row + 1))
    assert [row for row, _, _ in bench.ended] == list(range(5))
    assert set(bench.fields) == {((b":status", b"200"), (b"grpc-status", b"0"))}


def test_bytes_within_a_message_are_no_answer_whatever_they_look_like() -> None:
    """The message that nobody wants holds the very bytes of a known answer to another call."""
    bench = Known()
    for row in (2, 3):
        bench.http2.start(row, b"")
    inside = grpc_answer(7)
    message = grpc_message(bytes(100) + inside + bytes(100))
    first, second = message[:50], message[50:]
    data = frame(DATA, 0, 5, second)
    at = data.index(inside)
    bench.give(frame(HEADERS, 4, 5, STATUS) + frame(DATA, 0, 5, first))
    bench.give(data[:at], inside, data[at + len(inside) :])
    assert list(bench.http2.calls) == [5, 7]
    bench.give(frame(HEADERS, 5, 5, DONE))
    assert [row for row, _, _ in bench.ended] == [0, 1, 2]
    assert (bench.ended[2][2].fault_of_frame(), bench.ended[2][2].data_bytes) == (None, len(message))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_message_that_nobody_wants_is_counted_in_whatever_pieces_it_comes(step: int) -> None:
    bench = Http2Bench()
    bench.http2.start(0, b"")
    message = grpc_message(bytes(3000))
    data = frame(HEADERS, 4, 1, STATUS) + frame(DATA, 0, 1, message[:10]) + frame(DATA, 0, 1, message[10:])
    data += frame(HEADERS, 5, 1, DONE)
    bench.give(*(data[at : at + step] for at in range(0, len(data), step)))
    call = bench.ended[0][2]
    assert (call.fault_of_frame(), call.data_bytes, call.answer) == (None, 3005, None)


def test_a_known_answer_to_a_call_that_has_not_wholly_left_stops_it() -> None:
    bench = Known((INITIAL_WINDOW, 100))
    bench.http2.start(2, bytes(300))
    bench.give(grpc_answer(5))
    assert [row for row, _, _ in bench.ended] == [0, 1, 2]
    bench.give(widen(5, 1000))
    assert bench.data() == [0, 0, 100]
    assert bench.http2.idle_but_for_one


def test_a_known_answer_after_the_headers_of_its_call_is_an_answer_too_many() -> None:
    bench = Known()
    bench.http2.start(2, b"")
    bench.give(frame(HEADERS, 4, 5, STATUS))
    bench.give(grpc_answer(5))
    assert len(bench.fields[2]) == 3
