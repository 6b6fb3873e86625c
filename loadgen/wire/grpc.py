"""Send prepared messages and read response statuses, with gRPC over a few HTTP/2 connections."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

from loadgen.errors import MalformedAnswer
from loadgen.status import CLOSED, MALFORMED, NOT_CONNECTED, OK, outcome_name, outcome_of_connect_error
from loadgen.wire.expected_response import MAX_KEPT, ExpectedAnswer
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_frames import Field, RequestHead
from loadgen.wire.http2_sending import Call, status_of
from loadgen.wire.in_front import note_failure
from loadgen.wire.load_wire import EARLY, LoadWire
from loadgen.wire.poller import READ, WRITE
from loadgen.wire.sockets import Stream, TlsStream

MAX_CONNECTIONS = 8
_MAX_TRIES = 3


@dataclass(slots=True, eq=False)
class _Connection:
    """An HTTP/2 connection and its place in the poller."""

    fd: int
    stream: Stream
    http2: Http2Connection
    plain: bool  # the poller sees all bytes that came
    ready: bool = False
    idle: bool = False  # it is in the wire's list of idle connections
    events: int = WRITE

    @property
    def usable(self) -> bool:
        return self.ready and self.http2.settled and self.http2.has_room


@dataclass(kw_only=True, eq=False)
class GrpcWire(LoadWire):
    """Sends row r as `requests[r % len(requests)]` and calls `finished` when its response is complete.

    Each call goes to an idle connection of up to eight; if none is idle, calls share them in turn. More are opened
    if the server limits the calls on each. What the server did not process (GOAWAY, REFUSED_STREAM) goes to
    another connection at once, up to three times in all; not counted is a GOAWAY after earlier calls of its
    connection were taken. A response of status OK that is not as `expected` is malformed.
    """

    head: RequestHead
    expected: ExpectedAnswer
    in_flight: dict[int, _Connection | None] = field(default_factory=dict, init=False)
    _wanted: int = field(default=0, init=False)  # connections
    _too_few: bool = field(default=False, init=False)  # connections, since one was closed
    _in_turn: bool = field(default=False, init=False)  # else a slow address, which is rarely idle, gets too little
    _connections: dict[int, _Connection] = field(default_factory=dict, init=False)
    _turn: deque[_Connection] = field(default_factory=deque, init=False)
    # Idle connections are usable and have no call; the server may be leaving some.
    _idle: deque[_Connection] = field(default_factory=deque, init=False)
    _unsettled: bool = field(default=True, init=False)  # some connection may not be settled yet
    _unsent: deque[int] = field(default_factory=deque, init=False)  # rows that wait for a connection
    _bytes_sent_before: int = field(default=0, init=False)  # on connections that are closed
    _fields_of_success: tuple[Field, ...] | None = field(default=None, init=False)  # the next calls have the same
    _tries: dict[int, int] = field(default_factory=dict, init=False)  # of rows that the server refused

    @property
    def connecting(self) -> int:
        """The number of connections that cannot be used yet."""
        return sum(not (c.ready and c.http2.settled) for c in self._connections.values())

    @property
    def answers_may_wait(self) -> bool:
        """See `Wire`. False if two calls share a connection: only the later of two responses keeps its time."""
        if self._unsent or not self._idle or self._in_turn or not self._buffer.takes_little:
            return False
        if self._unsettled:
            self._unsettled = self.connecting > 0
        for connection in self.in_flight.values():
            if connection is None or not connection.http2.idle_but_for_one:
                return False
        return not self._unsettled

    @property
    def bytes_sent(self) -> int:
        """All bytes, those of HTTP/2 itself included."""
        return self._bytes_sent_before + sum(c.http2.bytes_sent for c in self._connections.values())

    def open(self, count: int) -> None:
        """Begin to open connections: `count` up to 8, or one per address. Raises OSError if one cannot begin."""
        self._wanted = max(min(count, MAX_CONNECTIONS), self.addresses.connections_min)
        while len(self._connections) < self._wanted:
            self._connect()

    def send(self, row: int) -> bool:
        """See `Wire`: start the call on an idle connection or the next one, or let it wait for one."""
        if self._too_few and self.connecting == 0:  # else the addresses of the others would get all calls
            with contextlib.suppress(OSError):  # a call that needs it will fail with the error
                self._connect()
        idle = self._idle
        while idle and not self._in_turn:
            connection = idle.popleft()
            connection.idle = False
            http2 = connection.http2
            if http2.leaving or not http2.most_calls:
                continue
            return self._start(connection, row) and bool(idle)
        self.in_flight[row] = None
        turn = self._turn
        for _ in range(len(turn)):
            connection = turn[0]
            turn.rotate(-1)
            if connection.usable:
                self._start(connection, row)
                return False
        self._unsent.append(row)
        if self.connecting == 0 and all(c.http2.most_calls for c in self._connections.values()):
            try:
                self._connect()
            except OSError as error:
                self._unsent.pop()
                self._end(row, outcome_of_connect_error(error), str(error))
        return False

    def handle(self, fd: int, events: int) -> None:
        """Continue with a connection that the poller reported; unknown file descriptors are ignored."""
        connection = self._connections.get(fd)
        if connection is None:
            return
        try:
            if not connection.ready:
                self._go_on_connecting(connection)
            else:
                if events & WRITE:
                    connection.http2.flush()
                if events & ~WRITE:
                    self._receive(connection)
                if connection.plain and connection.events == READ and not connection.http2.wants_to_write:
                    return  # the poller has nothing else to wait for
            self._watch(connection)
        except OSError as error:
            self._broken(connection, error)

    def give_up(self, row: int) -> None:
        """Forget a call, and cancel it on the server."""
        connection = self.in_flight.pop(row)
        if connection is None:
            self._unsent.remove(row)
            return
        connection.http2.cancel(row)
        self._watch(connection)
        self._rest_if_idle(connection)

    def close(self) -> None:
        """Close all connections; requests in flight are forgotten."""
        self.in_flight.clear()
        self._unsent.clear()
        self._wanted = 0
        for connection in list(self._connections.values()):
            self._drop(connection)

    def _connect(self) -> None:
        stream = self.addresses.open()
        http2 = Http2Connection(stream, self.head, self._buffer, self._answered, MAX_KEPT)
        connection = _Connection(stream.fileno(), stream, http2, plain=not stream.hides_data)
        self._connections[connection.fd] = connection
        self._too_few = len(self._connections) < self._wanted
        self._in_turn = self.addresses.connections_min > 0
        self._unsettled = True
        self._turn.append(connection)
        self.poller.add(connection.fd, WRITE)
        self.connections_opened += 1

    def _go_on_connecting(self, connection: _Connection) -> None:
        if not connection.stream.connected():
            return
        if isinstance(connection.stream, TlsStream) and connection.stream.protocol != "h2":
            raise MalformedAnswer("the server speaks no HTTP/2 over TLS")
        connection.ready = True
        connection.http2.flush()

    def _receive(self, connection: _Connection) -> None:
        stream, http2 = connection.stream, connection.http2
        try:
            http2.receive()
            if stream.hides_data:
                stream.take_no_more()
                while True:
                    http2.receive()
        except BlockingIOError:
            pass
        while self._unsent and connection.usable:
            self._start(connection, self._unsent.popleft())
        if not connection.http2.calls:
            if connection.http2.leaving:
                self.connections_closed += 1
                self._drop(connection)
            else:
                self._rest_if_idle(connection)

    def _rest_if_idle(self, connection: _Connection) -> None:
        if not connection.idle and not connection.http2.calls and connection.usable:
            connection.idle = True
            self._idle.append(connection)

    def _start(self, connection: _Connection, row: int) -> bool:
        """Start a call; True if the kernel took all of it."""
        self.in_flight[row] = connection
        if self.places:
            self.places[row] = connection.stream.place + 1
        if connection.http2.start(row, self.requests[row % len(self.requests)]):
            return True
        self._watch(connection)
        return False

    def _watch(self, connection: _Connection) -> None:
        """Register the events that the connection now waits for."""
        wants = connection.stream.wants() | (WRITE if connection.http2.wants_to_write and connection.ready else 0)
        if wants != connection.events and connection.fd in self._connections:
            connection.events = wants
            self.poller.change(connection.fd, wants)

    def _answered(self, call: Call, reset: bool) -> None:
        tries = self._tries.get(call.row, 1) + (call.refused or 0)
        if call.refused is not None and tries <= _MAX_TRIES:
            self._tries[call.row] = tries
            self.resent += 1
            self.send(call.row)
            return
        outcome, text = (CLOSED, "the server reset the call") if reset else self._judged(call)
        connection = self.in_flight[call.row]
        self._end(call.row, outcome, text, 0 if connection is None else connection.stream.arrived_ns)

    def _judged(self, call: Call) -> tuple[int, str]:
        """Return the outcome of a response."""
        outcome, text = OK, ""
        if call.fields != self._fields_of_success:
            outcome, text = status_of(call.fields)
        if outcome == OK:
            self._fields_of_success = call.fields
            fault = EARLY if call.early else self.expected.fault_of_grpc(call)
            if fault is not None:
                return MALFORMED, fault
        else:
            fields = dict(call.fields)
            note_failure(self.in_front, outcome, fields)
            self.retry_after = fields.get(b"retry-after", b"")
        return outcome, text

    def _end(self, row: int, outcome: int, text: str, arrived_ns: int = 0) -> None:
        del self.in_flight[row]
        if self._tries:
            self._tries.pop(row, None)
        if outcome != OK and self.error_example is None:
            self.error_example = f"{outcome_name(outcome)}, {text}"
        self.finished(row, outcome, arrived_ns)

    def _broken(self, connection: _Connection, error: OSError) -> None:
        """End a connection, with all calls on it as failed, and those that waited for it in vain."""
        lost = [call.row for call in connection.http2.calls.values()]
        outcome = CLOSED if connection.ready and connection.http2.settled else NOT_CONNECTED
        if isinstance(error, MalformedAnswer):
            outcome = MALFORMED
        self.connections_closed += connection.ready
        self._drop(connection)
        if not self.connecting and not any(c.usable for c in self._connections.values()):
            lost += self._unsent
            self._unsent.clear()
        for row in lost:
            self._end(row, outcome, str(error))

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._bytes_sent_before += connection.http2.bytes_sent
            self._turn.remove(connection)
            if connection.idle:
                self._idle.remove(connection)
            self.poller.remove(connection.fd)
            connection.stream.close()
            self.addresses.closed(connection.stream, was_ready=connection.ready)
            self._too_few = len(self._connections) < self._wanted
