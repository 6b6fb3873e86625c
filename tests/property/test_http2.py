"""HTTP/2 answers are read the same however the network cuts them up, and windows are never overrun."""

import itertools
import struct
from typing import Any

import pytest
from header_bytes import indexed, literal
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import MalformedAnswer
from loadgen.wire.grpc_call import grpc_message
from loadgen.wire.hpack import block_of
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_frames import frame, request_head
from loadgen.wire.sockets import ReadBuffer

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
HEAD = request_head([(b":method", b"POST"), (b":path", b"/x")], [(b"authorization", b"secret")])
OK_HEADERS = block_of([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK_TRAILERS = block_of([(b"grpc-status", b"0")])


class Server:
    """The other end, in memory: takes everything, or `takes` bytes at a time; gives the pieces it was made of."""

    hides_data = False

    def __init__(self, pieces: list[Any] | tuple[()] = (), takes: int | None = None) -> None:
        self.pieces = list(pieces)
        self.taken = bytearray()
        self.takes = takes

    def send(self, data: Any, /) -> Any:
        if self.takes == 0:
            raise BlockingIOError
        count = len(data) if self.takes is None else min(len(data), self.takes)
        self.taken += data[:count]
        return count

    def recv_into(self, buffer: Any, /) -> int:
        if not self.pieces:
            raise BlockingIOError
        piece = self.pieces.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """What was sent, frame by frame, without the preface."""
        at, found = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []
        while at < len(self.taken):
            length = int.from_bytes(self.taken[at : at + 3], "big")
            kind, flags = self.taken[at + 3], self.taken[at + 4]
            stream_id = int.from_bytes(self.taken[at + 5 : at + 9], "big")
            found.append((kind, flags, stream_id, bytes(self.taken[at + 9 : at + 9 + length])))
            at += 9 + length
        return found


def connect(server: Any, ended: list[Any], keep: bool = False) -> Http2Connection:
    return Http2Connection(
        server,
        HEAD,
        ReadBuffer(),
        lambda call, reset: ended.append((call.row, reset, call)),
        1000 if keep else 5,
    )


def drain(connection: Http2Connection) -> None:
    while connection.stream.pieces:  # type: ignore[attr-defined]
        connection.receive()


def settings_frame(**values: int) -> bytes:
    names = {"table": 1, "calls": 3, "window": 4, "data": 5}
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", names[name], value) for name, value in values.items())
    )


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
    parts = [settings_frame(calls=100)]
    parts += [frame(HEADERS, 0x4, 2 * call + 1, OK_HEADERS) for call in calls]
    parts += [frame(PING, 0, 0, b"12345678")]
    parts += [
        frame(DATA, 0x8, 2 * call + 1, b"\x03" + grpc_message(body) + b"pad") for call, body in enumerate(bodies)
    ]
    split = len(OK_TRAILERS) // 2
    for call in calls:
        parts.append(frame(HEADERS, 0x1, 2 * call + 1, OK_TRAILERS[:split]))
        parts.append(frame(CONTINUATION, 0x4, 2 * call + 1, OK_TRAILERS[split:]))
    server, ended = Server(cut(b"".join(parts), places)), list[Any]()
    connection = connect(server, ended, keep)
    for call in calls:
        connection.start(call, b"message")
    drain(connection)
    assert [(row, reset) for row, reset, _ in ended] == [(call, False) for call in calls]
    for _, _, call in ended:
        assert dict(call.fields)[b":status"] == b"200"
        assert dict(call.fields)[b"grpc-status"] == b"0"
        assert call.fault_of_frame() is None
        assert call.answer == grpc_message(bodies[call.row])[: None if keep else 5]
    assert (PING, 1, 0, b"12345678") in server.frames()


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
    server, ended = Server([settings_frame(window=window, data=16384)], takes), list[Any]()
    connection = connect(server, ended)
    drain(connection)
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    for number, message in enumerate(messages):
        connection.start(number, message)
    allowed = {2 * number + 1: window for number in range(len(sizes))}

    def sent() -> dict[int, int]:
        totals = dict.fromkeys(allowed, 0)
        for kind, _, stream_id, payload in server.frames():
            if kind == DATA:
                totals[stream_id] += len(payload)
        return totals

    for which, more in steps:
        stream_id = 2 * (which % len(sizes)) + 1
        allowed[stream_id] += more
        server.pieces.append(frame(WINDOW, 0, stream_id, struct.pack(">I", more)))
        drain(connection)
        assert all(sent()[number] <= allowed[number] for number in allowed)
    server.pieces += [frame(WINDOW, 0, number, struct.pack(">I", 1000)) for number in allowed]
    drain(connection)
    whole = dict.fromkeys(allowed, b"")
    for kind, _, stream_id, payload in server.frames():
        if kind == DATA:
            whole[stream_id] += payload
    assert list(whole.values()) == messages
    ends = [stream_id for kind, flags, stream_id, _ in server.frames() if kind == DATA and flags & 1]
    assert sorted(ends) == sorted(allowed)


def test_a_changed_window_applies_to_calls_in_flight() -> None:
    server, ended = Server([settings_frame(window=10)]), list[Any]()
    connection = connect(server, ended)
    drain(connection)
    connection.start(0, b"x" * 100)
    server.pieces.append(settings_frame(window=100))
    drain(connection)
    assert sum(len(payload) for kind, _, _, payload in server.frames() if kind == DATA) == 100


def test_the_first_head_is_remembered_and_the_users_headers_never_are() -> None:
    server = Server([settings_frame(calls=10)])
    connection = connect(server, [])
    drain(connection)
    for row in range(3):
        connection.start(row, b"")
    heads = [payload for kind, _, _, payload in server.frames() if kind == HEADERS]
    assert heads[1] == heads[2]
    assert len(heads[1]) < len(heads[0])
    assert all(b"secret" in head for head in heads)


def test_a_server_that_remembers_nothing_gets_everything_spelled_out() -> None:
    server = Server([settings_frame(table=0)])
    connection = connect(server, [])
    drain(connection)
    for row in range(2):
        connection.start(row, b"")
    heads = [payload for kind, _, _, payload in server.frames() if kind == HEADERS]
    assert heads == [HEAD.plain, HEAD.plain]


def test_a_goodbye_ends_the_calls_that_were_not_taken() -> None:
    server, ended = Server([settings_frame(calls=10)]), list[Any]()
    connection = connect(server, ended)
    drain(connection)
    for row in range(3):
        connection.start(row, b"")
    server.pieces.append(frame(GOAWAY, 0, 0, struct.pack(">II", 3, 0)))
    drain(connection)
    assert [(row, reset) for row, reset, _ in ended] == [(2, True)]
    assert not connection.has_room


def test_a_reset_call_ends_and_a_cancelled_one_is_not_heard_of() -> None:
    server, ended = Server([settings_frame(calls=10)]), list[Any]()
    connection = connect(server, ended)
    drain(connection)
    for row in range(2):
        connection.start(row, b"")
    first, second = 1, 3
    connection.cancel(1)
    server.pieces.append(frame(HEADERS, 0x5, second, OK_HEADERS) + frame(RST, 0, first, struct.pack(">I", 2)))
    drain(connection)
    assert [(row, reset) for row, reset, _ in ended] == [(0, True)]
    assert (RST, 0, second, struct.pack(">I", 8)) in server.frames()


def test_frames_between_the_parts_of_a_head_are_refused() -> None:
    server = Server([frame(HEADERS, 0, 1, b""), frame(PING, 0, 0, b"12345678")])
    connection = connect(server, [])
    with pytest.raises(MalformedAnswer):
        drain(connection)


def answer(stream_id: int, *, data: bytes = b"xxxxx", trailers: bytes = OK_TRAILERS, extra: bytes = b"") -> Any:
    head = frame(HEADERS, 0x4, stream_id, OK_HEADERS) + frame(DATA, 0, stream_id, grpc_message(data))
    return head + frame(HEADERS, 0x5, stream_id, trailers) + extra


EXTRAS = (b"", frame(WINDOW, 0, 0, struct.pack(">I", 100)), frame(PING, 0, 0, b"12345678"))


@given(
    kinds=st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"b"]), st.sampled_from([b"0", b"5"]), st.sampled_from(EXTRAS)),
        min_size=2,
        max_size=12,
    ),
    places=st.lists(st.integers(0, 2000), max_size=10),
)
@settings(deadline=None)
def test_answers_end_the_same_however_they_are_cut(kinds: list[Any], places: list[Any]) -> None:
    answers = [
        answer(2 * row + 1, data=data, trailers=block_of([(b"grpc-status", status)]), extra=extra)
        for row, (data, status, extra) in enumerate(kinds)
    ]
    seen = []
    for pieces in (answers, cut(b"".join(answers), places), [b"".join(answers)]):
        server, ended = Server([settings_frame(calls=100)]), list[Any]()

        def note(call: Any, reset: Any, to: list[Any] = ended) -> None:
            to.append((call.row, reset, call.fields))

        connection = Http2Connection(server, HEAD, ReadBuffer(), note, 5)  # type: ignore[arg-type]
        drain(connection)
        for row in range(len(kinds)):
            connection.start(row, b"message")
        server.pieces += pieces
        drain(connection)
        seen.append(ended)
        assert connection._window == 65535 - 7 * len(kinds) + 100 * sum(kind[2] == EXTRAS[1] for kind in kinds)
    assert seen[0] == seen[1] == seen[2]
    assert [fields[-1] for _, _, fields in seen[0]] == [(b"grpc-status", status) for _, status, _ in kinds]


def test_the_same_bytes_mean_something_else_once_the_table_has_changed() -> None:
    server, statuses = Server([settings_frame(calls=100)]), []

    def note(call: Any, _reset: Any) -> None:
        statuses.append(call.fields[-1][1])

    connection = Http2Connection(server, HEAD, ReadBuffer(), note, 5)  # type: ignore[arg-type]
    drain(connection)
    newest = indexed(62)
    blocks = [literal((b"grpc-status", b"0"), remember=True), newest, newest, newest]
    blocks += [literal((b"grpc-status", b"5"), remember=True), newest, newest]
    for row, trailers in enumerate(blocks):
        connection.start(row, b"")
        server.pieces.append(answer(2 * row + 1, trailers=trailers))
        drain(connection)
    assert statuses == [b"0"] * 4 + [b"5"] * 3


def test_an_answer_to_a_call_that_was_given_up_is_not_anothers() -> None:
    server, ended = Server([settings_frame(calls=100)]), list[Any]()
    connection = connect(server, ended)
    drain(connection)
    for row in range(4):
        connection.start(row, b"")
    server.pieces += [answer(1), answer(3)]
    drain(connection)
    connection.cancel(2)
    server.pieces += [answer(5), answer(7)]
    drain(connection)
    assert [row for row, _, _ in ended][-1] == 3
    assert len(ended) == 3
