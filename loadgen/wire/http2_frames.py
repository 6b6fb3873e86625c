"""Build and parse frames of HTTP/2 (RFC 9113), and the header fields in them (HPACK)."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpack import Decoder, Encoder, HPACKError

from loadgen.errors import MalformedAnswer

Field = tuple[bytes, bytes]

_MAX_KNOWN = 256
_LONGEST_KNOWN = 1024  # bytes of a block
_LARGEST_LIST = 1 << 18  # bytes of fields, plus 32 per field; 1,000 fields in 64 KiB of Huffman code fit

logging.getLogger("hpack").setLevel(logging.INFO)  # at DEBUG it logs whole blocks, with the secrets in them


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order: the table depends on it."""

    def __init__(self) -> None:
        self._decoder = Decoder(_LARGEST_LIST)
        self._known: dict[bytes, tuple[Field, ...]] = {}

    def decode(self, block: bytes) -> tuple[Field, ...]:
        """Return the fields of a block. Raises MalformedAnswer: the sides' tables then differ.

        A block that leaves the table as it was is remembered until another changes it: a server's responses
        consist of the same few blocks.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table()
        try:
            fields: tuple[Field, ...] = tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            # After these words the library prints all of the bytes, or their place in memory.
            reason = str(error).partition(" from ")[0].partition(": ")[0]
            raise MalformedAnswer(f"no header block, {reason}: {block[:40].hex()}") from None
        if self._table() != before:
            self._known.clear()
        elif len(self._known) < _MAX_KNOWN and len(block) <= _LONGEST_KNOWN:  # some contain the time of day
            self._known[block] = fields
        return fields

    def _table(self) -> tuple[int, tuple[Field, ...]]:
        table = self._decoder.header_table
        return table.maxsize, tuple(table.dynamic_entries)


def block_of(fields: Iterable[Field]) -> bytes:
    """Return a header block that neither needs nor changes any table."""
    return Encoder().encode([(*field, True) for field in fields], huffman=False)


DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5  # kinds of frames
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5  # names of settings

FRAME = struct.Struct(">HBBBI")  # length (16 high bits, 8 low bits), kind, flags, stream
DEFAULT_WINDOW = 65535
LARGEST = (1 << 31) - 1  # of windows and of stream numbers
LARGEST_FRAME = 16384
"""A server may send us frames of at most this many bytes: we announce no other limit."""

_NO_LIMIT = (1 << 32) - 1
_ALLOWED = {INITIAL_WINDOW: (0, LARGEST), MAX_FRAME: (LARGEST_FRAME, (1 << 24) - 1)}


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return frame_head(len(payload), kind, flags, stream_id) + payload


def frame_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a payload of this length."""
    return FRAME.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, struct.pack(">HIHI", ENABLE_PUSH, 0, INITIAL_WINDOW, LARGEST))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST - DEFAULT_WINDOW))
)
"""A client sends this first: the server may send any amount of data, but no pushes."""


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a DATA or HEADERS frame without its padding. Raises MalformedAnswer."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise MalformedAnswer("a frame is shorter than its padding")
    return payload[1 : len(payload) - payload[0]]


def number_in(kind: int, payload: bytes, *, exactly: int | None = 4) -> int:
    """Return the first 32 bits of a payload without the first bit, which is reserved. Raises MalformedAnswer.

    `exactly` is the length of the payload; None: four bytes or more.
    """
    if len(payload) != exactly if exactly is not None else len(payload) < 4:
        raise MalformedAnswer(f"a frame of kind {kind} with {len(payload)} bytes")
    return int.from_bytes(payload[:4], "big") & LARGEST


def settings_in(payload: bytes) -> list[tuple[int, int]]:
    """Return names and values of a SETTINGS frame. Raises MalformedAnswer, also for values out of range."""
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
    """The header block of a call, the same for all calls of a connection.

    `first` has the fields in full and lets the server remember them, `later` refers to the remembered fields,
    `plain` has them in full for a server that remembers nothing. The user's own headers are never remembered.
    """

    first: bytes
    later: bytes
    plain: bytes


def request_head(fields: Sequence[Field], private: Sequence[Field] = ()) -> RequestHead:
    """Return the blocks for these fields, with the user's own `private` ones after them."""
    encoder, own = Encoder(), block_of(private)
    # The encoder writes a field in full once, and then refers to it in the server's table.
    first, later = (encoder.encode(fields, huffman=False) + own for _ in range(2))
    return RequestHead(first=first, later=later, plain=block_of(fields) + own)
