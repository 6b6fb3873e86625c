"""Expected bytes come from RFC 7541, appendix C."""

import importlib.util
import logging

import pytest
from header_bytes import indexed, literal

from loadgen.errors import MalformedAnswer
from loadgen.wire.http2_frames import HeaderDecoder, block_of, request_head


def test_a_block_that_is_remembered_is_forgotten_when_the_table_changes() -> None:
    decoder = HeaderDecoder()
    decoder.decode(literal((b"a", b"1"), remember=True))
    newest = indexed(62)
    assert decoder.decode(newest) == decoder.decode(newest) == ((b"a", b"1"),)
    decoder.decode(literal((b"b", b"2"), remember=True))
    assert decoder.decode(newest) == ((b"b", b"2"),)


@pytest.mark.parametrize("block", ["40", "4005", "be", "ff", "3fe21f01", "0081", "00" + "81ff" + "00"])
def test_bytes_that_are_no_block(block: str) -> None:
    with pytest.raises(MalformedAnswer, match="no header block"):
        HeaderDecoder().decode(bytes.fromhex(block) + b"")


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


@pytest.mark.parametrize("fields", [1000, 6096, 6097])
def test_the_fields_of_a_block_have_at_most_256_kib(fields: int) -> None:
    """Small blocks can become large: each byte may stand for a field of 4 KiB. A field counts 32 bytes more."""
    decoder = HeaderDecoder()
    decoder.decode(literal((b"name", b"x" * 7), remember=True))
    block = indexed(62) * fields
    if fields * (32 + 4 + 7) <= 1 << 18:
        assert decoder.decode(block) == ((b"name", b"x" * 7),) * fields
    else:
        with pytest.raises(MalformedAnswer, match="A header list larger than 262144 has been received: bebe"):
            decoder.decode(block)


def test_an_error_holds_the_beginning_of_a_block_and_no_more() -> None:
    for block in (b"\0\1a\x7f" + b"\xff" * 60_000, b"\x3f" + b"\xff" * 60_000, b"\0\1a\xff\1" + b"\xff" * 60_000):
        with pytest.raises(MalformedAnswer, match="no header block") as caught:
            HeaderDecoder().decode(block)
        assert str(caught.value).endswith(f": {block[:40].hex()}")
        assert len(str(caught.value)) < 160


def test_no_header_is_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    """The import sees to that; what an earlier one did to the library's log is taken back here."""
    with caplog.at_level(logging.NOTSET, logger="hpack"):
        spec = importlib.util.find_spec("loadgen.wire.http2_frames")
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
