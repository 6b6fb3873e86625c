"""Send prepared requests and read status and length of the responses, with HTTP/1.1 on keep-alive connections."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from loadgen.errors import MalformedAnswer
from loadgen.status import CLOSED, MALFORMED, NOT_CONNECTED, OK, outcome_of_connect_error, outcome_of_http
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.http1_response import Answer, AnswerReader, error_text
from loadgen.wire.in_front import note_failure, note_success
from loadgen.wire.load_wire import EARLY, LoadWire
from loadgen.wire.poller import WRITE
from loadgen.wire.sockets import ReadBuffer, Stream

_READS = 4  # in a row from one connection, so that no server delays the others or the clock
_SPARE = 2  # connections kept open beyond those in use, so that a request need not wait for its connection


@dataclass(slots=True, eq=False)
class Connection:
    """One socket with at most one request on it."""

    fd: int
    stream: Stream
    reader: AnswerReader
    ready: bool = False
    row: int | None = None
    unsent: memoryview | None = None


@dataclass(kw_only=True, eq=False)
class HttpWire(LoadWire):
    """Sends row r as `requests[r % len(requests)]` and calls `finished` when its response is complete.

    A response of status 200 that is not as `expected` is malformed; None: `fault_of` says what is wrong with it.
    """

    look_at_each: ClassVar[int] = 13  # rows: hardly any number of samples in turn is a multiple of it

    expected: ExpectedAnswer | None = None
    in_flight: dict[int, Connection] = field(default_factory=dict, init=False)
    connecting: int = field(default=0, init=False)
    bytes_sent: int = field(default=0, init=False)
    _spare: int = field(default=_SPARE, init=False)
    _connections: dict[int, Connection] = field(default_factory=dict, init=False)
    # Free connections get requests in turn, like independent users, so that none stays idle long.
    _free: deque[Connection] = field(default_factory=deque, init=False)
    _blocked: set[int] = field(default_factory=set, init=False)  # connections that have not sent all of a request

    @property
    def answers_may_wait(self) -> bool:
        """See `Wire`."""
        return bool(self._free) and self.connecting == 0 and not self._blocked and self._buffer.takes_little

    def open(self, count: int) -> None:
        """Begin to open connections: `count`, or one per address. Raises OSError if one cannot begin."""
        while len(self._connections) < max(count, self.addresses.connections_min):
            self._connect()

    def send(self, row: int) -> bool:
        """See `Wire`: start the request on a free connection, or on a new one."""
        try:
            connection = self._free.popleft() if self._free else self._connect()
        except OSError as error:
            self.finished(row, outcome_of_connect_error(error), 0)
            return False
        connection.row = row
        self.in_flight[row] = connection
        if self.places:
            self.places[row] = connection.stream.place + 1
        request = self.requests[row % len(self.requests)]
        if not connection.ready:
            connection.unsent = memoryview(request)
        whole = connection.ready and self._push(connection, request)
        if len(self._free) < self._spare and self.connecting < _SPARE:
            with contextlib.suppress(OSError):  # the request that needs it will fail with the error
                self._connect()
            return False
        return whole

    def handle(self, fd: int, events: int) -> None:
        """Continue with a connection that the poller reported; unknown file descriptors are ignored."""
        connection = self._connections.get(fd)
        if connection is None:
            return
        try:
            if not connection.ready:
                self._go_on_connecting(connection)
                return
            if events & WRITE:
                self._push(connection, connection.unsent or b"")
            if events & ~WRITE and connection.fd in self._connections:
                self._receive(connection)
        except OSError as error:
            self._broken(connection, error)

    def give_up(self, row: int) -> None:
        """Forget a request, and close its connection: its response must not count for another."""
        self._drop(self.in_flight.pop(row))

    def close(self) -> None:
        """Close all connections; requests in flight are forgotten."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self.in_flight.clear()

    def _connect(self) -> Connection:
        stream = self.addresses.open()
        connection = Connection(stream.fileno(), stream, self.reader(self._buffer))
        self._connections[connection.fd] = connection
        self.poller.add(connection.fd, WRITE)
        self.connecting += 1
        self.connections_opened += 1
        self._spare = max(_SPARE, self.addresses.connections_min)
        return connection

    def _go_on_connecting(self, connection: Connection) -> None:
        connection.ready = connection.stream.connected()
        self.poller.change(connection.fd, connection.stream.wants())
        if not connection.ready:
            return
        self.connecting -= 1
        if connection.row is None:
            self._free.append(connection)
        else:
            self._push(connection, connection.unsent or b"")

    def _push(self, connection: Connection, data: bytes | memoryview) -> bool:
        """Give the kernel as much of the data as it takes; True if all at once. The poller calls for the rest."""
        waited, given = connection.unsent is not None, data
        try:
            while data:
                count = connection.stream.send(data)
                self.bytes_sent += count
                if count == len(data):
                    break
                data = memoryview(data)[count:]
            connection.unsent = None
        except BlockingIOError:
            connection.unsent = memoryview(data)
        except OSError as error:
            self._broken(connection, error)
            return False
        if waited or connection.unsent is not None:
            wants = connection.stream.wants()
            if connection.unsent is None:
                self._blocked.discard(connection.fd)
            else:
                self._blocked.add(connection.fd)
                wants |= WRITE
            self.poller.change(connection.fd, wants)
        return data is given and connection.unsent is None

    def _receive(self, connection: Connection) -> None:
        try:
            answer = connection.reader.read(connection.stream)
            if answer is None:
                answer = _read_on(connection)
        except BlockingIOError:
            return
        if answer is None:
            return
        row = connection.row
        if row is None:
            raise MalformedAnswer("an answer without a request")
        if answer.status == 200 and connection.unsent is not None:
            raise MalformedAnswer(EARLY)
        outcome = self._judged(answer, connection)
        if outcome == OK and not row % self.look_at_each:
            note_success(self.in_front, answer.fields)
        del self.in_flight[row]
        connection.row = None
        if answer.keep_alive and connection.unsent is None:
            self._free.append(connection)
        else:
            self.connections_closed += 1
            self._drop(connection)
        self.finished(row, outcome, connection.reader.arrived_ns)

    def reader(self, buffer: ReadBuffer) -> AnswerReader:
        """Return the reader of a new connection."""
        return AnswerReader(buffer)

    def fault_of(self, answer: Answer, connection: Connection) -> tuple[int, str]:  # noqa: ARG002 - that of streams
        """Return the outcome of a response of status 200 with its fault in words. Raises MalformedAnswer."""
        assert self.expected is not None
        fault = self.expected.fault_of_http(answer)
        return (OK, "") if fault is None else (MALFORMED, f"malformed answer, {fault}")

    def _judged(self, answer: Answer, connection: Connection) -> int:
        """Return the outcome of a response."""
        if answer.status != 200:
            self.retry_after = answer.fields.get(b"retry-after", b"")
            if self.error_example is None:
                self.error_example = error_text(answer)
            outcome = outcome_of_http(answer.status)
            note_failure(self.in_front, outcome, answer.fields)
            return outcome
        outcome, fault = self.fault_of(answer, connection)
        self.error_example = self.error_example or fault or None
        return outcome

    def _broken(self, connection: Connection, error: OSError) -> None:
        """End a connection, with the request on it as failed."""
        row = connection.row
        outcome = CLOSED if connection.ready else NOT_CONNECTED
        if isinstance(error, MalformedAnswer):
            outcome = MALFORMED
        self._drop(connection)
        self.connections_closed += connection.ready
        if row is not None:
            del self.in_flight[row]
            self.error_example = self.error_example or str(error)
            self.finished(row, outcome, 0)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        if not connection.ready:
            self.connecting -= 1
        self._blocked.discard(connection.fd)
        if connection in self._free:
            self._free.remove(connection)
        self.poller.remove(connection.fd)
        connection.stream.close()
        self.addresses.closed(connection.stream, was_ready=connection.ready)


def _read_on(connection: Connection) -> Answer | None:
    """Continue a response that one read did not complete, with a limited number of reads."""
    stream, read, answer = connection.stream, connection.reader.read, None
    for _ in range(_READS):
        if answer is None:
            answer = read(stream)
    if stream.hides_data:
        stream.take_no_more()
        while answer is None:
            answer = read(stream)
    return answer
