"""One HTTP/2 connection that carries unary gRPC calls (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.transport.http1_response import ReadBuffer
from loadgen.transport.http2_call import PREFIX_BYTES, Call
from loadgen.transport.http2_fast_path import KnownShapes
from loadgen.transport.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADERS,
    LARGEST,
    LARGEST_FRAME,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    HeaderBlock,
    HeaderBlocks,
    RequestHead,
    frame,
    number_in,
    unpadded,
)
from loadgen.transport.http2_sending import SendingHalf
from loadgen.transport.sockets import Stream

_MAX_REPLIES = 10_000
_MAX_EMPTY_FRAMES = 10_000
_WINDOW_TOP_UP = 1 << 28


class Http2Connection(SendingHalf):
    """Starts calls and reports their ends; many may be in flight. Raises OSError if the connection breaks.

    `ended(call, reset)` is called for every call that ends: `reset` if the server broke it off, else its headers
    and trailers are in `call.fields`. It makes the call `proven` if the response is correct: the next ones with
    the same frames, of the same lengths, then count as proven.
    `wants(length)` is True if a message of this length is to be kept, in `call.answer`.
    """

    def __init__(
        self,
        stream: Stream,
        head: RequestHead,
        buffer: ReadBuffer,
        ended: Callable[[Call, bool], None],
        wants: Callable[[int], bool],
    ) -> None:
        super().__init__(stream, head)
        self._ended = ended
        self._wants = wants
        self._buffer = buffer
        self._blocks = HeaderBlocks()
        self._taken = 0  # bytes of data since our window was last widened
        self._skip = 0  # bytes left of a data frame whose content is not needed
        self._rest = b""  # the beginning of an incomplete frame
        self._shapes = KnownShapes()
        self._empty_frames = 0  # empty data frames since a call ended
        self._ended_well = False  # the last call in the bytes just read

    def receive(self) -> None:
        """Read once, and act on the bytes. Raises BlockingIOError if there are none."""
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
        self._ended_well = False
        at = self._act(data)
        self._rest = bytes(data[at:])
        if decoder.changes != changes:
            self._shapes.forget()
        elif between_frames and at == count and self._ended_well:
            self._shapes.learn(data, decoder.decode)
        if self._outgoing:
            self.flush()

    def _take_known(self, count: int) -> bool:
        """Act on the bytes if they are one complete response of a known shape; True if they are."""
        shape = self._shapes.by_length.get(count)
        if shape is None:
            return False
        stream_id = shape.stream_of(self._buffer.data)
        call = self.calls.get(stream_id)
        if call is None or call.fields or call.unsent is not None:
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
        call.proven = True
        self._ended(call, False)
        call.proven = False
        call.fields = ()
        self._spare = call
        return True

    def _act(self, data: memoryview) -> int:
        """Act on all complete frames; returns the position after them."""
        at, end = min(self._skip, len(data)), len(data)
        self._skip -= at
        while end - at >= 9:
            high, low, kind, flags, stream_id = FRAME.unpack_from(data, at)
            length = high << 8 | low
            stream_id &= LARGEST
            if length > LARGEST_FRAME:
                raise MalformedAnswer(f"a frame of {length:,} bytes, over {LARGEST_FRAME:,}")
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
        """Skip a data frame, whose end may not have arrived, or read it if needed; returns the position after it.

        None if a frame that must be complete is not.
        """
        if length == 0 or stream_id == 0 or self._blocks.unfinished is not None:
            self._check_data(length, stream_id)
        call = self.calls.get(stream_id)
        available = len(data) - at
        looks = call is not None and (call.data_bytes < PREFIX_BYTES or call.answer is not None)
        if available < length and (looks or flags):
            return None
        self._taken += length
        if self._taken > _WINDOW_TOP_UP:
            self._top_up()
        if call is not None:
            if looks or flags:
                self._look(call, data[at : at + length], flags)
            else:
                call.data_bytes += length
        if flags & END_STREAM:
            self._end(stream_id, reset=False)
        if available < length:
            self._skip = length - available
            return len(data)
        return at + length

    def _look(self, call: Call, payload: memoryview, flags: int) -> None:
        if not call.fields:
            raise MalformedAnswer("data before headers")
        if flags or not call.skips(payload, self._wants):
            call.take(unpadded(bytes(payload), flags), self._wants)

    def _check_data(self, length: int, stream_id: int) -> None:
        if stream_id == 0 or self._blocks.unfinished is not None:
            raise MalformedAnswer("data of no stream, or within a header block")
        if length == 0:
            self._empty_frames += 1
            if self._empty_frames > _MAX_EMPTY_FRAMES:
                raise MalformedAnswer(f"over {_MAX_EMPTY_FRAMES:,} frames without data in one answer")

    def _top_up(self) -> None:
        self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
        self._taken = 0

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._blocks.unfinished is not None and kind != CONTINUATION:
            raise MalformedAnswer("a header block is interrupted")
        if kind == HEADERS:
            self._take_headers(self._blocks.begin(stream_id, flags, payload))
        elif kind == CONTINUATION:
            self._take_headers(self._blocks.go_on(stream_id, flags, payload))
        elif kind == RST_STREAM:
            number_in(kind, payload)
            self._end(stream_id, reset=True)
        elif kind == WINDOW_UPDATE:
            self._widen(stream_id, number_in(kind, payload))
        elif kind == GOAWAY:
            self._leave(number_in(kind, payload, exactly=None))
        elif kind == PUSH_PROMISE:
            raise MalformedAnswer("a push, which was not asked for")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._reply(kind, payload)

    def _reply(self, kind: int, payload: bytes) -> None:
        self._replies += 1
        if self._replies > _MAX_REPLIES:
            raise MalformedAnswer(f"over {_MAX_REPLIES:,} pings and settings at once")
        if kind == SETTINGS:
            self._apply_settings(payload)
        elif len(payload) == 8:
            self._outgoing += frame(PING, ACK, 0, payload)
        else:
            raise MalformedAnswer(f"a ping of {len(payload)} bytes")

    def _take_headers(self, block: HeaderBlock | None) -> None:
        call = None if block is None else self.calls.get(block.stream_id)
        if block is not None and call is not None:
            call.add_fields(block.fields)
            if block.ends_stream:
                self._end(block.stream_id, reset=False)

    def _end(self, stream_id: int, *, reset: bool) -> None:
        self._waiting.pop(stream_id, None)
        call = self.calls.pop(stream_id, None)
        if call is not None:
            self._empty_frames = 0
            self._ended(call, reset)
            self._ended_well = call.proven

    def _leave(self, last_id: int) -> None:
        """Act on a GOAWAY: calls that the server did not accept end here, the others may finish."""
        self.leaving = True
        for stream_id in [number for number in self.calls if number > last_id]:
            self._end(stream_id, reset=True)
