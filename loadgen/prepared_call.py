"""A call of gRPC as the bytes that go out, ready but for the number of its stream."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from loadgen.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame_head

if TYPE_CHECKING:
    from loadgen.http2_frames import RequestHead

LEAST_MAX_FRAME = 16384
"""Every receiver takes frames of this size."""

_STREAM_ID = struct.Struct(">I")
_ID_AT = 5  # in a frame
_FRAME_HEAD_BYTES = 9


class PreparedCall:
    """HEADERS and DATA of a call, for a server that remembers the head. All connections may share one.

    `size` is the length of the message, which is what windows count.
    """

    __slots__ = ("_first_data_at", "_number_at", "data", "size")

    def __init__(self, head: RequestHead, message: bytes) -> None:
        self.size = len(message)
        self.data = bytearray(frame_head(len(head.later), HEADERS, END_HEADERS, 0) + head.later)
        self._first_data_at = len(self.data)
        number_at = [_ID_AT]
        for at in range(0, max(1, self.size), LEAST_MAX_FRAME):
            part = message[at : at + LEAST_MAX_FRAME]
            flags = END_STREAM if at + len(part) == self.size else 0
            number_at.append(len(self.data) + _ID_AT)
            self.data += frame_head(len(part), DATA, flags, 0) + part
        self._number_at = tuple(number_at)

    def numbered(self, stream_id: int) -> bytearray:
        """The bytes of the call as this stream, until the next call of this."""
        pack_into, data = _STREAM_ID.pack_into, self.data
        for at in self._number_at:
            pack_into(data, at, stream_id)
        return data

    def message(self) -> bytes:
        """The message alone, put together again."""
        step = _FRAME_HEAD_BYTES + LEAST_MAX_FRAME
        starts = range(self._first_data_at, len(self.data), step)
        return b"".join(self.data[at + _FRAME_HEAD_BYTES : at + step] for at in starts)
