"""Requests over keep-alive connections: each byte goes once, and a connection that ends fails its own alone."""

import errno
from collections.abc import Iterator

import pytest
from memory_wire import Memory
from wire_benches import REQUESTS, HttpBench, http_answer

from loadgen.status import CLIENT_LIMIT, CLOSED, NOT_CONNECTED, OK
from loadgen.wire.poller import READ, WRITE

ERROR = 8  # EPOLLERR
RIGHT = http_answer()


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    """With three connections: enough that a request leaves two for the next."""
    with HttpBench(3) as bench:
        yield bench


def test_each_row_sends_its_request_byte_by_byte_the_same(bench: HttpBench) -> None:
    for row in range(7):
        assert bench.wire.send(row)
        assert bench.of(row).sent.endswith(REQUESTS[row % 3])
        bench.give(bench.of(row), RIGHT)
    assert b"".join(bytes(stream.sent) for stream in bench.streams) == b"".join(
        REQUESTS[row % 3] for row in (0, 3, 6, 1, 4, 2, 5)
    )
    assert bench.wire.bytes_sent == sum(len(REQUESTS[row % 3]) for row in range(7))
    assert bench.wire.bytes_received == 7 * len(RIGHT)
    assert bench.ended == [(row, OK, 7) for row in range(7)]
    assert bench.wire.in_flight == {}
    assert bench.wire.connections_opened == 3


@pytest.mark.parametrize("room", [0, 1, 3, 12, len(REQUESTS[1]) - 1])
def test_what_the_kernel_does_not_take_follows_once_and_in_order(bench: HttpBench, room: int) -> None:
    request = REQUESTS[1]
    stream = bench.streams[0]
    stream.room = room
    assert not bench.wire.send(1), "the rest has still to be sent"
    while bytes(stream.sent) != request:
        assert bytes(stream.sent) == request[: len(stream.sent)]
        assert bench.wire.bytes_sent == len(stream.sent)
        assert bench.watched.events[stream.fd] == READ | WRITE
        assert not bench.wire.answers_may_wait
        stream.room = 3
        bench.wire.handle(stream.fd, WRITE)
    assert bench.watched.events[stream.fd] == READ
    assert bench.wire.bytes_sent == len(request)
    bench.give(stream, RIGHT)
    assert bench.ended == [(1, OK, 7)]
    assert bench.open_streams() == bench.streams
    assert bench.wire.answers_may_wait


def test_a_kernel_that_takes_a_part_and_then_the_rest_is_not_waited_for(bench: HttpBench) -> None:
    class InParts(Memory):
        def send(self, data: bytes) -> int:
            return super().send(data[:5])

    first = bench.streams[0]
    first.__class__ = InParts
    assert not bench.wire.send(1)
    assert bytes(first.sent) == REQUESTS[1]
    assert bench.wire.bytes_sent == len(REQUESTS[1])
    assert bench.watched.events[first.fd] == READ


def test_a_request_sent_before_its_connection_is_there_leaves_with_it() -> None:
    bench = HttpBench()
    bench.addresses.steps = 2
    assert not bench.wire.send(0)
    assert (bench.wire.connecting, bench.wire.bytes_sent) == (2, 0)
    bench.connect()
    assert bench.wire.connecting == 2
    assert bench.of(0).sent == b""
    bench.connect()
    assert bench.of(0).sent == REQUESTS[0]
    assert bench.wire.connecting == 0
    assert set(bench.watched.events.values()) == {READ}
    assert not bench.wire.bytes_received
    bench.give(bench.of(0), RIGHT)
    assert bench.ended == [(0, OK, 7)]
    assert [bench.wire.send(row) for row in (1, 2)] == [False, False]
    assert {bench.of(row).fd for row in (1, 2)} == {100, 101}


def test_a_connection_that_wants_something_else_while_it_connects_is_watched_for_that() -> None:
    """TLS waits to read in the middle of its handshake."""
    bench = HttpBench()
    bench.addresses.steps = 2
    bench.wire.open(1)
    bench.streams[0].wants = lambda: READ  # type: ignore[method-assign]
    bench.wire.handle(100, WRITE)
    assert bench.watched.events == {100: READ}


def test_two_connections_are_kept_free_and_no_more_are_opened_at_once() -> None:
    bench = HttpBench()
    counts = []
    for row in range(4):
        assert not bench.wire.send(row), "nothing has left"
        counts.append(bench.wire.connections_opened)
    assert counts == [2, 3, 4, 5], "each needs one, and one spare is begun; two at most are on their way besides"
    bench.connect()
    assert bench.wire.connecting == 0
    assert not bench.wire.send(4), "it took the last free one"
    assert bench.wire.connections_opened == 6
    bench.connect()
    assert not bench.wire.send(5)
    bench.wire.send(6)
    bench.connect()
    for row in range(5):
        bench.give(bench.of(row), RIGHT)
    opened = bench.wire.connections_opened
    assert bench.wire.send(7)
    assert bench.wire.connections_opened == opened


def test_answers_may_wait_only_while_a_connection_is_free_and_none_is_on_its_way() -> None:
    bench = HttpBench(1)
    assert bench.wire.answers_may_wait
    bench.wire.send(0)
    assert not bench.wire.answers_may_wait, "the next request would have to connect first"
    bench.connect()
    assert bench.wire.answers_may_wait
    bench.wire.open(4)
    assert not bench.wire.answers_may_wait, "the connections must be noticed when they are there"
    assert bench.wire.connecting == 2
    bench.wire.send(1)
    assert bench.wire.connections_opened == 4, "two are on their way already"


def test_answers_may_not_wait_where_no_other_connection_can_be_opened() -> None:
    bench = HttpBench(1)
    bench.addresses.refusal = OSError(errno.EMFILE, "no")
    assert not bench.wire.send(0)
    assert not bench.wire.answers_may_wait


@pytest.mark.parametrize("fields", [("Connection: close",), ("Connection: Close",)])
def test_a_connection_that_the_server_will_close_takes_no_other_request(
    bench: HttpBench, fields: tuple[str, ...]
) -> None:
    bench.wire.send(0)
    first = bench.of(0)
    bench.give(first, http_answer(*fields))
    assert bench.ended == [(0, OK, 7)]
    assert first not in bench.open_streams()
    bench.wire.send(1)
    assert bench.of(1) is bench.streams[1]


@pytest.mark.parametrize("unasked", [RIGHT, b"", b"rubbish\r\n\r\n"])
def test_what_comes_between_requests_closes_the_connection_and_fails_none(
    bench: HttpBench, unasked: bytes
) -> None:
    """A server may close a connection that nobody uses; an answer that nobody asked for is nobody's."""
    bench.wire.send(0)
    bench.give(bench.streams[0], RIGHT)
    bench.give(bench.streams[0], unasked)
    assert bench.ended == [(0, OK, 7)]
    assert bench.wire.error_example is None
    assert bench.open_streams() == bench.streams[1:]
    for row in range(1, 4):
        bench.wire.send(row)
        assert bench.of(row) is not bench.streams[0]


@pytest.mark.parametrize(("room", "events"), [(None, READ), (0, WRITE), (0, WRITE | READ), (None, ERROR)])
def test_a_connection_that_breaks_fails_its_request_once(bench: HttpBench, room: int | None, events: int) -> None:
    stream = bench.streams[0]
    stream.room = room
    bench.wire.send(0)
    stream.broken = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    bench.wire.handle(stream.fd, events)
    assert bench.ended == [(0, CLOSED, 0)]
    assert bench.wire.error_example == "[Errno 104] Connection reset by peer"
    assert (stream.reads, bench.wire.in_flight) == (0, {})
    assert stream not in bench.open_streams()
    bench.wire.handle(stream.fd, events)  # the poller may have noticed more of it before
    assert len(bench.ended) == 1


def test_a_connection_that_was_reset_while_free_fails_the_request_that_finds_it_so(bench: HttpBench) -> None:
    bench.streams[0].broken = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert not bench.wire.send(0)
    assert bench.ended == [(0, CLOSED, 0)]
    assert bench.open_streams() == bench.streams[1:]


def test_the_first_broken_connection_is_the_example(bench: HttpBench) -> None:
    for row, text in enumerate(("first", "second")):
        bench.wire.send(row)
        stream = bench.of(row)
        stream.broken = OSError(text)
        bench.wire.handle(stream.fd, READ)
    assert bench.wire.error_example == "first"


def test_a_connection_that_breaks_after_a_part_of_its_request_fails_it_once(bench: HttpBench) -> None:
    class ResetAfterAPart(Memory):
        def send(self, data: bytes) -> int:
            if self.sent:
                raise ConnectionResetError(errno.ECONNRESET, "reset")
            return super().send(data[:3])

    bench.streams[0].__class__ = ResetAfterAPart
    bench.wire.send(0)
    assert bench.ended == [(0, CLOSED, 0)]
    assert bench.wire.bytes_sent == 3


@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.ECONNREFUSED, NOT_CONNECTED), (errno.EMFILE, CLIENT_LIMIT)]
)
def test_a_connection_that_cannot_be_opened_ends_the_request_at_once(number: int, outcome: int) -> None:
    bench = HttpBench()
    bench.addresses.refusal = OSError(number, "no")
    assert bench.wire.send(0) is False
    assert bench.ended == [(0, outcome, 0)]
    assert not bench.wire.in_flight
    with pytest.raises(OSError, match="no"):
        bench.wire.open(1)
    assert bench.wire.connections_opened == 0


def test_a_refused_connection_fails_the_request_that_waits_for_it_and_no_other() -> None:
    bench = HttpBench()
    bench.wire.send(0)
    spare = bench.streams[1]
    for stream in bench.streams:
        stream.broken = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    bench.wire.handle(spare.fd, WRITE)
    assert bench.ended == []
    assert bench.wire.error_example is None, "a spare one was nobody's"
    bench.wire.handle(bench.of(0).fd, WRITE)
    assert bench.ended == [(0, NOT_CONNECTED, 0)]
    assert bench.wire.error_example == "[Errno 111] Connection refused"
    assert (bench.wire.connecting, bench.open_streams()) == (0, [])


def test_a_spare_connection_that_cannot_be_opened_harms_no_request() -> None:
    bench = HttpBench(1)
    bench.addresses.refusal = OSError(errno.EMFILE, "no")
    bench.wire.send(0)
    assert bench.ended == []
    bench.give(bench.of(0), RIGHT)
    assert bench.ended == [(0, OK, 7)]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_request_given_up_takes_its_connection_with_it(steps: int) -> None:
    """Its answer may still come, and must not be taken for that of the next request."""
    bench = HttpBench()
    bench.addresses.steps = steps
    bench.wire.send(0)
    stream = bench.of(0)
    bench.connect()
    connecting = bench.wire.connecting
    bench.wire.give_up(0)
    assert bench.wire.connecting == max(0, connecting - 1)
    assert bench.wire.in_flight == {}
    assert bench.open_streams() == [bench.streams[1]]
    bench.wire.handle(stream.fd, READ | WRITE)
    bench.wire.send(1)
    assert bench.of(1) is not stream
    assert bench.ended == []


def test_a_request_given_up_before_it_left_no_longer_keeps_answers_from_waiting(bench: HttpBench) -> None:
    bench.streams[0].room = 1
    bench.wire.send(0)
    bench.wire.give_up(0)
    assert bench.wire.answers_may_wait


def test_close_closes_all_that_is_free_busy_or_on_its_way() -> None:
    bench = HttpBench(2)
    bench.wire.send(0)  # one busy, one free, one on its way
    assert bench.wire.connecting == 1
    bench.wire.close()
    assert bench.open_streams() == []
    assert bench.wire.in_flight == {}
    assert bench.wire.connecting == 0
    assert bench.ended == []


def test_a_connection_that_can_be_written_to_is_not_read_from(bench: HttpBench) -> None:
    """It would be asked for nothing, at the cost of a system call."""
    stream = bench.streams[0]
    stream.room = 1
    bench.wire.send(0)
    stream.room = None
    stream.coming = [RIGHT]
    bench.wire.handle(stream.fd, WRITE)
    assert stream.reads == 0
    bench.wire.handle(stream.fd, READ)
    assert stream.reads == 1
    assert bench.ended == [(0, OK, 7)]
    bench.wire.handle(stream.fd, WRITE)  # TLS may have something to send when we have not
    assert stream.sent == REQUESTS[0]


def test_one_that_can_be_read_from_is_not_written_to(bench: HttpBench) -> None:
    stream = bench.streams[0]
    stream.room = 4
    bench.wire.send(0)
    stream.room = None
    bench.give(stream, RIGHT[:5])
    assert len(stream.sent) == 4
