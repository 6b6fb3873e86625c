"""Prebuild request frames and response templates of gRPC calls, to save encoding and parsing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter

from loadgen.transport.hpack import Field
from loadgen.transport.http2_call import PREFIX_BYTES
from loadgen.transport.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    HEADERS,
    WINDOW_UPDATE,
    RequestHead,
    frame_head,
    number_in,
)

MIN_MAX_FRAME = 16384
"""Every receiver accepts frames of up to this many bytes."""

_STREAM_ID = struct.Struct(">I")
_ID_AT = 5  # offset of the stream number in a frame
_FRAME_HEAD_BYTES = 9


class PreparedCall:
    """HEADERS and DATA of a call, for a server that remembers the head. All connections may share one.

    `size` is the length of the message, which counts against the windows.
    """

    __slots__ = ("_first_data_at", "_number_at", "data", "size")

    def __init__(self, head: RequestHead, message: bytes) -> None:
        self.size = len(message)
        self.data = bytearray(frame_head(len(head.later), HEADERS, END_HEADERS, 0) + head.later)
        self._first_data_at = len(self.data)
        number_at = [_ID_AT]
        for at in range(0, max(1, self.size), MIN_MAX_FRAME):
            part = message[at : at + MIN_MAX_FRAME]
            flags = END_STREAM if at + len(part) == self.size else 0
            number_at.append(len(self.data) + _ID_AT)
            self.data += frame_head(len(part), DATA, flags, 0) + part
        self._number_at = tuple(number_at)

    def numbered(self, stream_id: int) -> bytearray:
        """Return the bytes of the call with this stream number; valid until the next `numbered`."""
        pack_into, data = _STREAM_ID.pack_into, self.data
        for at in self._number_at:
            pack_into(data, at, stream_id)
        return data

    def message(self) -> bytes:
        """Return the message alone, joined from its frames."""
        step = _FRAME_HEAD_BYTES + MIN_MAX_FRAME
        starts = range(self._first_data_at, len(self.data), step)
        return b"".join(self.data[at + _FRAME_HEAD_BYTES : at + step] for at in starts)


_MAX_LOOKS = 32


class AnswerShape:
    """The template of a complete response: all is known but its stream number and its message.

    The five bytes before the message are known too: its length, and that it is not compressed.

    It is valid only while the table of header fields does not change. `fields` are those of the response; `window`
    and `data_bytes` are its effects on the windows of the connection.
    """

    __slots__ = ("_constants", "_constants_of", "_ids", "_ids_of", "_unpack", "data_bytes", "fields", "window")

    def __init__(
        self,
        layout: list[str],
        constants: tuple[bytes, ...],
        fields: tuple[Field, ...],
        window: int,
        data_bytes: int,
    ) -> None:
        self._unpack = struct.Struct(">" + "".join(layout)).unpack_from
        values = [part for part in layout if not part.endswith("x")]
        self._ids_of = itemgetter(*(at for at, part in enumerate(values) if part == "I"))
        self._constants_of = itemgetter(*(at for at, part in enumerate(values) if part != "I"))
        self._constants = constants
        self.window = window
        self.data_bytes = data_bytes
        self.fields = fields

    def stream_of(self, data: memoryview | bytearray) -> int:
        """Return the stream number if the data are one response of this shape, else 0."""
        found = self._unpack(data)
        ids: tuple[int, ...] = self._ids_of(found)
        stream_id = ids[0]
        if self._constants_of(found) == self._constants and ids.count(stream_id) == len(ids):
            return stream_id
        return 0


def shape_of(data: memoryview, decode: Callable[[bytes], list[Field]]) -> AnswerShape | None:
    """Return the shape of bytes that are HEADERS, DATA and HEADERS of one call, perhaps with window updates.

    None if there is anything else among them. `decode` reads blocks that change no table.
    """
    layout: list[str] = []
    constants: list[bytes] = []
    fixed = bytearray()
    fields: list[Field] = []
    stream, heads, window, data_bytes = 0, 0, 0, 0
    at, ended = 0, False
    while len(data) - at >= _FRAME_HEAD_BYTES:
        high, low, kind, flags, stream_id = FRAME.unpack_from(data, at)
        length = high << 8 | low
        payload_at = at + _FRAME_HEAD_BYTES
        end = payload_at + length
        if kind == WINDOW_UPDATE and stream_id == 0 and length == 4 and end <= len(data):
            window += number_in(kind, bytes(data[payload_at:end]))
            fixed += data[at:end]
            at = end
            continue
        if end > len(data):
            return None
        last = kind == HEADERS and flags == END_HEADERS | END_STREAM and heads == 1
        first = kind == HEADERS and flags == END_HEADERS and heads == 0
        data_of_it = kind == DATA and not flags and heads and (data_bytes or length >= PREFIX_BYTES)
        if ended or not (last or first or data_of_it) or stream not in (0, stream_id):
            return None
        stream, ended, heads = stream_id, last, heads + (kind == HEADERS)
        fixed += data[at : at + _ID_AT]
        layout += [f"{len(fixed)}s", "I"]
        constants.append(bytes(fixed))
        fixed = bytearray()
        if kind == HEADERS:
            fixed += data[payload_at:end]
            fields += decode(bytes(data[payload_at:end]))
        elif data_bytes:
            layout.append(f"{length}x")
        else:
            layout += [f"{PREFIX_BYTES}s", f"{length - PREFIX_BYTES}x"]
            constants.append(bytes(data[payload_at : payload_at + PREFIX_BYTES]))
        data_bytes += length if kind == DATA else 0
        at = end
    if not ended or at != len(data):
        return None
    layout.append(f"{len(fixed)}s")
    return AnswerShape(layout, (*constants, bytes(fixed)), tuple(fields), window, data_bytes)


class KnownShapes:
    """The shapes of the responses on one connection; it learns from 32 responses at most."""

    __slots__ = ("_looks_left", "by_length")

    def __init__(self) -> None:
        self.by_length: dict[int, AnswerShape] = {}
        self._looks_left = _MAX_LOOKS

    def learn(self, data: memoryview, decode: Callable[[bytes], list[Field]]) -> None:
        """Remember the shape of a correct response that was read alone, if it has one."""
        if self._looks_left:
            self._looks_left -= 1
            shape = shape_of(data, decode)
            if shape is not None:
                self.by_length[len(data)] = shape

    def forget(self) -> None:
        """Forget all shapes: the table of header fields has changed, and with it the meaning of the bytes."""
        self.by_length.clear()
