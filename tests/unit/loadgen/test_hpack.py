"""Expected bytes come from RFC 7541, appendix C."""

import pytest

from loadgen.hpack import HeaderDecoder, HeaderError, block_of, huffman_decoded, indexed, literal

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


@pytest.mark.parametrize(("text", "code"), STRINGS.items())
def test_huffman_strings_of_the_rfc(text, code):
    assert huffman_decoded(bytes.fromhex(code)) == text.encode()


def test_responses_of_the_rfc_share_a_table():
    decoder = HeaderDecoder()
    first = decoder.decode(
        bytes.fromhex(
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff"
            "6e919d29ad171863c78f0b97c8e9ae82ae43d3"
        )
    )
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
