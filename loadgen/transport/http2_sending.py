"""Send calls on an HTTP/2 connection, as far as the server's windows allow (RFC 9113)."""

from __future__ import annotations

import struct

from loadgen.transport.http2_call import Call
from loadgen.transport.http2_fast_path import PreparedCall
from loadgen.transport.http2_frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST,
    MAX_FRAME,
    MAX_STREAMS,
    OPENING,
    RST_STREAM,
    SETTINGS,
    TABLE_SIZE,
    RequestHead,
    frame,
    frame_head,
    settings_in,
)
from loadgen.transport.sockets import Stream

_CANCEL = 8
_SEND_AT_ONCE = 1 << 18


class SendingHalf:
    """Starts calls; many may be in flight. Raises OSError if the connection breaks."""

    def __init__(self, stream: Stream, head: RequestHead) -> None:
        self.stream = stream
        self.calls: dict[int, Call] = {}
        self.settled = False  # the server's settings are known
        self.leaving = False  # the server accepts no new calls here
        self.bytes_sent = 0
        self._head = head
        self._block = head.first
        self._next_id = 1
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._most_data = 16384
        self.most_calls = LARGEST  # at a time
        self._waiting: dict[int, Call] = {}  # calls whose message is not completely sent
        self._outgoing = bytearray(OPENING)
        self._replies = 0  # to pings and settings, since `_outgoing` was last empty
        self._spare: Call | None = None  # from the last response of a known shape, for the next prepared call
        self._most_prepared = -1  # messages of up to so many bytes fit a stream's window and may go as prepared

    @property
    def has_room(self) -> bool:
        """True if another call may be started now."""
        return not self.leaving and len(self.calls) < self.most_calls

    @property
    def idle_but_for_one(self) -> bool:
        """True if the settings are known, at most one call is open, and everything is sent."""
        return self.settled and len(self.calls) <= 1 and not self._waiting and not self._outgoing

    @property
    def wants_to_write(self) -> bool:
        """True if bytes wait for the kernel to take them."""
        return bool(self._outgoing)

    def start(self, row: int, message: bytes) -> int:
        """Send a call; its message has gRPC's prefix of five bytes. Returns the stream number."""
        stream_id = self._next_id
        self._next_id += 2
        self.leaving = self.leaving or self._next_id > LARGEST
        block = self._block
        if block is self._head.first:
            self._block = self._head.later
            self._most_prepared = self._initial_window
        call = self.calls[stream_id] = Call(row, self._initial_window)
        call.unsent = memoryview(message)
        self._outgoing += frame_head(len(block), HEADERS, END_HEADERS, stream_id) + block
        self._waiting[stream_id] = call
        self._send_waiting()
        self.flush()
        return stream_id

    def start_prepared(self, row: int, prepared: PreparedCall) -> bool:
        """Send a call, usually in its prepared frames; True if the kernel took all of it."""
        size = prepared.size
        if size > self._most_prepared or size > self._window or self._outgoing:
            self.start(row, prepared.message())
            return not self._outgoing
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if stream_id >= LARGEST - 2:
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
        """Cancel the call of a row; its end is not reported."""
        stream_id = next((number for number, call in self.calls.items() if call.row == row), 0)
        self._waiting.pop(stream_id, None)
        if self.calls.pop(stream_id, None) is not None:
            self._outgoing += frame(RST_STREAM, 0, stream_id, struct.pack(">I", _CANCEL))
            self.flush()

    def flush(self) -> None:
        """Give the kernel as many waiting bytes as it takes."""
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as whole, whole[:_SEND_AT_ONCE] as part:
                    count = self.stream.send(part)
                self.bytes_sent += count
                del self._outgoing[:count]
            self._replies = 0
        except BlockingIOError:
            return

    def _apply_settings(self, payload: bytes) -> None:
        for name, value in settings_in(payload):
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
        """Put as much of the message into frames as both windows allow."""
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
