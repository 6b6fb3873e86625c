"""What the head of an answer says, how much of it is remembered, and where it has an end (RFC 9112)."""

from typing import Any, cast

import pytest
from memory_wire import Memory

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.transport.http1_body import ChunkedBody, SizedBody
from loadgen.transport.http1_response import AnswerReader, Head, ReadBuffer, error_text, excerpt, parse_head

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def head(*fields: str) -> Head:
    return parse_head("\r\n".join(["HTTP/1.1 200 OK", *fields, "", ""]).encode())


def read(reader: AnswerReader, *pieces: bytes) -> Head | None:
    """What the last of the pieces makes of the answer; all before it must leave it unfinished."""
    stream, found = Memory(1), None
    for piece in pieces:
        assert found is None
        stream.coming = [piece]
        found = reader.read(cast("Any", stream))
    return found


def test_a_head_tells_what_its_body_is() -> None:
    assert head("Content-Type: Application/JSON; charset=utf-8", "Content-Length: 7") == Head(
        200, 7, chunked=False, keep_alive=True, content_type="application/json", json_bytes=None
    )
    assert head() == Head(200, None, chunked=False, keep_alive=False, content_type="")
    assert head("Content-Type: text/x; note=a:b").content_type == "text/x"
    assert head("content-length:300", "INFERENCE-HEADER-CONTENT-LENGTH: 300 ").json_bytes == 300
    assert head("Transfer-Encoding: gzip, Chunked", "Inference-Header-Content-Length: 5").json_bytes == 5


@pytest.mark.parametrize("status", [100, 199, 204, 304])
def test_some_answers_have_no_body_whatever_their_head_says(status: int) -> None:
    raw = b"HTTP/1.1 %d X\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    assert parse_head(raw) == Head(status, 0, chunked=False, keep_alive=True)


@pytest.mark.parametrize(
    ("version", "fields", "stays"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: Keep-Alive\r\n", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.1", "connection: CLOSE\r\n", False),
        ("1.1", "Connection: X-Hop , Close\r\n", False),
        ("1.1", "Connection: close\r\nConnection: X-Hop\r\n", False),
        ("1.1", "Connection: X-closed\r\n", True),
        ("1.0", "", False),
        ("1.0", "Connection: Keep-Alive\r\n", True),
        ("1.0", "Connection: X-Hop,keep-alive\r\n", True),
        ("1.0", "Connection: keep-alive, close\r\n", False),
    ],
)
def test_a_connection_stays_open_as_its_options_say(version: str, fields: str, stays: bool) -> None:
    """Options come in one field or in several, in any letters (RFC 9112, 9.3, and RFC 9110, 5.3)."""
    raw = f"HTTP/{version} 200 OK\r\n{fields}Content-Length: 2\r\n\r\n".encode()
    assert parse_head(raw).keep_alive is stays


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_empty_line_is_no_answer(at: int, before: bytes) -> None:
    data, at = before + b"\r\n\r\n", len(before) + at
    with pytest.raises(MalformedAnswer, match="no HTTP answer"):
        read(AnswerReader(ReadBuffer()), *filter(None, (data[:at], data[at:])))


@pytest.mark.parametrize("digits", [15, 16])
def test_a_length_has_at_most_fifteen_digits(digits: int) -> None:
    if digits == 15:
        assert head(f"Content-Length: {'9' * 15}").length == 10**15 - 1
    else:
        with pytest.raises(MalformedAnswer, match=r"content-length b'9+'"):
            head(f"Content-Length: {'9' * 16}")


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        (("Content-Length: 9",), 9),
        (("Content-Length: 2000000",), 1 << 20),
        (("Transfer-Encoding: chunked",), 1 << 20),
        (("Transfer-Encoding: chunked", "Content-Length: 5"), 1 << 20),
    ],
)
def test_the_json_part_is_no_longer_than_the_body_or_a_mebibyte(fields: tuple[str, ...], fits: int) -> None:
    assert head(*fields, f"Inference-Header-Content-Length: {fits}").json_bytes == fits
    with pytest.raises(MalformedAnswer, match=r"inference-header-content-length .*, over"):
        head(*fields, f"Inference-Header-Content-Length: {fits + 1}")


def test_two_lengths_may_only_say_the_same() -> None:
    assert head("Content-Length: 5", "content-length: 5").length == 5
    with pytest.raises(MalformedAnswer, match="two lengths, b'5' and b'6'"):
        head("Content-Length: 5", "Content-Length: 6")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "http 500"),
        (b'{"error": "no model"}', "http 500, no model"),
        (b'{"error": 7}', "http 500, 7"),
        (b'{"message": "x"}', 'http 500, {"message": "x"}'),
        (b'["error"]', 'http 500, ["error"]'),
        (b" plain\n", "http 500, plain"),
        (b"\xff", "http 500, \ufffd"),
        (b"[" * 100_000, "http 500, " + "[" * 500),
    ],
)
def test_an_error_is_told_in_the_servers_words(body: bytes, text: str) -> None:
    assert error_text(500, body) == text


def test_of_long_words_the_beginning_is_told() -> None:
    for told in (error_text(500, b'{"error": "%b"}' % (b"x" * 1000)), "http 500, " + excerpt(b"x" * 1000)):
        assert told.startswith("http 500, " + "x" * 450)
        assert len(told) <= 520


@pytest.mark.parametrize("size", [2048, 2049])
def test_long_heads_are_not_remembered(size: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"x" * (size - 24))
    assert len(raw) == size
    buffer = ReadBuffer()
    assert (buffer.head(raw) is buffer.head(raw)) is (size == 2048)


def test_what_was_read_is_counted_and_more_than_16_kib_at_once_is_much() -> None:
    buffer = ReadBuffer()
    buffer.received(1 << 14)
    assert (buffer.bytes_received, buffer.takes_little) == (1 << 14, True)
    buffer.received((1 << 14) + 1)
    assert (buffer.bytes_received, buffer.takes_little) == ((1 << 15) + 1, False)
    assert len(ReadBuffer().view) == 1 << 20


def test_eight_interim_answers_may_come_before_each_answer() -> None:
    reader, interim = AnswerReader(ReadBuffer()), b"HTTP/1.1 102 Processing\r\n\r\n"
    for _ in range(3):
        assert read(reader, interim * 4, interim * 4, OK + b"ab") is not None
        assert (reader.body, reader.size) == (b"ab", 2)
    with pytest.raises(MalformedAnswer, match="over 8 interim answers, the last with status 102"):
        read(reader, interim * 9)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_head_may_be_64_kib_long(pieces: int) -> None:
    for size in (1 << 16, (1 << 16) + 1):
        raw = b"HTTP/1.1 200 OK\r\nX: " + b"x" * (size - 20) + b"\r\n\r\n"
        parts = [raw[:100], raw[100:]][-pieces:] if pieces == 2 else [raw]
        if size == 1 << 16:
            assert read(AnswerReader(ReadBuffer()), *parts) is None  # its body ends with the connection
        else:
            with pytest.raises(MalformedAnswer, match="no end of the head within 65,536 bytes"):
                read(AnswerReader(ReadBuffer()), *parts)
    endless = [b"HTTP/1.1 200 OK\r\nX: ", b"x" * ((1 << 16) - 20)]
    reader = AnswerReader(ReadBuffer())
    assert read(reader, *endless) is None
    with pytest.raises(MalformedAnswer, match="no end of the head"):
        read(reader, b"x")


@pytest.mark.parametrize(
    ("kept", "where"),
    [(0, "before the whole head"), (5, "before the whole head"), (len(OK), "middle of the body"), (-1, "middle")],
)
def test_an_answer_that_breaks_off_says_where(kept: int, where: str) -> None:
    reader = AnswerReader(ReadBuffer())
    pieces = [(OK + b"ab")[:kept]] if kept else []
    with pytest.raises(ClosedEarly, match=where):
        read(reader, *pieces, b"")


@pytest.mark.parametrize(
    ("start", "most", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\n", None, 1 << 20),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 10\r\n", None, 10),
        (b"HTTP/1.1 500 X\r\n", None, 1 << 16),
        (b"HTTP/1.1 200 OK\r\n", 1 << 22, 2_000_000),
    ],
)
def test_as_much_of_a_body_is_kept_as_is_read_later(start: bytes, most: int | None, kept: int) -> None:
    reader = AnswerReader(ReadBuffer(), most)
    found = read(reader, start + b"Content-Length: 2000000\r\n\r\n", bytes(1_000_000), bytes(1_000_000))
    assert found is not None
    assert (len(reader.body), reader.size) == (kept, 2_000_000)


@pytest.mark.parametrize("form", ["Content-Length: 101", "X-Open: 1"])
def test_a_document_may_be_as_long_as_it_is_wanted_and_no_longer(form: str) -> None:
    reader = AnswerReader(ReadBuffer(), 100)
    assert read(reader, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"x" * 99, b"y") is not None
    assert (reader.body, reader.size) == (b"x" * 99 + b"y", 100)
    start = f"HTTP/1.1 200 OK\r\n{form}\r\n\r\n".encode()
    assert read(reader, start, bytes(100)) is None
    with pytest.raises(MalformedAnswer, match="an answer of over 100 bytes"):
        read(reader, b"x")


@pytest.mark.parametrize(("count", "size", "taken"), [(4096, 1, True), (4097, 15, False), (4097, 16, True)])
def test_a_server_may_send_thousands_of_chunks_but_not_tiny_ones(count: int, size: int, taken: bool) -> None:
    data, body = bytearray((b"%x\r\n%b\r\n" % (size, bytes(size))) * count), ChunkedBody(10)
    if taken:
        assert body.take(data, 0, len(data)) == len(data)
        assert body.size == count * size
    else:
        with pytest.raises(MalformedAnswer, match=r"over 4,096 chunks of under 16 bytes"):
            body.take(data, 0, len(data))


def test_the_size_of_a_chunk_has_at_most_fifteen_digits() -> None:
    data, body = bytearray(b"%015x\r\nabcde\r\n0\r\n\r\n" % 5), ChunkedBody(10)
    assert body.take(data, 0, len(data)) == len(data)
    assert (body.ended, bytes(body.kept)) == (True, b"abcde")
    with pytest.raises(MalformedAnswer, match="chunk size"):
        ChunkedBody(10).take(bytearray(b"%016x\r\n" % 5), 0, 18)


def test_the_last_byte_that_is_kept_may_come_alone() -> None:
    body = SizedBody(10, 4)
    for piece in (b"abc", b"de", b"fghij"):
        assert not body.ended
        body.take(bytearray(piece), 0, len(piece))
    assert (bytes(body.kept), body.size, body.ended) == (b"abcd", 10, True)
