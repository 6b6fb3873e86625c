"""Calls spread over connections: idle ones first, and none is lost with its connection."""

import itertools
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from loadgen.grpc_wire import GrpcWire, grpc_message
from loadgen.hpack import block_of
from loadgen.http2_frames import frame, request_head
from loadgen.outcomes import CLOSED, OK
from loadgen.poller import READ, Poller
from loadgen.streams import Address

DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
HEAD = request_head([(b":method", b"POST"), (b":path", b"/x")])


class Memory:
    """A connection of which the test is the other end; it stamps all that comes with the time 7."""

    hides_data = False
    arrived_ns = 7

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.coming: list[bytes] = []
        self.sent = bytearray()

    def fileno(self) -> int:
        return self.fd

    def connected(self) -> bool:
        return True

    def wants(self) -> int:
        return READ

    def send(self, data: bytes) -> int:
        self.sent += data
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        if not self.coming:
            raise BlockingIOError
        piece = self.coming.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None: ...


class Addresses:
    def __init__(self) -> None:
        self.streams: list[Memory] = []

    def open(self) -> Memory:
        self.streams.append(Memory(100 + len(self.streams)))
        return self.streams[-1]


class Nobody:
    """A poller that is never asked: the tests say themselves what is ready."""

    def add(self, fd: int, events: int) -> None: ...
    def change(self, fd: int, events: int) -> None: ...
    def remove(self, fd: int) -> None: ...


class Bench:
    """A wire with `count` connections that are ready, and what ended on it."""

    def __init__(self, count: int) -> None:
        self.ended: list[tuple[int, int, int]] = []
        addresses = Addresses()
        self.wire = GrpcWire(
            address=cast("Address", addresses),
            head=HEAD,
            requests=[grpc_message(b"hello")],
            poller=cast("Poller", Nobody()),
            finished=lambda *ended: self.ended.append(ended),
        )
        self.wire.open(count)
        self.streams = addresses.streams
        for stream in self.streams:
            self.wire.handle(stream.fd, 4)
            self.give(stream, frame(SETTINGS, 0, 0))

    def give(self, stream: Memory, data: bytes) -> None:
        stream.coming.append(data)
        self.wire.handle(stream.fd, READ)

    def answer(self, stream: Memory, call: int) -> None:
        """The whole answer to the connection's n-th call."""
        number = 2 * call - 1
        head = frame(HEADERS, 4, number, block_of([(b":status", b"200")])) + frame(DATA, 0, number, b"data")
        self.give(stream, head + frame(HEADERS, 5, number, block_of([(b"grpc-status", b"0")])))

    def calls_on(self, stream: Memory) -> int:
        at, calls = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0
        while at < len(stream.sent):
            calls += stream.sent[at + 3] == HEADERS
            at += 9 + int.from_bytes(stream.sent[at : at + 3], "big")
        return calls


@pytest.fixture
def two() -> Iterator[Bench]:
    bench = Bench(2)
    yield bench
    bench.wire.close()


def test_a_call_goes_to_an_idle_connection_while_there_is_one(two: Bench) -> None:
    first, second = two.streams
    assert two.wire.answers_may_wait
    assert two.wire.send(0)
    assert not two.wire.send(1)  # no other connection is left: the next answer must be looked at
    assert not two.wire.answers_may_wait
    assert (two.calls_on(first), two.calls_on(second)) == (1, 1)
    two.answer(second, 1)
    two.wire.send(2)
    assert (two.calls_on(first), two.calls_on(second)) == (1, 2)
    two.wire.send(3)  # both are busy: they share
    assert two.calls_on(first) + two.calls_on(second) == 4


def test_every_answer_of_the_same_shape_has_its_time_and_its_row(two: Bench) -> None:
    counts = [itertools.count(1), itertools.count(1)]
    for row in range(10):
        two.wire.send(row)
        two.answer(two.streams[row % 2], next(counts[row % 2]))
    assert two.ended == [(row, OK, 7) for row in range(10)]
    assert not two.wire.in_flight


def test_a_connection_that_ends_fails_its_calls_and_takes_no_more(two: Bench) -> None:
    first, second = two.streams
    two.wire.send(0)
    two.give(first, b"")
    assert [(row, outcome) for row, outcome, _ in two.ended] == [(0, CLOSED)]
    two.wire.send(1)
    two.wire.send(2)
    assert two.calls_on(second) == 2


def test_an_idle_connection_that_is_told_to_leave_is_not_used(two: Bench) -> None:
    first, second = two.streams
    two.give(first, frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
    two.wire.send(0)
    assert (two.calls_on(first), two.calls_on(second)) == (0, 1)


def test_a_call_that_is_given_up_leaves_its_connection_idle(two: Bench) -> None:
    first, second = two.streams
    two.wire.send(0)
    two.wire.send(1)
    two.wire.give_up(0)
    assert two.wire.answers_may_wait
    two.wire.send(2)
    assert (two.calls_on(first), two.calls_on(second)) == (2, 1)
