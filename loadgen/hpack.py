"""Header fields of HTTP/2 as bytes and back (RFC 7541)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from loadgen.wire_errors import MalformedAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable

Field = tuple[bytes, bytes]

# RFC 7541, appendix A: name or name=value of the entries 1 to 61.
_STATIC_TEXT = (
    b":authority;:method=GET;:method=POST;:path=/;:path=/index.html;:scheme=http;:scheme=https;"
    b":status=200;:status=204;:status=206;:status=304;:status=400;:status=404;:status=500;"
    b"accept-charset;accept-encoding=gzip, deflate;accept-language;accept-ranges;accept;"
    b"access-control-allow-origin;age;allow;authorization;cache-control;content-disposition;"
    b"content-encoding;content-language;content-length;content-location;content-range;content-type;"
    b"cookie;date;etag;expect;expires;from;host;if-match;if-modified-since;if-none-match;if-range;"
    b"if-unmodified-since;last-modified;link;location;max-forwards;proxy-authenticate;"
    b"proxy-authorization;range;referer;refresh;retry-after;server;set-cookie;"
    b"strict-transport-security;transfer-encoding;user-agent;vary;via;www-authenticate"
)
_STATIC: tuple[Field, ...] = tuple(
    (name, value) for name, _, value in (entry.partition(b"=") for entry in _STATIC_TEXT.split(b";"))
)
_MOST_KNOWN = 256
_LONGEST_KNOWN = 1024  # bytes of a block
_TABLE_BYTES = 4096  # what either side may assume until it is told otherwise
_ENTRY_OVERHEAD = 32

# RFC 7541, appendix B. The code is canonical: codes ascend with their length, then with their symbol, so the
# lengths are the whole table. Symbol 256 is the end of the string.
_CODE_LENGTHS: dict[int, bytes | tuple[int, ...]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
    19: (92, 195, 208),
    20: (128, 130, 131, 162, 184, 194, 224, 226),
    21: (153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230),
    22: (129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190,
         196, 198, 228, 232, 233),
    23: (1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174, 175,
         180, 182, 183, 188, 191, 197, 231, 239),
    24: (9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237),
    25: (199, 207, 234, 235),
    26: (192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255),
    27: (203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252, 253, 254),
    28: (2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30, 31, 127, 220,
         249),
    30: (10, 13, 22, 256),
}  # fmt: skip


class HeaderError(MalformedAnswer):
    """The bytes are no header block; the connection cannot go on, since both sides' tables now differ."""


def _symbols() -> dict[tuple[int, int], int]:
    """(length, code) -> symbol."""
    symbols, code, before = {}, 0, 5
    for length, group in _CODE_LENGTHS.items():
        code <<= length - before
        before = length
        for symbol in group:
            symbols[length, code] = symbol
            code += 1
    return symbols


_SYMBOLS = _symbols()


def huffman_decoded(data: bytes) -> bytes:
    """The text behind a Huffman-coded string. Raises HeaderError."""
    text, code, length = bytearray(), 0, 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = _SYMBOLS.get((length, code))
            if symbol is not None:
                if symbol == 256:
                    raise HeaderError("a Huffman string holds its end mark")
                text.append(symbol)
                code, length = 0, 0
    if length > 7 or code != (1 << length) - 1:
        raise HeaderError("a Huffman string ends with no padding of ones")
    return bytes(text)


def literal(field: Field, *, remember: bool) -> bytes:
    """A field spelled out; with `remember` the other side adds it to its table as entry 62, before older ones."""
    prefix = 0x40 if remember else 0x00
    return bytes([prefix]) + b"".join(_integer(len(text), 7, 0) + text for text in field)


def indexed(index: int) -> bytes:
    """A field by its number in the other side's table: 1 to 61 static, then the newest remembered first."""
    return _integer(index, 7, 0x80)


def static_index(field: Field) -> int | None:
    """The number of a field that every table holds."""
    return _STATIC.index(field) + 1 if field in _STATIC else None


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order, which its table depends on.

    `changes` counts the blocks that changed the table.
    """

    def __init__(self) -> None:
        self._table: deque[Field] = deque()
        self._size = 0
        self._most = _TABLE_BYTES
        self._known: dict[bytes, list[Field]] = {}
        self.changes = 0

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block. Raises HeaderError.

        A block that only points into the table is remembered until the table changes: a server's answers
        are the same few bytes again and again.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields, changed = self._decode(block)
        except IndexError:
            raise HeaderError(f"a header block ends too early: {block[:40].hex()}") from None
        if changed:
            self._known.clear()
            self.changes += 1
        elif (
            len(self._known) < _MOST_KNOWN and len(block) <= _LONGEST_KNOWN
        ):  # a server may put the time of day in each block
            self._known[block] = fields
        return fields

    def _decode(self, block: bytes) -> tuple[list[Field], bool]:
        fields: list[Field] = []
        at, changed = 0, False
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _read_integer(block, at, 7)
                fields.append(self._entry(index))
            elif first & 0xE0 == 0x20:
                self._most, at = _read_integer(block, at, 5)
                if self._most > _TABLE_BYTES:
                    raise HeaderError(f"a table of {self._most} bytes was not offered")
                self._shrink()
                changed = True
            else:
                remember = bool(first & 0x40)
                field, at = self._literal(block, at, 6 if remember else 4)
                fields.append(field)
                if remember:
                    self._remember(field)
                    changed = True
        return fields, changed

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _read_integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _read_string(block, at)
        value, at = _read_string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Field:
        if 1 <= index <= len(_STATIC):
            return _STATIC[index - 1]
        if index and index - len(_STATIC) <= len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise HeaderError(f"a header block points to entry {index}, which is not there")

    def _remember(self, field: Field) -> None:
        self._table.appendleft(field)
        self._size += _entry_bytes(field)
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._most:
            self._size -= _entry_bytes(self._table.pop())


def block_of(fields: Iterable[Field]) -> bytes:
    """A header block that neither needs nor changes any table."""
    return b"".join(
        literal(field, remember=False) if index is None else indexed(index)
        for field, index in ((field, static_index(field)) for field in fields)
    )


def _entry_bytes(field: Field) -> int:
    return len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD


def _integer(value: int, bits: int, prefix: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([prefix | value])
    out = bytearray([prefix | most])
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
        if shift > 28:
            raise HeaderError("a number in a header block is too long")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    huffman = bool(block[at] & 0x80)
    length, at = _read_integer(block, at, 7)
    text = block[at : at + length]
    if len(text) < length:
        raise IndexError
    return huffman_decoded(text) if huffman else text, at + length
