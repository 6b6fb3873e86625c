"""Expected bytes come from RFC 7541, appendix C."""

import pytest

from loadgen.hpack import (
    HeaderDecoder,
    HeaderError,
    _symbols,
    block_of,
    huffman_decoded,
    indexed,
    literal,
    static_index,
)

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


@pytest.mark.parametrize(("text", "code"), STRINGS.items())
def test_huffman_strings_of_the_rfc(text, code):
    assert huffman_decoded(bytes.fromhex(code)) == text.encode()


def test_responses_of_the_rfc_share_a_table():
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


def test_a_block_that_is_remembered_is_forgotten_when_the_table_changes():
    decoder = HeaderDecoder()
    decoder.decode(literal((b"a", b"1"), remember=True))
    newest = indexed(62)
    assert decoder.decode(newest) == decoder.decode(newest) == [(b"a", b"1")]
    decoder.decode(literal((b"b", b"2"), remember=True))
    assert decoder.decode(newest) == [(b"b", b"2")]


def test_the_table_drops_the_oldest_beyond_its_size():
    decoder = HeaderDecoder()
    for number in range(3):  # of 2037 bytes each; two go into 4096
        decoder.decode(literal((b"name%d" % number, b"x" * 2000), remember=True))
    assert decoder.decode(indexed(62)) == [(b"name2", b"x" * 2000)]
    assert decoder.decode(indexed(63)) == [(b"name1", b"x" * 2000)]
    with pytest.raises(HeaderError, match="entry 64"):
        decoder.decode(indexed(64))


def test_static_fields_and_others_survive_a_round_trip():
    fields = [(b":method", b"POST"), (b":path", b"/a" * 100), (b"te", b"trailers")]
    assert HeaderDecoder().decode(block_of(fields)) == fields


@pytest.mark.parametrize("block", ["40", "4005", "be", "ff", "3fe21f01", "0081", "00" + "81ff" + "00"])
def test_bytes_that_are_no_block(block):
    with pytest.raises(HeaderError):
        HeaderDecoder().decode(bytes.fromhex(block) + b"")


def test_padding_that_is_not_ones_is_refused():
    with pytest.raises(HeaderError):
        huffman_decoded(bytes([0b00000_000]))


def test_a_table_of_the_servers_size_drops_what_the_rfc_drops():
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
    with pytest.raises(HeaderError, match="entry 65"):
        decoder.decode(indexed(65))


def test_a_table_made_smaller_forgets_and_one_of_no_bytes_remembers_nothing():
    decoder = HeaderDecoder()
    decoder.decode(literal((b"a", b"1"), remember=True))
    assert decoder.decode(indexed(62)) == [(b"a", b"1")]
    assert decoder.decode(b"\x20") == []
    with pytest.raises(HeaderError, match="entry 62"):
        decoder.decode(indexed(62))
    decoder.decode(literal((b"a", b"1"), remember=True))
    with pytest.raises(HeaderError, match="entry 62"):
        decoder.decode(indexed(62))


@pytest.mark.parametrize(("block", "size"), [("3fe11f", 4096), ("3fe21f", 4097), ("3f00", 31), ("3e", 30)])
def test_a_table_may_be_as_large_as_was_offered(block, size):
    """Two entries of 34 bytes: both fit into 68 or more."""
    decoder = HeaderDecoder()
    if size > 4096:
        with pytest.raises(HeaderError, match="4097 bytes was not offered"):
            decoder.decode(bytes.fromhex(block))
        return
    assert decoder.decode(bytes.fromhex(block)) == []
    for number in (b"1", b"2"):
        decoder.decode(literal((b"a", number), remember=True))
    if size == 4096:
        assert decoder.decode(indexed(63)) == [(b"a", b"1")]
    else:
        with pytest.raises(HeaderError, match="entry 62"):
            decoder.decode(indexed(62))


def test_an_entry_as_large_as_the_table_stays_and_a_larger_one_empties_it():
    decoder = HeaderDecoder()
    decoder.decode(literal((b"name", b"x" * (4096 - 32 - 4)), remember=True))
    assert decoder.decode(indexed(62))[0][0] == b"name"
    decoder.decode(literal((b"name", b"x" * (4096 - 32 - 3)), remember=True))
    with pytest.raises(HeaderError, match="entry 62"):
        decoder.decode(indexed(62))


def test_the_static_table_is_that_of_the_rfc():
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
    assert {static_index(field) for field in entries.values()} == set(entries)
    assert static_index((b":status", b"201")) is None
    for index in (0, 62):
        with pytest.raises(HeaderError, match=f"entry {index}, which is not there"):
            HeaderDecoder().decode(indexed(index))


@pytest.mark.parametrize(
    ("block", "remembered"),
    [("4f0161", True), ("0f000161", False), ("1f000161", False), ("50023132", True), ("0f01023132", False)],
)
def test_a_literal_may_take_its_name_from_the_table_and_is_remembered_only_if_it_says_so(block, remembered):
    """0x0n and 0x1n are literals that nobody remembers, with four bits for the index (RFC 7541, 6.2)."""
    decoder = HeaderDecoder()
    [(name, value)] = decoder.decode(bytes.fromhex(block))
    assert (name, value) in [(b"accept-charset", b"a"), (b"accept-encoding", b"12")]
    assert decoder.changes == remembered
    if remembered:
        assert decoder.decode(indexed(62)) == [(name, value)]
    else:
        with pytest.raises(HeaderError, match="entry 62"):
            decoder.decode(indexed(62))


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 16_512, 100_000])
def test_lengths_on_both_sides_of_what_fits_into_so_many_bytes(length):
    fields = [(b"n" * length, b"v"), (b"n", b"v" * length)]
    assert HeaderDecoder().decode(block_of(fields)) == fields


def test_numbers_of_the_rfc():
    """Appendix C.1: 10 and 1337 in five bits, here as table sizes; and no number goes on for ever."""
    assert HeaderDecoder().decode(bytes.fromhex("2a3f9a0a")) == []
    with pytest.raises(HeaderError, match="too long"):
        HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 5 + "00"))
    with pytest.raises(HeaderError, match="ends too early"):
        HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 4))
    assert HeaderDecoder().decode(bytes.fromhex("3f" + "80" * 4 + "00")) == []


def test_every_symbol_has_its_code():
    """Appendix B: the codes fill all bits, so none is missing, and some of each length are these."""
    assert sum(2.0**-length for length, _ in _symbols()) == 1.0
    assert sorted(_symbols().values()) == list(range(257))
    code_of = {symbol: code for (length, code), symbol in _symbols().items()}
    known = {"0": 0x0, "t": 0x9, " ": 0x14, "u": 0x2D, ":": 0x5C, "z": 0x7B, "&": 0xF8, "Z": 0xFD, "!": 0x3F8}
    known |= {"'": 0x7FA, "#": 0xFFA, "\0": 0x1FF8, "^": 0x3FFC, "<": 0x7FFC, "\\": 0x7FFF0, "\x80": 0xFFFE6}
    known |= {"\x01": 0x7FFFD8, "\t": 0xFFFFEA, "\x02": 0xFFFFFE2, "\n": 0x3FFFFFFC, "\xf9": 0xFFFFFFE}
    assert {text: code_of[ord(text)] for text in known} == known


def test_padding_of_up_to_seven_ones_is_no_text_and_more_is_refused():
    assert huffman_decoded(bytes([0b00011_111])) == b"a"
    for wrong in (b"\xff", bytes([0b00011_111, 0xFF]), bytes([0b00011_110]), b"\xff\xff\xff\xff"):
        with pytest.raises(HeaderError):
            huffman_decoded(wrong)


def test_a_block_is_decoded_once_while_there_is_room_to_remember_it():
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


def test_changes_of_the_table_are_counted_because_they_change_what_blocks_mean():
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
def test_a_block_that_breaks_off_is_refused(cut):
    whole = bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572")  # appendix C.2.1
    assert HeaderDecoder().decode(whole) == [(b"custom-key", b"custom-header")]
    with pytest.raises(HeaderError, match="ends too early"):
        HeaderDecoder().decode(whole[:-cut])
