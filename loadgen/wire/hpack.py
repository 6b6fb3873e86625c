"""Encodes header fields of HTTP/2 and decodes them (RFC 7541), with the `hpack` library."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError

from loadgen.errors import MalformedAnswer

Field = tuple[bytes, bytes]

_MAX_KNOWN = 256
_LONGEST_KNOWN = 1024  # bytes of a block
_LARGEST_LIST = 1 << 18  # bytes of fields, plus 32 per field; 1,000 fields in 64 KiB of Huffman code fit

logging.getLogger("hpack").setLevel(logging.INFO)  # at DEBUG it logs whole blocks, with the secrets in them


class HeaderError(MalformedAnswer):
    """The bytes are not a header block; the connection cannot continue, since the sides' tables now differ."""


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order: the table depends on it."""

    def __init__(self) -> None:
        self._decoder = Decoder(_LARGEST_LIST)
        self._known: dict[bytes, tuple[Field, ...]] = {}

    def decode(self, block: bytes) -> tuple[Field, ...]:
        """Return the fields of a block. Raises HeaderError.

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
            raise HeaderError(f"no header block, {reason}: {block[:40].hex()}") from None
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
