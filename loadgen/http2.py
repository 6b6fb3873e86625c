"""One HTTP/2 connection that carries unary gRPC calls (RFC 9113)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from loadgen.answer_shape import KnownShapes
from loadgen.header_blocks import HeaderBlocks
from loadgen.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    MAX_STREAMS,
    OPENING,
    PING,
    RST_STREAM,
    SETTINGS,
    TABLE_SIZE,
    WINDOW_UPDATE,
    RequestHead,
    frame,
    frame_head,
    unpadded,
)  # fmt: skip
from loadgen.http_answer import ClosedEarly, MalformedAnswer, ReadBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.header_blocks import HeaderBlock
    from loadgen.hpack import Field
    from loadgen.prepared_call import PreparedCall
    from loadgen.streams import Stream

_CANCEL = 8
_LAST_STREAM_ID = (1 << 31) - 1
_WINDOW_TOP_UP = 1 << 28
_SEND_AT_ONCE = 1 << 18


class Call:
    """One unary call: what is left to send, and what its answer said so far."""

    __slots__ = ("answer", "fields", "row", "unsent", "window")

    def __init__(self, row: int, window: int, keep_answer: bool = False) -> None:
        self.row = row
        self.unsent: memoryview | None = None
        self.window = window
        self.fields: tuple[Field, ...] = ()
        self.answer: bytearray | None = bytearray() if keep_answer else None


class Http2Connection:
    """Starts calls and reports their ends; many may be in flight. Raises OSError where the connection breaks.

    `ended(call, reset)` is called for every call that ends: `reset` when the server broke it off, else its
    headers and trailers are in `call.fields`.
    """

    def __init__(
        self, stream: Stream, head: RequestHead, buffer: ReadBuffer, ended: Callable[[Call, bool], None]
    ) -> None:
        self.stream = stream
        self.calls: dict[int, Call] = {}
        self.settled = False  # the server's settings are known
        self.leaving = False  # the server takes no new calls here
        self.bytes_sent = 0
        self._ended = ended
        self._buffer = buffer
        self._blocks = HeaderBlocks()
        self._head = head
        self._block = head.first
        self._next_id = 1
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._most_data = 16384
        self.most_calls = _LAST_STREAM_ID  # at a time
        self._waiting: dict[int, Call] = {}  # calls whose message is not wholly sent
        self._taken = 0  # bytes of data since our window was last topped up
        self._skip = 0  # bytes of a data frame whose content nobody wants
        self._rest = b""  # the beginning of a frame that is not whole yet
        self._outgoing = bytearray(OPENING)
        self._shapes = KnownShapes()
        self._spare: Call | None = None  # of the last answer of a known shape, for the next prepared call
        self._most_prepared = -1  # size of a message that may go as it was prepared, as far as its own window goes

    @property
    def has_room(self) -> bool:
        """Whether another call may be started now."""
        return not self.leaving and len(self.calls) < self.most_calls

    @property
    def idle_but_for_one(self) -> bool:
        """Whether nothing is waited for but the answer to one call, which is wholly sent."""
        return self.settled and len(self.calls) <= 1 and not self._waiting and not self._outgoing

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for the kernel to take them."""
        return bool(self._outgoing)

    def start(self, row: int, message: bytes, *, keep_answer: bool = False) -> int:
        """Send a call; its message is gRPC's, with the five bytes before it. Returns its number."""
        stream_id = self._next_id
        self._next_id += 2
        self.leaving = self.leaving or self._next_id > _LAST_STREAM_ID
        block = self._block
        if block is self._head.first:
            self._block = self._head.later
            self._most_prepared = self._initial_window
        call = self.calls[stream_id] = Call(row, self._initial_window, keep_answer)
        call.unsent = memoryview(message)
        self._outgoing += frame_head(len(block), HEADERS, END_HEADERS, stream_id) + block
        self._waiting[stream_id] = call
        self._send_waiting()
        self.flush()
        return stream_id

    def start_prepared(self, row: int, prepared: PreparedCall) -> bool:
        """Send a call, in the usual case as it lies there; whether the kernel took all of it."""
        size = prepared.size
        if size > self._most_prepared or size > self._window or self._outgoing:
            self.start(row, prepared.message())
            return not self._outgoing
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if stream_id >= _LAST_STREAM_ID - 2:
            self.leaving = True
        call = self._spare
        if call is None:
            call = Call(row, self._initial_window)
        else:
            self._spare = None
            call.row = row
        self.calls[stream_id] = call
        self._window -= size
        data = prepared.numbered(stream_id)
        try:
            count = self.stream.send(data)
        except BlockingIOError:
            count = 0
        self.bytes_sent += count
        if count == len(data):
            return True
        self._outgoing += data[count:]
        self.flush()
        return not self._outgoing

    def cancel(self, row: int) -> None:
        """Break the call of a row off; nothing more is heard of it."""
        stream_id = next((number for number, call in self.calls.items() if call.row == row), 0)
        self._waiting.pop(stream_id, None)
        if self.calls.pop(stream_id, None) is not None:
            self._outgoing += frame(RST_STREAM, 0, stream_id, struct.pack(">I", _CANCEL))
            self.flush()

    def flush(self) -> None:
        """Give the kernel what it takes."""
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as whole, whole[:_SEND_AT_ONCE] as part:
                    count = self.stream.send(part)
                self.bytes_sent += count
                del self._outgoing[:count]
        except BlockingIOError:
            return

    def receive(self) -> None:
        """Read once, and act on what came. Raises BlockingIOError when nothing is there."""
        count = self.stream.recv_into(self._buffer.view)
        if count == 0:
            raise ClosedEarly("the server closed the connection")
        self._buffer.received(count)
        between_frames = not self._rest and not self._skip and self._blocks.unfinished is None
        if between_frames and self._take_known(count):
            return
        new = self._buffer.view[:count]
        data = memoryview(self._rest + bytes(new)) if self._rest else new
        decoder = self._blocks.decoder
        changes = decoder.changes
        at = self._act(data)
        self._rest = bytes(data[at:])
        if decoder.changes != changes:
            self._shapes.forget()
        elif between_frames and at == count:
            self._shapes.learn(data, decoder.decode)
        if self._outgoing:
            self.flush()

    def _take_known(self, count: int) -> bool:
        """Act on what was read where it is one whole answer like one before."""
        shape = self._shapes.by_length.get(count)
        if shape is None:
            return False
        stream_id = shape.stream_of(self._buffer.data)
        call = self.calls.get(stream_id)
        if call is None or call.answer is not None or call.fields or call.unsent is not None:
            return False
        del self.calls[stream_id]
        call.fields = shape.fields
        self._window += shape.window
        self._taken += shape.data_bytes
        if self._taken > _WINDOW_TOP_UP:
            self._top_up()
        if self._waiting:
            self._send_waiting()
        if self._outgoing:
            self.flush()
        self._ended(call, False)
        call.fields = ()
        self._spare = call
        return True

    def _act(self, data: memoryview) -> int:
        """Act on all whole frames; how far that came."""
        at, end = min(self._skip, len(data)), len(data)
        self._skip -= at
        while end - at >= 9:
            high, low, kind, flags, stream_id = FRAME.unpack_from(data, at)
            length = high << 8 | low
            stream_id &= _LAST_STREAM_ID
            if kind == DATA:
                after = self._take_data(data, at + 9, length, flags, stream_id)
                if after is None:
                    break
                at = after
                continue
            if end - at - 9 < length:
                break
            self._control(kind, flags, stream_id, bytes(data[at + 9 : at + 9 + length]))
            at += 9 + length
        return at

    def _take_data(self, data: memoryview, at: int, length: int, flags: int, stream_id: int) -> int | None:
        """Step over a data frame, of which the end may still be on its way; keep it where it is wanted.

        None where a frame that is needed whole is not.
        """
        call = self.calls.get(stream_id)
        available = len(data) - at
        keeps = call is not None and call.answer is not None
        if available < length and (keeps or flags & END_STREAM):
            return None
        self._taken += length
        if self._taken > _WINDOW_TOP_UP:
            self._top_up()
        if call is not None and call.answer is not None:
            call.answer += unpadded(bytes(data[at : at + length]), flags)
        if flags & END_STREAM:
            self._end(stream_id, reset=False)
        if available < length:
            self._skip = length - available
            return len(data)
        return at + length

    def _top_up(self) -> None:
        self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
        self._taken = 0

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._blocks.unfinished is not None and kind != CONTINUATION:
            raise MalformedAnswer("a header block is interrupted")
        if kind == HEADERS:
            self._take_headers(self._blocks.begin(stream_id, flags, payload))
        elif kind == CONTINUATION:
            self._take_headers(self._blocks.go_on(flags, payload))
        elif kind == RST_STREAM:
            self._end(stream_id, reset=True)
        elif kind == SETTINGS and not flags & ACK:
            self._apply_settings(payload)
        elif kind == PING and not flags & ACK:
            self._outgoing += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            self._widen(stream_id, struct.unpack(">I", payload)[0])
        elif kind == GOAWAY:
            self._leave(struct.unpack_from(">I", payload)[0] & _LAST_STREAM_ID)

    def _take_headers(self, block: HeaderBlock | None) -> None:
        call = None if block is None else self.calls.get(block.stream_id)
        if block is not None and call is not None:
            call.fields = (*call.fields, *block.fields)
            if block.ends_stream:
                self._end(block.stream_id, reset=False)

    def _end(self, stream_id: int, *, reset: bool) -> None:
        self._waiting.pop(stream_id, None)
        call = self.calls.pop(stream_id, None)
        if call is not None:
            self._ended(call, reset)

    def _leave(self, last_id: int) -> None:
        """The server goes away: calls that it did not take end here, the others may finish."""
        self.leaving = True
        for stream_id in [number for number in self.calls if number > last_id]:
            self._end(stream_id, reset=True)

    def _apply_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == INITIAL_WINDOW:
                for call in self.calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif name == MAX_FRAME:
                self._most_data = value
            elif name == MAX_STREAMS:
                self.most_calls = value
            elif name == TABLE_SIZE and value < 4096:
                self._block = self._head.plain
        self._most_prepared = self._initial_window if self._block is self._head.later else -1
        self.settled = True
        self._outgoing += frame(SETTINGS, ACK, 0)
        self._send_waiting()

    def _widen(self, stream_id: int, more: int) -> None:
        if stream_id == 0:
            self._window += more
        elif stream_id in self.calls:
            self.calls[stream_id].window += more
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        for stream_id, call in list(self._waiting.items()):
            self._send_message(stream_id, call)
            if call.unsent is None:
                del self._waiting[stream_id]

    def _send_message(self, stream_id: int, call: Call) -> None:
        """Put as much of the message in frames as both windows allow."""
        while call.unsent is not None:
            size = max(0, min(len(call.unsent), self._most_data, self._window, call.window))
            if size == 0 and call.unsent:
                return
            last = size == len(call.unsent)
            self._outgoing += frame_head(size, DATA, END_STREAM if last else 0, stream_id)
            self._outgoing += call.unsent[:size]
            self._window -= size
            call.window -= size
            call.unsent = None if last else call.unsent[size:]
