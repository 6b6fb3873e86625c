"""What is read of a response, how much of it is kept, and what is none (RFC 9112)."""

from typing import Any, cast

import pytest
from memory_wire import Memory

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.wire.http1_response import Answer, AnswerReader, error_text
from loadgen.wire.sockets import ReadBuffer
from loadgen.wire.stream_wire import ReplyReader

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes, reader: AnswerReader | None = None) -> Answer | None:
    """What the last of the pieces makes of the answer; all before it must leave it unfinished."""
    reader, stream, found = reader or AnswerReader(ReadBuffer()), Memory(1), None
    for piece in pieces:
        assert found is None
        stream.coming = [piece]
        while stream.coming:
            found = reader.read(cast("Any", stream))
    return found


def answer(*fields: str, version: str = "1.1") -> Answer:
    found = read("\r\n".join([f"HTTP/{version} 200 OK", *fields, "Content-Length: 2", "", "ab"]).encode())
    assert found is not None
    return found


def test_an_answer_tells_what_its_body_is() -> None:
    found = answer("Content-Type: Application/JSON; charset=utf-8", "INFERENCE-HEADER-CONTENT-LENGTH: 1 ")
    assert (found.status, found.body, found.size) == (200, b"ab", 2)
    assert (found.content_type, found.json_bytes) == ("application/json", 1)
    assert (answer().content_type, answer().json_bytes) == ("", 2)


@pytest.mark.parametrize("length", ["+1", "-1", "0x1", "1_0", "", "9" * 16])
def test_the_length_of_the_json_part_is_a_number(length: str) -> None:
    with pytest.raises(MalformedAnswer, match="inference-header-content-length"):
        _ = answer(f"Inference-Header-Content-Length: {length}").json_bytes


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body_whatever_their_head_says(status: int) -> None:
    found = read(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert found is not None
    assert (found.status, found.body, found.keep_alive) == (status, b"", True)


def test_a_trailer_changes_no_header() -> None:
    found = read(CHUNKED.replace(b"\r\n\r\n", b"\r\nA: 1\r\n\r\n") + b"2\r\nab\r\n0\r\nA: 2\r\n\r\n")
    assert found is not None
    assert (found.body, found.fields[b"a"]) == (b"ab", b"1")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 100_000,
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        *(
            b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n" % length
            for length in (b"-5", b"+5", b"0x5", b"1_0", b"\xd9\xa5", b"9" * 5000, b"5\r\nContent-Length: 6")
        ),
        *(
            CHUNKED + b"%b\r\nabcdef\r\n0\r\n\r\n" % size
            for size in (b"-6", b"+6", b"0x6", b"0_6", b"", b"7", b"5")
        ),
        OK + b"abmore",
        OK + b"ab" + OK + b"ab",
        OK.replace(b"200 OK", b"500 X") + b"abmore",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 65_536,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 12_000,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * 12_000,
        CHUNKED + b"2;" + b"a" * 65_536,
        CHUNKED + b"1\r\nx\r\n" * 20_000,
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_bytes_that_are_no_answer(data: bytes, step: int) -> None:
    with pytest.raises(MalformedAnswer):
        read(*(data[at : at + step] for at in range(0, len(data), step)))


@pytest.mark.parametrize("step", [1 << 20, 100])
def test_heads_and_interim_answers_may_take_64_kib_and_large_bodies_any_number_of_chunks(step: int) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 20_000 + b"\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    reader = AnswerReader(ReadBuffer())
    for data in (interim * 2 + head + b"ab", CHUNKED + b"10\r\n0123456789abcdef\r\n" * 20_000 + b"0\r\n\r\n"):
        found = read(*(data[at : at + step] for at in range(0, len(data), step)), reader=reader)
        assert found is not None
        assert found.status == 200
        assert found.fields.get(b"link") is None


@pytest.mark.parametrize(
    ("kept", "where"),
    [(0, "before the whole head"), (5, "before the whole head"), (len(OK), "middle of the body"), (-1, "middle")],
)
def test_an_answer_that_breaks_off_says_where(kept: int, where: str) -> None:
    pieces = [(OK + b"ab")[:kept]] if kept else []
    with pytest.raises(ClosedEarly, match=where):
        read(*pieces, b"")
    with pytest.raises(ClosedEarly, match="middle"):
        read(CHUNKED + b"2\r\nab", b"")


def test_of_a_long_body_as_much_is_kept_as_is_wanted() -> None:
    data = b"HTTP/1.1 500 X\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)
    found = read(data, reader=AnswerReader(ReadBuffer(1000), 5000))
    assert found is not None
    assert (len(found.body), found.size) == (5000, 100_000)


@pytest.mark.parametrize("form", ["Content-Length: 101", "X-Open: 1"])
def test_a_document_may_be_as_long_as_it_is_wanted_and_no_longer(form: str) -> None:
    reader = AnswerReader(ReadBuffer(), 100, whole=True)
    found = read(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"x" * 99, b"y", reader=reader)
    assert found is not None
    assert (found.body, found.size) == (b"x" * 99 + b"y", 100)
    with pytest.raises(MalformedAnswer, match="an answer of over 100 bytes"):
        read(f"HTTP/1.1 200 OK\r\n{form}\r\n\r\n".encode(), bytes(100), b"x", reader=reader)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "http 500"),
        (b'{"error": "no model"}', "http 500, no model"),
        (b'{"error": 7}', "http 500, 7"),
        (b'{"error": {"code": 7}}', "http 500, {'code': 7}"),
        (b'{"error": {"message": null, "code": 7}}', "http 500, {'message': None, 'code': 7}"),
        (b'{"message": "x"}', 'http 500, {"message": "x"}'),
        (b'["error"]', 'http 500, ["error"]'),
        (b" plain\n", "http 500, plain"),
        (b"\xff", "http 500, \ufffd"),
        (b"[" * 100_000, "http 500, " + "[" * 100_000),
    ],
)
def test_an_error_is_told_in_the_servers_words(body: bytes, text: str) -> None:
    assert error_text(Answer(500, {}, keep_alive=True, body=body, size=len(body))) == text


def test_a_redirect_names_its_target_and_a_compressed_body_its_encoding() -> None:
    for status, place in ((308, ", to https://a/v1 "), (429, ", ")):
        head = b"HTTP/1.1 %d X\r\nLocation: https://a/v1\r\nContent-Encoding: identity\r\n" % status
        assert error_text(read(head + b"Content-Length: 1\r\n\r\nb")) == f"http {status}{place}b"
    packed = OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + b"\x1f\x8b"
    assert "gzip" in error_text(read(packed.replace(b"200 OK", b"400 No")))
    for reader in (AnswerReader(ReadBuffer()), ReplyReader(ReadBuffer())):
        with pytest.raises(MalformedAnswer, match="gzip"):
            read(packed, reader=reader)


def test_of_a_stream_the_event_that_is_none_is_told() -> None:
    with pytest.raises(MalformedAnswer, match=r"an event that is no part of a completion: \[1\]"):
        read(CHUNKED + b"b\r\ndata: [1]\n\n\r\n", reader=ReplyReader(ReadBuffer()))
