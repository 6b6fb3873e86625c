"""What a server's answers have in common, so that the next one need not be taken apart."""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import TYPE_CHECKING

from loadgen.http2_call import PREFIX_BYTES
from loadgen.http2_frames import DATA, END_HEADERS, END_STREAM, FRAME, HEADERS, WINDOW_UPDATE, number_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.hpack import Field

_MOST_LOOKS = 32
_FRAME_HEAD_BYTES = 9
_ID_AT = 5


class AnswerShape:
    """One whole answer, of which everything is known but the number of its stream and its message.

    The five bytes before the message are among what is known: its length, and that it is not compressed.

    It holds only while the table of header fields stays as it is. `fields` are those of the answer; `window`
    and `data_bytes` say what it does to the windows of the connection.
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
        """The number of the stream that this is the whole answer of; 0 where it is something else."""
        found = self._unpack(data)
        ids: tuple[int, ...] = self._ids_of(found)
        stream_id = ids[0]
        if self._constants_of(found) == self._constants and ids.count(stream_id) == len(ids):
            return stream_id
        return 0


def shape_of(data: memoryview, decode: Callable[[bytes], list[Field]]) -> AnswerShape | None:
    """The shape of these bytes where they are HEADERS, DATA and HEADERS of one call, and else top up a window.

    None where they are anything else, or not that alone. `decode` reads blocks that change no table.
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
    """The shapes of the answers on one connection. It stops to look for more where no two answers are alike."""

    __slots__ = ("_looks_left", "by_length")

    def __init__(self) -> None:
        self.by_length: dict[int, AnswerShape] = {}
        self._looks_left = _MOST_LOOKS

    def learn(self, data: memoryview, decode: Callable[[bytes], list[Field]]) -> None:
        """Remember the shape of a right answer that was read between two frames, if it has one."""
        if self._looks_left:
            self._looks_left -= 1
            shape = shape_of(data, decode)
            if shape is not None:
                self.by_length[len(data)] = shape

    def forget(self) -> None:
        """The table of header fields has changed: the same bytes mean something else now."""
        self.by_length.clear()
