"""Header fields as the bytes that RFC 7541 prescribes (6.1, 6.2), written without the library that is tested."""


def literal(field: tuple[bytes, bytes], *, remember: bool) -> bytes:
    """A field spelled out; with `remember` the other side adds it to its table as entry 62, before older ones."""
    return (b"\x40" if remember else b"\0") + b"".join(_integer(len(text), 0) + text for text in field)


def indexed(index: int) -> bytes:
    """A field by its number in the other side's table: 1 to 61 static, then the newest remembered first."""
    return _integer(index, 0x80)


def _integer(value: int, prefix: int) -> bytes:
    """A number in seven bits, and seven more per further byte (5.1)."""
    if value < 127:
        return bytes([prefix | value])
    out, value = bytearray([prefix | 127]), value - 127
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
