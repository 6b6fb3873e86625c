"""Send requests whose responses are streams of tokens, and note when the tokens arrive."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadgen.errors import MalformedAnswer
from loadgen.spec.plan import Streamed
from loadgen.status import OK
from loadgen.wire.addresses import Addresses
from loadgen.wire.events import Reply
from loadgen.wire.http1 import Connection, HttpWire
from loadgen.wire.http1_response import Answer, AnswerReader
from loadgen.wire.in_front import note_model
from loadgen.wire.load_wire import Finished, Requests
from loadgen.wire.poller import Poller
from loadgen.wire.sockets import ReadBuffer

Replied = Callable[[int, Reply], None]
"""Takes a row and its reply, with times of the monotonic clock, before the row is finished."""


class ReplyReader(AnswerReader):
    """Reads the replies of one connection, each at the times when the kernel received its bytes."""

    def __init__(self, buffer: ReadBuffer) -> None:
        super().__init__(buffer)
        self.reply = Reply()
        self.sent_ns = 0  # when the request was begun to be sent
        self.ended_ns = 0  # when its last event arrived, by the wall clock
        self._at_ns = 0

    def on_body(self, data: bytes) -> None:
        """Take a part of the body; of a status other than 200 it is the error's text."""
        if self._parser.get_status_code() != 200:
            super().on_body(data)
            return
        self._size += len(data)
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        arrived_ns = self.arrived_ns or wall_ns
        age_ns = wall_ns - arrived_ns
        if not self.reply.done:
            self.ended_ns = arrived_ns
        if now_ns - age_ns < self.sent_ns:  # somebody has set the clock
            age_ns = 0
        # Never before the part before it, nor later than now.
        self._at_ns = min(now_ns, max(self._at_ns, now_ns - age_ns))
        self.reply.feed(data, self._at_ns)


class StreamWire(HttpWire):
    """See `HttpWire`. A response of status 200 has failed if its stream is not what was asked for."""

    look_at_each = 1

    def __init__(
        self,
        asked: Streamed,
        model: str,
        *,
        addresses: Addresses,
        requests: Requests,
        poller: Poller,
        finished: Finished,
    ) -> None:
        super().__init__(addresses=addresses, requests=requests, expected=None, poller=poller, finished=finished)
        self._asked, self._model = asked, model
        self.replied: Replied = lambda _row, _reply: None

    @property
    def answers_may_wait(self) -> bool:
        """Never: the kernel would note one time for all tokens that wait in it."""
        return False

    def reader(self, buffer: ReadBuffer) -> AnswerReader:
        """See `HttpWire`."""
        return ReplyReader(buffer)

    def send(self, row: int) -> bool:
        """See `Wire`."""
        began_ns = time.monotonic_ns()
        whole = super().send(row)
        if (connection := self.in_flight.get(row)) is not None:
            assert isinstance(connection.reader, ReplyReader)
            connection.reader.sent_ns, connection.reader.ended_ns = began_ns, 0
        return whole

    def fault_of(self, answer: Answer, connection: Connection) -> tuple[int, str]:
        """See `HttpWire`."""
        reader = connection.reader
        assert isinstance(reader, ReplyReader)
        reply, reader.reply = reader.reply, Reply()
        reader.arrived_ns = reader.ended_ns or reader.arrived_ns
        if reply.chunks and reply.first_ns < reader.sent_ns:
            raise MalformedAnswer("tokens before their request was sent")
        if connection.row is not None:
            self.replied(connection.row, reply)
        outcome, fault = reply.fault(self._asked, answer.content_type)
        if outcome == OK:
            note_model(self.in_front, self._model, reply.model)
        return outcome, fault
