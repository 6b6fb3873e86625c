"""Frames of HTTP/2, and the header block of a call (RFC 9113)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.hpack import Field, block_of, indexed, literal, static_index
from loadgen.wire_errors import MalformedAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5  # names of settings

FRAME = struct.Struct(">HBBBI")  # length (16 high bits, 8 low bits), kind, flags, stream
DEFAULT_WINDOW = 65535
LARGEST = (1 << 31) - 1  # of windows and of stream numbers
LARGEST_FRAME = 16384
"""What a server may send us in a frame: we do not say otherwise."""

_NO_LIMIT = (1 << 32) - 1
_ALLOWED = {INITIAL_WINDOW: (0, LARGEST), MAX_FRAME: (LARGEST_FRAME, (1 << 24) - 1)}
_FIRST_DYNAMIC = 62


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return frame_head(len(payload), kind, flags, stream_id) + payload


def frame_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a payload of this length."""
    return FRAME.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, struct.pack(">HIHI", ENABLE_PUSH, 0, INITIAL_WINDOW, LARGEST))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST - DEFAULT_WINDOW))
)
"""What a client sends first: the server may send as much as it likes, but nothing unasked for."""


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding. Raises MalformedAnswer."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise MalformedAnswer("a frame is shorter than its padding")
    return payload[1 : len(payload) - payload[0]]


def number_in(kind: int, payload: bytes, *, exactly: int | None = 4) -> int:
    """The 32 bits that a frame begins with, of which the first is reserved. Raises MalformedAnswer.

    `exactly` is the length of the payload; None: four bytes or more.
    """
    if len(payload) != exactly if exactly is not None else len(payload) < 4:
        raise MalformedAnswer(f"a frame of kind {kind} with {len(payload)} bytes")
    return int.from_bytes(payload[:4], "big") & LARGEST


def settings_in(payload: bytes) -> list[tuple[int, int]]:
    """Names and values of a SETTINGS frame. Raises MalformedAnswer, also for values that none may have."""
    if len(payload) % 6:
        raise MalformedAnswer(f"settings of {len(payload)} bytes")
    found = list(struct.iter_unpack(">HI", payload))
    for name, value in found:
        least, most = _ALLOWED.get(name, (0, _NO_LIMIT))
        if not least <= value <= most:
            raise MalformedAnswer(f"setting {name} is {value}, not {least} to {most}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The header block of a call, which is the same for all calls of a connection.

    `first` spells the fields out and lets the server remember them, `later` points to what it remembers, `plain`
    spells them out for a server that remembers nothing. Headers of the user's are never remembered.
    """

    first: bytes
    later: bytes
    plain: bytes


def request_head(fields: Sequence[Field], private: Sequence[Field] = ()) -> RequestHead:
    """The blocks for these fields and the user's own `private` ones after them."""
    remembered = [field for field in fields if static_index(field) is None]
    first, later = bytearray(), bytearray()
    for field in fields:
        index = static_index(field)
        first += literal(field, remember=True) if index is None else indexed(index)
        # The newest of the remembered fields has the lowest number.
        later += indexed(
            _FIRST_DYNAMIC + len(remembered) - 1 - remembered.index(field) if index is None else index
        )
    own = block_of(private)
    return RequestHead(first=bytes(first) + own, later=bytes(later) + own, plain=block_of(fields) + own)
