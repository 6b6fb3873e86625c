"""Expected bytes come from RFC 7541, appendix C."""

import importlib.util
import logging
from typing import Any

import pytest
from header_bytes import indexed, literal
from hpack import Encoder

from loadgen.transport.hpack import HeaderDecoder, HeaderError, block_of
from loadgen.transport.http2_frames import request_head

STRINGS = {
    "www.example.com": "f1e3c2e5f23a6ba0ab90f4ff",
    "no-cache": "a8eb10649cbf",
    "custom-key": "25a849e95ba97d7f",
    "custom-value": "25a849e95bb8e8b4bf",
    "private": "aec3771a4b",
    "Mon, 21 Oct 2013 20:13:21 GMT": "d07abe941054d444a8200595040b8166e082a62d1bff",
    "https://www.example.com": "9d29ad171863c78f0b97c8e9ae82ae43d3",
    "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1": (
        "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
    ),
}
RESPONSE = (
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"
)
THIRD = (
    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960"
    "d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
)


def huffman_decoded(code: bytes) -> bytes:
    """The value of a field, spelled out in this code of less than 127 bytes."""
    [(_, value)] = HeaderDecoder().decode(b"\0\1a" + bytes([0x80 | len(code)]) + code)
    return value


@pytest.mark.parametrize(("text", "code"), STRINGS.items())
def test_huffman_strings_of_the_rfc(text: Any, code: Any) -> None:
    assert huffman_decoded(bytes.fromhex(code)) == text.encode()


def test_responses_of_the_rfc_share_a_table() -> None:
    decoder = HeaderDecoder()
    first = decoder.decode(bytes.fromhex(RESPONSE))
    assert dict(first) == {
        b":status": b"302",
        b"cache-control": b"private",
        b"date": b"Mon, 21 Oct 2013 20:13:21 GMT",
        b"location": b"https://www.example.com",
    }
    second = decoder.decode(bytes.fromhex("4883640effc1c0bf"))
    assert dict(second) == {**dict(first), b":status": b"307"}


def test_a_block_that_is_remembered_is_forgotten_when_the_table_changes() -> None:
    decoder = HeaderDecoder()
    decoder.decode(literal((b"a", b"1"), remember=True))
    newest = indexed(62)
    assert decoder.decode(newest) == decoder.decode(newest) == [(b"a", b"1")]
    decoder.decode(literal((b"b", b"2"), remember=True))
    assert decoder.decode(newest) == [(b"b", b"2")]


def test_the_table_drops_the_oldest_beyond_its_size() -> None:
    decoder = HeaderDecoder()
    for number in range(3):  # of 2037 bytes each; two go into 4096
        decoder.decode(literal((b"name%d" % number, b"x" * 2000), remember=True))
    assert decoder.decode(indexed(62)) == [(b"name2", b"x" * 2000)]
    assert decoder.decode(indexed(63)) == [(b"name1", b"x" * 2000)]
    with pytest.raises(HeaderError, match="Invalid table index 64: "):
        decoder.decode(indexed(64))


def test_static_fields_and_others_survive_a_round_trip() -> None:
    fields = [(b":method", b"POST"), (b":path", b"/a" * 100), (b"te", b"trailers")]
    assert HeaderDecoder().decode(block_of(fields)) == fields


@pytest.mark.parametrize("block", ["40", "4005", "be", "ff", "3fe21f01", "0081", "00" + "81ff" + "00"])
def test_bytes_that_are_no_block(block: str) -> None:
    with pytest.raises(HeaderError):
        HeaderDecoder().decode(bytes.fromhex(block) + b"")


def test_padding_that_is_not_ones_is_refused() -> None:
    with pytest.raises(HeaderError):
        huffman_decoded(bytes([0b00000_000]))


def test_a_table_of_the_servers_size_drops_what_the_rfc_drops() -> None:
    """Appendix C.6, three responses; the server says first that it uses 256 bytes."""
    decoder = HeaderDecoder()
    blocks = ("3fe101" + RESPONSE, "4883640effc1c0bf", THIRD)
    fields = [decoder.decode(bytes.fromhex(block)) for block in blocks]
    assert [value for _, value in fields[1]] == [b"307", *(value for _, value in fields[0][1:])]
    assert fields[2] == [
        (b":status", b"200"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
        (b"location", b"https://www.example.com"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ]
    assert [decoder.decode(indexed(index))[0][0] for index in (62, 63, 64)] == [
        b"set-cookie",
        b"content-encoding",
        b"date",
    ]
    with pytest.raises(HeaderError, match="Invalid table index 65: "):
        decoder.decode(indexed(65))


def test_a_table_made_smaller_forgets_and_one_of_no_bytes_remembers_nothing() -> None:
    decoder = HeaderDecoder()
    decoder.decode(literal((b"a", b"1"), remember=True))
    assert decoder.decode(indexed(62)) == [(b"a", b"1")]
    assert decoder.decode(b"\x20") == []
    with pytest.raises(HeaderError, match="Invalid table index 62: "):
        decoder.decode(indexed(62))
    decoder.decode(literal((b"a", b"1"), remember=True))
    with pytest.raises(HeaderError, match="Invalid table index 62: "):
        decoder.decode(indexed(62))


@pytest.mark.parametrize(("block", "size"), [("3fe11f", 4096), ("3fe21f", 4097), ("3f00", 31), ("3e", 30)])
def test_a_table_may_be_as_large_as_was_offered(block: str, size: int) -> None:
    """Two entries of 34 bytes: both fit into 68 or more."""
    decoder = HeaderDecoder()
    if size > 4096:
        with pytest.raises(HeaderError, match=r"Encoder exceeded max allowable table size: 3fe21f$"):
            decoder.decode(bytes.fromhex(block))
        return
    assert decoder.decode(bytes.fromhex(block)) == []
    for number in (b"1", b"2"):
        decoder.decode(literal((b"a", number), remember=True))
    if size == 4096:
        assert decoder.decode(indexed(63)) == [(b"a", b"1")]
    else:
        with pytest.raises(HeaderError, match="Invalid table index 62: "):
            decoder.decode(indexed(62))


def test_a_size_that_is_announced_again_applies_again() -> None:
    decoder = HeaderDecoder()
    for size in ("20", "3fe11f", "20"):
        assert decoder.decode(bytes.fromhex(size)) == []
    decoder.decode(literal((b"a", b"1"), remember=True))
    with pytest.raises(HeaderError, match="Invalid table index 62: "):
        decoder.decode(indexed(62))


def test_an_entry_as_large_as_the_table_stays_and_a_larger_one_empties_it() -> None:
    decoder = HeaderDecoder()
    decoder.decode(literal((b"name", b"x" * (4096 - 32 - 4)), remember=True))
    assert decoder.decode(indexed(62))[0][0] == b"name"
    decoder.decode(literal((b"name", b"x" * (4096 - 32 - 3)), remember=True))
    with pytest.raises(HeaderError, match="Invalid table index 62: "):
        decoder.decode(indexed(62))


def test_the_static_table_is_that_of_the_rfc() -> None:
    """Appendix A: its ends, its turns, and an entry with a comma in it."""
    entries = {
        1: (b":authority", b""),
        2: (b":method", b"GET"),
        8: (b":status", b"200"),
        14: (b":status", b"500"),
        15: (b"accept-charset", b""),
        16: (b"accept-encoding", b"gzip, deflate"),
        31: (b"content-type", b""),
        58: (b"user-agent", b""),
        61: (b"www-authenticate", b""),
    }
    assert {index: HeaderDecoder().decode(indexed(index))[0] for index in entries} == entries
    assert {index: block_of([field]) for index, field in entries.items()} == {
        index: indexed(index) for index in entries
    }
    assert block_of([(b":status", b"201")]) == b"\x18\x03201", "its name alone is in the table, as entry 8"
    for index in (0, 62):
        with pytest.raises(HeaderError, match=f"Invalid table index {index}: "):
            HeaderDecoder().decode(indexed(index))


@pytest.mark.parametrize(
    ("block", "remembered"),
    [("4f0161", True), ("0f000161", False), ("1f000161", False), ("50023132", True), ("0f01023132", False)],
)
def test_a_literal_may_take_its_name_from_the_table_and_is_remembered_only_if_it_says_so(
    block: str, remembered: bool
) -> None:
    """0x0n and 0x1n are literals that nobody remembers, with four bits for the index (RFC 7541, 6.2)."""
    decoder = HeaderDecoder()
    [(name, value)] = decoder.decode(bytes.fromhex(block))
    assert (name, value) in [(b"accept-charset", b"a"), (b"accept-encoding", b"12")]
    assert decoder.changes == remembered
    if remembered:
        assert decoder.decode(indexed(62)) == [(name, value)]
    else:
        with pytest.raises(HeaderError, match="Invalid table index 62: "):
            decoder.decode(indexed(62))


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 16_512, 100_000])
def test_lengths_on_both_sides_of_what_fits_into_so_many_bytes(length: int) -> None:
    fields = [(b"n" * length, b"v"), (b"n", b"v" * length)]
    assert HeaderDecoder().decode(block_of(fields)) == fields


def test_numbers_of_the_rfc() -> None:
    """Appendix C.1: 10 and 1337 in five bits, here as table sizes; and no number goes on for ever."""
    assert HeaderDecoder().decode(bytes.fromhex("2a3f9a0a")) == []
    with pytest.raises(HeaderError, match="representation is too long: 3f8080808080"):
        HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 5 + "00"))
    with pytest.raises(HeaderError, match=r"Unable to decode HPACK integer representation: 3f80808080$"):
        HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 4))
    assert HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 4 + "00")) == []


@pytest.mark.parametrize(
    ("bits", "codes"),
    [
        (5, {"0": 0x0, "t": 0x9}), (6, {" ": 0x14, "u": 0x2D}), (7, {":": 0x5C, "z": 0x7B}),
        (8, {"&": 0xF8, "Z": 0xFD}), (10, {"!": 0x3F8}), (11, {"'": 0x7FA}), (12, {"#": 0xFFA}),
        (13, {"\0": 0x1FF8}), (14, {"^": 0x3FFC}), (15, {"<": 0x7FFC}), (19, {"\\": 0x7FFF0}),
        (20, {"\x80": 0xFFFE6}), (23, {"\x01": 0x7FFFD8}), (24, {"\t": 0xFFFFEA}),
        (28, {"\x02": 0xFFFFFE2, "\xf9": 0xFFFFFFE}), (30, {"\n": 0x3FFFFFFC}),
    ],
)  # fmt: skip
def test_symbols_of_each_length_have_the_codes_of_the_rfc(bits: int, codes: dict[str, int]) -> None:
    """Appendix B; what is left of the last byte is ones."""
    for text, code in codes.items():
        padding = -bits % 8
        padded = (code << padding | (1 << padding) - 1).to_bytes((bits + padding) // 8, "big")
        assert huffman_decoded(padded) == text.encode("latin-1")


def test_every_symbol_has_a_code_and_the_end_mark_is_no_text() -> None:
    fields = [(b"a", bytes(range(at, at + 8))) for at in range(0, 256, 8)]
    assert HeaderDecoder().decode(Encoder().encode(fields, huffman=True)) == fields
    with pytest.raises(HeaderError):
        huffman_decoded((0x3FFFFFFF << 2 | 3).to_bytes(4, "big"))


def test_padding_of_up_to_seven_ones_is_no_text_and_more_is_refused() -> None:
    assert huffman_decoded(bytes([0b00011_111])) == b"a"
    for wrong in (b"\xff", bytes([0b00011_111, 0xFF]), bytes([0b00011_110]), b"\xff\xff\xff\xff"):
        with pytest.raises(HeaderError):
            huffman_decoded(wrong)


def test_a_block_is_decoded_once_while_there_is_room_to_remember_it() -> None:
    """A server may put the time of day into each block: what is remembered of them has an end."""
    decoder = HeaderDecoder()
    blocks = [block_of([(b"date", b"%d" % number)]) for number in range(257)]
    first = [decoder.decode(block) for block in blocks]
    again = [decoder.decode(block) for block in blocks]
    assert again == first
    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * 256 + [False]
    long = {size: literal((b"", b"x" * (size - 5)), remember=False) for size in (1024, 1025)}
    assert {size: len(block) for size, block in long.items()} == {1024: 1024, 1025: 1025}
    decoder = HeaderDecoder()
    assert [decoder.decode(block) is decoder.decode(block) for block in long.values()] == [True, False]


def test_changes_of_the_table_are_counted_because_they_change_what_blocks_mean() -> None:
    decoder = HeaderDecoder()
    counts = []
    blocks = (
        indexed(8),
        literal((b"a", b"1"), remember=True),
        indexed(62),
        b"\x20",
        literal((b"b", b""), remember=False),
    )
    for block in blocks:
        decoder.decode(block)
        counts.append(decoder.changes)
    assert counts == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_block_that_breaks_off_is_refused(cut: int) -> None:
    whole = bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572")  # appendix C.2.1
    assert HeaderDecoder().decode(whole) == [(b"custom-key", b"custom-header")]
    with pytest.raises(
        HeaderError, match=f"Truncated|Unable to decode HPACK integer representation: {whole[:-cut].hex()}$"
    ):
        HeaderDecoder().decode(whole[:-cut])


@pytest.mark.parametrize("fields", [1000, 6096, 6097])
def test_the_fields_of_a_block_have_at_most_256_kib(fields: int) -> None:
    """Small blocks can become large: each byte may stand for a field of 4 KiB. A field counts 32 bytes more."""
    decoder = HeaderDecoder()
    decoder.decode(literal((b"name", b"x" * 7), remember=True))
    block = indexed(62) * fields
    if fields * (32 + 4 + 7) <= 1 << 18:
        assert decoder.decode(block) == [(b"name", b"x" * 7)] * fields
    else:
        with pytest.raises(HeaderError, match="A header list larger than 262144 has been received: bebe"):
            decoder.decode(block)


def test_whatever_1000_fields_of_64_kib_say_is_taken() -> None:
    fields = [(b"n%d" % number, b"0" * 90) for number in range(999)]
    block = Encoder().encode([(*field, True) for field in fields], huffman=True)
    assert len(block) < 1 << 16 < sum(len(name) + len(value) + 32 for name, value in fields)
    assert HeaderDecoder().decode(block) == fields


def test_an_error_holds_the_beginning_of_a_block_and_no_more() -> None:
    for block in (b"\0\1a\x7f" + b"\xff" * 60_000, b"\x3f" + b"\xff" * 60_000, b"\0\1a\xff\1" + b"\xff" * 60_000):
        with pytest.raises(HeaderError) as caught:
            HeaderDecoder().decode(block)
        assert str(caught.value).endswith(f": {block[:40].hex()}")
        assert len(str(caught.value)) < 160


def test_a_size_of_the_table_after_a_field_is_refused() -> None:
    """RFC 7541, 4.2: it belongs to the beginning of a block."""
    assert HeaderDecoder().decode(b"\x20\x3f\xe1\x1f\x88") == [(b":status", b"200")]
    with pytest.raises(HeaderError, match="not at the start of the block: 8820"):
        HeaderDecoder().decode(b"\x88\x20")


def test_no_header_is_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    """The import sees to that; what an earlier one did to the library's log is taken back here."""
    with caplog.at_level(logging.NOTSET, logger="hpack"):
        spec = importlib.util.find_spec("loadgen.transport.hpack")
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        with caplog.at_level(logging.DEBUG):
            head = request_head([(b"te", b"trailers")], [(b"authorization", b"secret")])
            HeaderDecoder().decode(head.first)
    assert caplog.text == ""


def test_the_users_headers_may_be_remembered_by_nobody_on_the_way() -> None:
    """RFC 7541, 6.2.3: a literal that begins with 0001 is never indexed."""
    for block in (head := request_head([(b"te", b"trailers")], [(b"x", b"secret")])).first, head.later, head.plain:
        assert block.endswith(b"\x10\x01x\x06secret")
