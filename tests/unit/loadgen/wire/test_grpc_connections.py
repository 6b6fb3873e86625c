"""Calls on HTTP/2 connections: what the server says of each, and what a connection that ends does to them."""

import errno
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from wire_benches import GrpcBench, grpc_answer

from loadgen.status import CLIENT_LIMIT, CLOSED, MALFORMED, NOT_CONNECTED, OK, outcome_name
from loadgen.wire.http2_frames import (
    DATA,
    GOAWAY,
    MAX_STREAMS,
    RST_STREAM,
    SETTINGS,
    frame,
)
from loadgen.wire.http2_sending import grpc_message
from loadgen.wire.poller import READ, WRITE

RESET = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def calls_at_a_time(most: int) -> bytes:
    return struct.pack(">HI", MAX_STREAMS, most)


def settings_frame(settings: bytes) -> bytes:
    return frame(SETTINGS, 0, 0, settings)


def goodbye(last: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, 0))


@pytest.fixture
def two() -> Iterator[GrpcBench]:
    with GrpcBench(2) as bench:
        yield bench


@pytest.fixture
def one() -> Iterator[GrpcBench]:
    with GrpcBench(1) as bench:
        yield bench


def test_each_row_sends_its_message() -> None:
    bench = GrpcBench(1, messages=(b"a", b"bc", b"def"))
    for row in range(5):
        bench.wire.send(row)
        bench.answer(bench.streams[0], row + 1)
    sent = [payload for kind, _, _, payload in bench.streams[0].frames() if kind == DATA]
    assert sent == [grpc_message(one) for one in (b"a", b"bc", b"def", b"a", b"bc")]
    assert bench.ended == [(row, OK, 7) for row in range(5)]
    assert bench.wire.bytes_sent == len(bench.streams[0].sent)
    assert bench.wire.bytes_received == bench.streams[0].given
    bench.wire.close()
    assert bench.wire.bytes_sent == len(bench.streams[0].sent), "what was sent stays sent"


def test_a_call_that_the_server_resets_fails_alone_and_the_connection_goes_on(one: GrpcBench) -> None:
    one.wire.send(0)
    one.wire.send(1)
    one.give(one.streams[0], frame(RST_STREAM, 0, 1, struct.pack(">I", 2)))
    assert one.ended == [(0, CLOSED, 7)]
    assert one.wire.error_example == "connection closed, the server reset the call"
    one.answer(one.streams[0], 2)
    assert one.ended[1:] == [(1, OK, 7)]
    assert one.wire.answers_may_wait


def test_a_goodbye_lets_calls_that_were_taken_finish_and_then_ends_the_connection(two: GrpcBench) -> None:
    first, second = two.streams
    for row in range(4):
        two.wire.send(row)
    assert [two.of(row) for row in range(4)] == [first, second, first, second]
    two.give(first, goodbye(1))
    assert two.ended == []
    assert two.of(2) is second, "the server did not take it"
    assert two.wire.resent == 1
    two.wire.send(4)
    assert two.of(4) is second
    two.answer(first, 1)
    assert two.ended == [(0, OK, 7)]
    assert list(two.wire.in_flight) == [1, 2, 3, 4], "in the order of their due times"
    assert two.open_streams() == [second]
    two.give(second, goodbye(5))
    assert not two.wire.send(5)
    assert two.wire.in_flight[5] is None, "it waits for a connection"


def refusal(stream_id: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", 7))


def test_a_refused_call_goes_to_another_connection_at_once_and_the_first_gets_no_more(two: GrpcBench) -> None:
    first, second = two.streams
    two.wire.send(0)
    two.give(first, refusal(1))
    assert two.ended == []
    assert two.of(0) is second
    assert two.open_streams() == [second]
    assert (two.wire.resent, two.wire.connections_closed) == (1, 1)
    two.answer(second, 1)
    assert two.ended == [(0, OK, 7)]


def test_a_refused_call_without_another_connection_waits_for_a_new_one(one: GrpcBench) -> None:
    one.wire.send(0)
    one.give(one.streams[0], refusal(1))
    assert one.wire.in_flight[0] is None
    assert one.wire.connections_opened == 2


def test_a_call_that_is_refused_three_times_fails() -> None:
    with GrpcBench(3) as bench:
        bench.wire.send(0)
        for stream in bench.streams[:3]:
            assert bench.ended == []
            bench.give(stream, refusal(1))
        assert bench.ended == [(0, CLOSED, 7)]
        assert bench.wire.resent == 2


def test_a_call_gets_nearer_with_each_goodbye_that_took_others_and_is_sent_until_one_takes_it(
    one: GrpcBench,
) -> None:
    for row in range(6):
        one.wire.send(row)
    for served in range(6):
        one.settle()
        one.give(one.streams[served], goodbye(1))
        one.answer(one.streams[served], 1)
    assert one.ended == [(row, OK, 7) for row in range(6)]
    assert one.wire.resent == 5 + 4 + 3 + 2 + 1


def test_what_came_before_a_connection_broke_counts(two: GrpcBench) -> None:
    first, second = two.streams
    for row in range(3):
        two.wire.send(row)
    first.coming += [grpc_answer(1) + goodbye(1)]
    first.broken = RESET
    two.wire.send(3)
    two.wire.send(4)
    assert [two.of(row) for row in (2, 3, 4)] == [first, second, first]
    two.wire.handle(first.fd, READ | WRITE)
    assert two.ended == [(0, OK, 7)]
    assert [two.of(row) for row in (1, 2, 3, 4)] == [second] * 4


@pytest.mark.parametrize("broken", [b"", b"\xff" * 20])
def test_a_connection_that_ends_fails_all_calls_on_it_and_no_other(two: GrpcBench, broken: bytes) -> None:
    for row in range(4):
        two.wire.send(row)
    two.give(two.streams[0], broken)
    outcome = MALFORMED if broken else CLOSED
    assert two.ended == [(0, outcome, 0), (2, outcome, 0)]
    assert (two.wire.error_example or "").startswith(f"{outcome_name(outcome)}, ")
    assert list(two.wire.in_flight) == [1, 3]
    assert two.open_streams() == [two.streams[1]]
    two.wire.handle(two.streams[0].fd, READ)  # the poller may have noticed more of it before
    assert len(two.ended) == 2


def test_a_connection_found_broken_by_a_call_fails_it_and_the_next_call_goes_elsewhere(two: GrpcBench) -> None:
    two.streams[0].broken = RESET
    assert not two.wire.send(0)
    two.wire.handle(two.streams[0].fd, READ)
    assert two.ended == [(0, CLOSED, 0)]
    assert two.wire.error_example == "connection closed, [Errno 104] Connection reset by peer"
    two.wire.send(1)
    assert two.of(1) is two.streams[1]


def test_calls_before_any_connection_is_ready_leave_with_the_first_that_is() -> None:
    bench = GrpcBench()
    for row in range(3):
        assert not bench.wire.send(row)
    assert bench.wire.connections_opened == 1, "it is there for all of them"
    assert bench.wire.connecting == 1
    stream = bench.streams[0]
    bench.wire.handle(stream.fd, WRITE)
    assert bench.wire.connecting == 1, "the server's settings are not known yet"
    assert stream.calls() == 0
    bench.give(stream, frame(SETTINGS, 0, 0))
    assert bench.wire.connecting == 0
    assert stream.calls() == 3
    for row in range(3):
        assert bench.of(row) is stream
        bench.answer(stream, row + 1)
    assert [row for row, _, _ in bench.ended] == [0, 1, 2]
    assert bench.wire.answers_may_wait


def test_at_most_eight_connections_are_opened_ahead() -> None:
    assert len(GrpcBench(3).streams) == 3
    assert len(GrpcBench(100).streams) == 8


def test_where_a_server_limits_calls_more_connections_are_opened() -> None:
    bench = GrpcBench(1, settle=False)
    bench.settle(calls_at_a_time(2))
    for row in range(3):
        bench.wire.send(row)
    assert bench.streams[0].calls() == 2
    assert bench.wire.connections_opened == 2
    bench.wire.send(3)
    assert bench.wire.connections_opened == 2, "one is on its way"
    bench.answer(bench.streams[0], 1)
    assert bench.streams[0].calls() == 3, "a call that waits goes as soon as one has ended"
    bench.settle(calls_at_a_time(2))
    assert bench.streams[1].calls() == 1
    assert list(bench.wire.in_flight) == [1, 2, 3]
    assert not any(bench.ended[1:])


def test_a_server_that_allows_no_calls_is_not_asked_again_and_again() -> None:
    bench = GrpcBench(1, settle=False)
    bench.settle(calls_at_a_time(0))
    bench.wire.send(0)
    bench.wire.send(1)
    assert bench.wire.connections_opened == 1
    assert not bench.wire.answers_may_wait
    assert bench.streams[0].calls() == 0
    bench.give(bench.streams[0], settings_frame(calls_at_a_time(5)))
    assert bench.streams[0].calls() == 2


@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.ECONNREFUSED, NOT_CONNECTED), (errno.ENFILE, CLIENT_LIMIT)]
)
def test_a_call_for_which_no_connection_can_be_opened_ends_at_once(number: int, outcome: int) -> None:
    bench = GrpcBench()
    bench.addresses.refusal = OSError(number, "no")
    assert bench.wire.send(0) is False
    assert bench.ended == [(0, outcome, 0)]
    assert bench.wire.error_example == f"{outcome_name(outcome)}, [Errno {number}] no"
    assert not bench.wire.in_flight
    with pytest.raises(OSError, match="no"):
        bench.wire.open(1)
    bench.addresses.refusal = None
    bench.wire.send(1)
    bench.settle()
    assert bench.streams[0].calls() == 1, "row 0 does not wait any more"


@pytest.mark.parametrize("settled", [False, True])
def test_calls_wait_on_while_another_connection_may_take_them(settled: bool) -> None:
    bench = GrpcBench(2, settle=False)
    first, second = bench.streams
    bench.wire.send(0)
    first.broken = RESET
    if settled:
        bench.wire.handle(second.fd, WRITE)
    bench.wire.handle(first.fd, WRITE)
    assert bench.ended == []
    second.broken = RESET
    bench.wire.handle(second.fd, READ if settled else WRITE)
    assert bench.ended == [(0, NOT_CONNECTED, 0)]
    assert not bench.wire.in_flight
    assert bench.open_streams() == []
    bench.wire.open(1)
    bench.settle()
    assert bench.streams[2].calls() == 0, "it has ended"


def test_a_server_that_speaks_another_protocol_is_no_missing_connection() -> None:
    bench = GrpcBench(1, settle=False)
    bench.wire.send(0)
    bench.wire.handle(100, WRITE)
    bench.give(bench.streams[0], b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert bench.ended == [(0, MALFORMED, 0)]


def test_a_call_given_up_is_broken_off_and_its_late_answer_is_nobodys(one: GrpcBench) -> None:
    one.wire.send(0)
    one.wire.send(1)
    one.wire.give_up(0)
    assert (RST_STREAM, 0, 1, struct.pack(">I", 8)) in one.streams[0].frames()
    assert list(one.wire.in_flight) == [1]
    one.answer(one.streams[0], 1)
    assert one.ended == []
    one.answer(one.streams[0], 2)
    assert one.ended == [(1, OK, 7)]


def test_a_call_given_up_before_it_left_is_never_sent() -> None:
    bench = GrpcBench(1, settle=False)
    bench.wire.send(0)
    bench.wire.send(1)
    bench.wire.give_up(0)
    bench.settle()
    assert list(bench.wire.in_flight) == [1]
    assert bench.streams[0].calls() == 1


def test_giving_up_on_a_broken_connection_fails_the_other_calls_on_it(one: GrpcBench) -> None:
    one.wire.send(0)
    one.wire.send(1)
    one.streams[0].broken = RESET
    one.wire.give_up(0)
    one.wire.handle(one.streams[0].fd, READ)
    assert one.ended == [(1, CLOSED, 0)]
    assert one.wire.error_example == "connection closed, [Errno 104] Connection reset by peer"
    assert one.open_streams() == []


@pytest.mark.parametrize("room", [0, 1, 9, 20])
def test_what_the_kernel_does_not_take_follows_once_and_in_order(one: GrpcBench, room: int) -> None:
    other = GrpcBench(1)
    for row in range(3):
        one.streams[0].room = room if row == 2 else None
        for bench in (one, other):
            sent_all = bench.wire.send(row)
            assert not sent_all, "the only connection is taken"
    stream = one.streams[0]
    assert one.watched.events[stream.fd] == READ | WRITE
    assert not one.wire.answers_may_wait
    while one.watched.events[stream.fd] & WRITE:
        stream.room = 7
        one.wire.handle(stream.fd, WRITE)
    assert stream.sent == other.streams[0].sent
    assert one.wire.bytes_sent == len(stream.sent)
    assert one.watched.events[stream.fd] == READ


def test_answers_may_wait_only_if_the_call_on_each_connection_has_wholly_left(two: Any) -> None:
    two.streams[0].room = 3
    assert not two.wire.send(0), "it has not left"
    assert not two.wire.answers_may_wait
    two.streams[0].room = None
    two.wire.handle(two.streams[0].fd, WRITE)
    assert two.wire.answers_may_wait
    two.wire.open(3)
    assert not two.wire.answers_may_wait, "a connection must be noticed when it is there"
    two.settle()
    assert two.wire.answers_may_wait
    two.wire.send(1)
    two.wire.send(2)
    two.wire.send(3)
    two.answer(two.streams[1], 1)
    assert not two.wire.answers_may_wait, "two calls share a connection: only the later answer would keep its time"


def test_a_large_answer_means_that_no_later_one_may_wait(one: GrpcBench) -> None:
    one.wire.send(0)
    one.give(one.streams[0], frame(200, 0, 0, bytes(16_384)))
    one.answer(one.streams[0], 1)
    assert one.ended == [(0, OK, 7)]
    assert not one.wire.answers_may_wait


@pytest.mark.parametrize("last_words", [b"", settings_frame(calls_at_a_time(0))])
def test_an_idle_connection_that_ends_or_allows_no_calls_any_more_is_not_used(
    two: GrpcBench, last_words: bytes
) -> None:
    two.give(two.streams[0], last_words)
    assert two.ended == []
    two.wire.send(0)
    assert two.of(0) is two.streams[1]


def test_a_stream_that_wants_to_write_of_itself_is_watched_for_that() -> None:
    """TLS may have to answer what it reads."""
    bench = GrpcBench()
    bench.addresses.hides_data = True
    bench.wire.open(1)
    bench.settle()
    stream = bench.streams[0]
    stream.wants = lambda: READ | WRITE  # type: ignore[method-assign]
    bench.wire.handle(stream.fd, READ)
    assert bench.watched.events == {100: READ | WRITE}


@pytest.mark.parametrize("settle", [True, False])
def test_close_forgets_all_calls(settle: bool) -> None:
    bench = GrpcBench(2, settle=settle)
    for row in range(3):
        bench.wire.send(row)
    sent = bench.wire.bytes_sent
    bench.wire.close()
    assert bench.wire.bytes_sent == sent == sum(len(stream.sent) for stream in bench.streams)
    assert bench.open_streams() == []
    assert (bench.wire.in_flight, bench.ended) == ({}, [])
    bench.wire.send(3)
    assert len(bench.streams) == 3, "nothing of before is used again"
    bench.settle()
    assert bench.streams[2].calls() == 1, "calls that waited for a connection do not leave any more"


def test_a_server_without_http2_over_tls_is_no_server_of_grpc() -> None:
    from loadgen.wire.sockets import TlsStream

    class Http1Only(TlsStream):
        protocol = "http/1.1"

        def __init__(self) -> None:
            self.fileno, self.close = lambda: 100, lambda: None

        def connected(self) -> bool:
            return True

    bench = GrpcBench()
    bench.addresses.open = Http1Only  # type: ignore[assignment, method-assign]
    bench.wire.send(0)
    bench.wire.handle(100, WRITE)
    assert bench.ended == [(0, MALFORMED, 0)]
    assert bench.wire.error_example == "malformed answer, the server speaks no HTTP/2 over TLS"


def test_that_a_call_is_given_up_is_said_as_soon_as_the_kernel_takes_it(one: GrpcBench) -> None:
    one.wire.send(0)
    stream = one.streams[0]
    stream.room = 0
    one.wire.give_up(0)
    assert one.watched.events[stream.fd] == READ | WRITE
    stream.room = None
    one.wire.handle(stream.fd, WRITE)
    assert stream.frames()[-1][0] == RST_STREAM
    assert one.watched.events[stream.fd] == READ


def test_an_idle_connection_that_says_something_is_not_idle_twice(two: GrpcBench) -> None:
    two.give(two.streams[0], frame(200, 0, 0, b"hello"))
    two.give(two.streams[0], frame(200, 0, 0, b"hello"))
    for row in range(2):
        two.wire.send(row)
    assert not two.wire.answers_may_wait, "no connection is idle"
    assert [two.of(row) for row in range(2)] == two.streams
