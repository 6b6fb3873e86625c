"""What a server's answers have in common, so that the next one need not be taken apart."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from loadgen.http2_frames import DATA, END_HEADERS, END_STREAM, FRAME, HEADERS, WINDOW_UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.hpack import Field

_MOST_LOOKS = 32
_FRAME_HEAD_BYTES = 9
_ID_AT = 5


class AnswerShape:
    """One whole answer, of which everything is known but the number of its stream and its data.

    It holds only while the table of header fields stays as it is. `fields` are those of the answer; `window`
    and `data_bytes` say what it does to the windows of the connection.
    """

    __slots__ = ("_constants", "_unpack", "data_bytes", "fields", "window")

    def __init__(
        self, layout: str, constants: tuple[bytes, ...], fields: tuple[Field, ...], window: int, data_bytes: int
    ) -> None:
        self._unpack = struct.Struct(layout).unpack_from
        self._constants = constants
        self.window = window
        self.data_bytes = data_bytes
        self.fields = fields

    def stream_of(self, data: memoryview | bytearray) -> int:
        """The number of the stream that this is the whole answer of; 0 where it is something else."""
        found = self._unpack(data)
        stream_id: int = found[1]
        if found[0::2] == self._constants and found[1::2].count(stream_id) == len(found) // 2:
            return stream_id
        return 0


def shape_of(data: memoryview, decode: Callable[[bytes], list[Field]]) -> AnswerShape | None:
    """The shape of these bytes where they are HEADERS, DATA and HEADERS of one call, and else top up a window.

    None where they are anything else, or not that alone. `decode` reads blocks that change no table.
    """
    layout, constants, fixed = ">", [], bytearray()
    fields: list[Field] = []
    stream, heads, window, data_bytes = 0, 0, 0, 0
    at, ended = 0, False
    while len(data) - at >= _FRAME_HEAD_BYTES:
        high, low, kind, flags, stream_id = FRAME.unpack_from(data, at)
        length = high << 8 | low
        payload_at = at + _FRAME_HEAD_BYTES
        end = payload_at + length
        if kind == WINDOW_UPDATE and stream_id == 0 and length == 4 and end <= len(data):
            window += struct.unpack_from(">I", data, payload_at)[0]
            fixed += data[at:end]
            at = end
            continue
        if end > len(data):
            return None
        last = kind == HEADERS and flags == END_HEADERS | END_STREAM and heads == 1
        plain = (kind == HEADERS and flags == END_HEADERS and heads == 0) or (kind == DATA and not flags and heads)
        if ended or not (last or plain) or stream not in (0, stream_id):
            return None
        stream, ended, heads = stream_id, last, heads + (kind == HEADERS)
        fixed += data[at : at + _ID_AT]
        layout += f"{len(fixed)}sI"
        constants.append(bytes(fixed))
        fixed = bytearray()
        if kind == DATA:
            data_bytes += length
            layout += f"{length}x"
        else:
            fixed += data[payload_at:end]
            fields += decode(bytes(data[payload_at:end]))
        at = end
    if not ended or at != len(data):
        return None
    return AnswerShape(f"{layout}{len(fixed)}s", (*constants, bytes(fixed)), tuple(fields), window, data_bytes)


class KnownShapes:
    """The shapes of the answers on one connection. It stops to look for more where no two answers are alike."""

    __slots__ = ("_looks_left", "by_length")

    def __init__(self) -> None:
        self.by_length: dict[int, AnswerShape] = {}
        self._looks_left = _MOST_LOOKS

    def learn(self, data: memoryview, decode: Callable[[bytes], list[Field]]) -> None:
        """Remember the shape of what was read between two frames, if it has one."""
        if self._looks_left:
            self._looks_left -= 1
            shape = shape_of(data, decode)
            if shape is not None:
                self.by_length[len(data)] = shape

    def forget(self) -> None:
        """The table of header fields has changed: the same bytes mean something else now."""
        self.by_length.clear()
