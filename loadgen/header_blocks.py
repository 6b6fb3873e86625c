"""Header blocks of an HTTP/2 connection, which come in one frame or in several that nothing may interrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loadgen.hpack import HeaderDecoder
from loadgen.http2_frames import END_HEADERS, END_STREAM, PADDED, WITH_PRIORITY, unpadded
from loadgen.wire_errors import MalformedAnswer

if TYPE_CHECKING:
    from loadgen.hpack import Field


_LONGEST_BLOCK = 1 << 16
_MOST_FRAMES = 64


class HeaderBlock(NamedTuple):
    """The headers or the trailers of a stream's answer, and whether the answer ends with them."""

    stream_id: int
    fields: tuple[Field, ...]
    ends_stream: bool


class HeaderBlocks:
    """Takes frames, gives whole blocks: every one is decoded, because the decoder's table must stay in step."""

    __slots__ = ("_frames", "decoder", "unfinished")

    def __init__(self) -> None:
        self.decoder = HeaderDecoder()
        self._frames = 0  # of the unfinished block
        self.unfinished: tuple[int, int, bytearray] | None = None  # stream, flags, block in pieces

    def begin(self, stream_id: int, flags: int, payload: bytes) -> HeaderBlock | None:
        """Take a HEADERS frame; None where its block goes on in another frame. Raises MalformedAnswer."""
        if flags & (PADDED | WITH_PRIORITY):
            payload = unpadded(payload, flags)[5 if flags & WITH_PRIORITY else 0 :]
        if stream_id == 0:
            raise MalformedAnswer("headers of no stream")
        if flags & END_HEADERS:
            return self._whole(stream_id, flags, payload)
        self.unfinished = (stream_id, flags, bytearray(payload))
        self._frames = 1
        return None

    def go_on(self, stream_id: int, flags: int, payload: bytes) -> HeaderBlock | None:
        """Take a CONTINUATION frame; None where the block goes on. Raises MalformedAnswer where none was begun."""
        if self.unfinished is None or self.unfinished[0] != stream_id:
            raise MalformedAnswer("a header block goes on that never began")
        stream_id, first_flags, block = self.unfinished
        block += payload
        self._frames += 1
        if len(block) > _LONGEST_BLOCK or self._frames > _MOST_FRAMES:
            raise MalformedAnswer(
                f"a header block of over {_LONGEST_BLOCK:,} bytes, or in over {_MOST_FRAMES} frames"
            )
        if not flags & END_HEADERS:
            return None
        self.unfinished = None
        return self._whole(stream_id, first_flags, bytes(block))

    def _whole(self, stream_id: int, flags: int, block: bytes) -> HeaderBlock:
        return HeaderBlock(stream_id, tuple(self.decoder.decode(block)), bool(flags & END_STREAM))
