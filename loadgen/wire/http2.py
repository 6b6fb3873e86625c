"""One HTTP/2 connection that carries unary gRPC calls (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.wire import http2_frames as h2
from loadgen.wire.http2_frames import HeaderDecoder, RequestHead, frame, number_in, unpadded
from loadgen.wire.http2_sending import Call, SendingHalf
from loadgen.wire.sockets import ReadBuffer, Stream

_REFUSED = 7
_MAX_REPLIES = 10_000
_MAX_EMPTY_FRAMES = 10_000
_MAX_BLOCK_FRAMES = 64
_MAX_BLOCKS = 8
_MAX_FIELDS = 1000
_LONGEST_BLOCK = 1 << 16
_WINDOW_TOP_UP = 1 << 28
_IN_PARTS = h2.END_HEADERS | h2.PADDED | h2.WITH_PRIORITY


class Http2Connection(SendingHalf):
    """Starts calls and reports their ends; many may be in flight. Reading raises OSError if the connection breaks.

    `ended(call, reset)` is called for every call that ends: `reset` if the server broke it off, else its headers
    and trailers are in `call.fields`. `call.refused`: None unless it did not process it, so that it may be sent
    again. Up to `most_kept` bytes of a message and its prefix are kept, in `call.answer`.
    """

    def __init__(
        self,
        stream: Stream,
        head: RequestHead,
        buffer: ReadBuffer,
        ended: Callable[[Call, bool], None],
        most_kept: int,
    ) -> None:
        super().__init__(stream, head)
        self._ended = ended
        self._most_kept = most_kept
        self._buffer = buffer
        self._decoder = HeaderDecoder()
        self._unfinished: tuple[int, int, bytearray] | None = None  # a header block in pieces: stream, flags
        self._block_frames = 0  # of that block
        self._taken = 0  # bytes of data since our window was last widened
        self._rest = b""  # the beginning of an incomplete frame
        self._empty_frames = 0  # empty data frames since a call ended

    def receive(self) -> None:
        """Read once, and act on the bytes. Raises BlockingIOError if there are none."""
        view, kept = self._buffer.view, len(self._rest)
        if kept:
            view[:kept] = self._rest
        count = self.stream.recv_into(view[kept:] if kept else view)
        if count == 0:
            raise ClosedEarly("the server closed the connection")
        self._buffer.received(count)
        end = kept + count
        at = self._act(view, end)
        self._rest = bytes(view[at:end])
        if self._outgoing:
            self.flush()

    def _act(self, data: memoryview, end: int) -> int:
        """Act on all complete frames; returns the position after them."""
        at = 0
        while end - at >= 9:
            high, low, kind, flags, stream_id = h2.FRAME.unpack_from(data, at)
            length = high << 8 | low
            if length > h2.LARGEST_FRAME:
                raise MalformedAnswer(f"a frame of {length:,} bytes, over {h2.LARGEST_FRAME:,}")
            after = at + 9 + length
            if after > end:
                break
            if self._unfinished is not None and kind != h2.CONTINUATION:
                raise MalformedAnswer("a header block is interrupted")
            payload, stream_id = data[at + 9 : after], stream_id & h2.LARGEST
            if kind == h2.DATA:
                self._take_data(stream_id, flags, payload)
            elif kind == h2.HEADERS and stream_id and flags & _IN_PARTS == h2.END_HEADERS:  # the usual case
                self._take_block(stream_id, flags, bytes(payload))
            else:
                self._control(kind, flags, stream_id, bytes(payload))
            at = after
        return at

    def _take_data(self, stream_id: int, flags: int, payload: memoryview) -> None:
        if stream_id == 0:
            raise MalformedAnswer("data of no stream")
        self._taken += len(payload)
        if self._taken > _WINDOW_TOP_UP:
            self._outgoing += frame(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
            self._taken = 0
        if not payload:
            self._empty_frames += 1
            if self._empty_frames > _MAX_EMPTY_FRAMES:
                raise MalformedAnswer(f"over {_MAX_EMPTY_FRAMES:,} frames without data in one answer")
        call = self.calls.get(stream_id)
        if call is None:
            return
        if not call.fields:
            raise MalformedAnswer("data before headers")
        if flags & h2.PADDED:
            payload = memoryview(unpadded(bytes(payload), flags))
        call.data_bytes += len(payload)
        room = self._most_kept - len(call.answer)
        if room > 0:
            call.answer += payload if len(payload) <= room else payload[:room]
        if flags & h2.END_STREAM:
            self._end(stream_id, reset=False)

    def _take_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & (h2.PADDED | h2.WITH_PRIORITY):
            payload = unpadded(payload, flags)[5 if flags & h2.WITH_PRIORITY else 0 :]
        if stream_id == 0:
            raise MalformedAnswer("headers of no stream")
        if flags & h2.END_HEADERS:
            self._take_block(stream_id, flags, payload)
        else:
            self._unfinished, self._block_frames = (stream_id, flags, bytearray(payload)), 1

    def _continue_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._unfinished is None or self._unfinished[0] != stream_id:
            raise MalformedAnswer("a header block goes on that never began")
        _, first_flags, block = self._unfinished
        block += payload
        self._block_frames += 1
        if len(block) > _LONGEST_BLOCK or self._block_frames > _MAX_BLOCK_FRAMES:
            raise MalformedAnswer(
                f"a header block of over {_LONGEST_BLOCK:,} bytes, or in over {_MAX_BLOCK_FRAMES} frames"
            )
        if flags & h2.END_HEADERS:
            self._unfinished = None
            self._take_block(stream_id, first_flags, bytes(block))

    def _take_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Decode a complete block, also of a call that is over: the decoder's table must match the server's."""
        fields = self._decoder.decode(block)
        call = self.calls.get(stream_id)
        if call is not None:
            call.blocks += 1
            call.fields += fields
            if call.blocks > _MAX_BLOCKS or len(call.fields) > _MAX_FIELDS:
                raise MalformedAnswer(f"an answer with over {_MAX_BLOCKS} header blocks or {_MAX_FIELDS:,} fields")
            if flags & h2.END_STREAM:
                self._end(stream_id, reset=False)

    def _control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == h2.HEADERS:
            self._take_headers(stream_id, flags, payload)
        elif kind == h2.WINDOW_UPDATE:
            self._widen(stream_id, number_in(kind, payload))
        elif kind == h2.CONTINUATION:
            self._continue_headers(stream_id, flags, payload)
        elif kind == h2.RST_STREAM:
            if number_in(kind, payload) == _REFUSED:
                self.leaving = True  # the next calls go to another connection, and so does this one
                self._refuse(stream_id)
            else:
                self._end(stream_id, reset=True)
        elif kind == h2.GOAWAY:
            self._leave(number_in(kind, payload, exactly=None))
        elif kind == h2.PUSH_PROMISE:
            raise MalformedAnswer("a push, which was not asked for")
        elif kind in (h2.SETTINGS, h2.PING) and not flags & h2.ACK:
            self._reply(kind, payload)

    def _reply(self, kind: int, payload: bytes) -> None:
        self._replies += 1
        if self._replies > _MAX_REPLIES:
            raise MalformedAnswer(f"over {_MAX_REPLIES:,} pings and settings at once")
        if kind == h2.SETTINGS:
            self._apply_settings(payload)
        elif len(payload) == 8:
            self._outgoing += frame(h2.PING, h2.ACK, 0, payload)
        else:
            raise MalformedAnswer(f"a ping of {len(payload)} bytes")

    def _end(self, stream_id: int, *, reset: bool) -> None:
        call = self.calls.pop(stream_id, None)
        if call is not None:
            self._waiting.pop(stream_id, None)
            self._empty_frames = 0
            call.early = call.unsent is not None or call.end > self.bytes_sent
            self._ended(call, reset)

    def _leave(self, last_id: int) -> None:
        """Act on a GOAWAY: calls that the server did not accept end here, the others may finish."""
        self.leaving = True
        for stream_id in [number for number in self.calls if number > last_id]:
            self._refuse(stream_id, tries=int(last_id == 0))  # else it took others, so that the next are nearer

    def _refuse(self, stream_id: int, *, tries: int = 1) -> None:
        if stream_id in self.calls:
            self.calls[stream_id].refused = tries
        self._end(stream_id, reset=True)
