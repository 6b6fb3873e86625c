"""Answers are read the same however the network cuts them up."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.transport.http1_body import ChunkedBody, OpenBody, SizedBody
from loadgen.transport.http1_response import AnswerReader, ReadBuffer, parse_head


class Pieces:
    """A stream that gives the pieces it was made of, one a read, then its end."""

    hides_data = False

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = list(pieces)

    def recv_into(self, buffer: Any, /) -> int:
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)


def cut(data: bytes, places: list[Any]) -> list[Any]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def read_all(stream: Any, count: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers."""
    reader = AnswerReader(ReadBuffer())
    heads: list[Any] = []
    while len(heads) < count:
        head = reader.read(stream)
        if head is not None:
            heads.append((head.status, reader.body))
    return heads


BODY = st.binary(max_size=300)


def sized(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Said\r\nX-Other: 1\r\ncontent-LENGTH: %d\r\n\r\n%b" % (status, len(body), body)


def chunked(status: int, parts: list[Any]) -> bytes:
    chunks = b"".join(b"%X;note=1\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return b"HTTP/1.1 %d Said\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\nTrailer: x\r\n\r\n" % (status, chunks)


@given(st.sampled_from([200, 404, 500]), BODY, st.lists(st.integers(0, 1000), max_size=8))
@settings(deadline=None)
def test_an_answer_of_known_length_however_it_is_cut(status: Any, body: bytes, places: list[Any]) -> None:
    answer = sized(status, body)
    assert read_all(Pieces(cut(answer, places)), 1) == [(status, body)]


@given(st.sampled_from([200, 503]), st.lists(BODY, max_size=4), st.lists(st.integers(0, 2000), max_size=8))
@settings(deadline=None)
def test_a_chunked_answer_however_it_is_cut(status: Any, parts: list[Any], places: list[Any]) -> None:
    assert read_all(Pieces(cut(chunked(status, parts), places)), 1) == [(status, b"".join(parts))]


@given(BODY, st.lists(st.integers(0, 1000), max_size=5))
@settings(deadline=None)
def test_an_answer_without_a_length_ends_with_its_connection(body: bytes, places: list[Any]) -> None:
    answer = b"HTTP/1.0 200 OK\r\n\r\n" + body
    assert read_all(Pieces(cut(answer, places)), 1) == [(200, body)]


@given(st.lists(st.tuples(st.sampled_from([200, 500]), BODY), min_size=2, max_size=4), st.data())
@settings(deadline=None, max_examples=50)
def test_one_answer_after_the_other_on_the_same_connection(answers: list[Any], data: Any) -> None:
    pieces = []
    for status, body in answers:
        pieces += cut(sized(status, body), data.draw(st.lists(st.integers(0, 500), max_size=3)))
    seen = read_all(Pieces(pieces), len(answers))
    assert [status for status, _ in seen] == [status for status, _ in answers]


@pytest.mark.parametrize("places", [(), (3,), (-3,), (3, -3), (-7, -3), (-6, -5, -3)])
def test_bytes_after_the_end_of_an_answer_are_no_answer(places: tuple[Any, ...]) -> None:
    data = sized(200, b"body") + b"more"
    pieces = cut(data, [place % len(data) for place in places])
    with pytest.raises(MalformedAnswer, match="after the end"):
        read_all(Pieces(pieces), 2)


@pytest.mark.parametrize(
    ("start", "fields", "length", "keep_alive"),
    [
        ("HTTP/1.1 200 OK", "Content-Length: 5", 5, True),
        ("HTTP/1.1 200 OK", "Content-Length: 5\r\nConnection: Close", 5, False),
        ("HTTP/1.0 200 OK", "Content-Length: 5", 5, False),
        ("HTTP/1.0 200 OK", "Content-Length: 5\r\nConnection: Keep-Alive", 5, True),
        ("HTTP/1.1 200 OK", "Connection: keep-alive", None, False),
        ("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", None, True),
        ("HTTP/1.1 200 OK", "Transfer-Encoding: chunked\r\nContent-Length: 5", None, True),
        ("HTTP/1.1 204 No Content", "Content-Length: 5", 0, True),
        ("HTTP/1.1 304 Not Modified", "Content-Length: 5", 0, True),
        ("HTTP/1.1 100 Continue", "Transfer-Encoding: chunked", 0, True),
    ],
)
def test_a_head_tells_how_long_its_body_is_and_whether_another_answer_may_follow(
    start: str, fields: str, length: int | None, keep_alive: bool
) -> None:
    """RFC 9112, 6.3 and 9.3: chunks win over a length, and what has neither ends with its connection."""
    head = parse_head(f"{start}\r\n{fields}\r\n\r\n".encode())
    assert (head.length, head.keep_alive) == (length, keep_alive)
    assert head.chunked is (length is None and "chunked" in fields)


@given(BODY.filter(bool), st.integers(0, 10_000))
@settings(deadline=None)
def test_an_answer_that_breaks_off_is_never_taken_for_whole(body: bytes, keep: int) -> None:
    answer = sized(200, body)
    whole = answer[: keep % len(answer)]
    with pytest.raises(ClosedEarly):
        read_all(Pieces([whole] if whole else []), 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xd9\xa5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nInference-Header-Content-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nInference-Header-Content-Length: +1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nmore",
        b"HTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        *(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\nabcdef\r\n0\r\n\r\n" % size
            for size in (b"-6", b"+6", b"0x6", b"0_6", b" 6", b"", b";", b"f" * 16, b"6\n6", b"7", b"5")
        ),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 20000,
        b"x" * 100_000,
    ],
)
def test_bytes_that_are_no_answer(answer: bytes | None) -> None:
    with pytest.raises(MalformedAnswer):
        read_all(Pieces([answer]), 1)


def test_an_interim_answer_is_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_all(Pieces([interim + sized(500, b"no")]), 1) == [(500, b"no")]
    assert read_all(Pieces([interim, sized(200, b"yes")]), 1)[0][0] == 200


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_whether_the_connection_may_be_used_again(head: bytes, keep_alive: bool) -> None:
    answer = AnswerReader(ReadBuffer()).read(Pieces([head]))  # type: ignore[arg-type]
    assert answer is not None
    assert answer.keep_alive is keep_alive


def test_a_body_larger_than_the_buffer() -> None:
    body = bytes(np.arange(5000) % 251)
    answer = sized(200, body)
    reader = AnswerReader(ReadBuffer(size=600))
    stream = Pieces([answer[at : at + 600] for at in range(0, len(answer), 600)])
    heads = [reader.read(stream) for _ in range(len(stream.pieces))]  # type: ignore[arg-type]
    assert heads[-1] is not None
    assert not any(heads[:-1])


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
@settings(deadline=None)
def test_no_byte_of_a_body_in_chunks_is_looked_at_twice(parts: list[Any]) -> None:
    """An answer that comes byte by byte costs as much per byte at its end as at its beginning."""
    answer, looked_at = chunked(200, parts), 0

    class Counting(bytearray):
        def find(self, wanted: Any, start: int = 0, end: Any = None) -> int:  # type: ignore[override]
            nonlocal looked_at
            looked_at += (len(self) if end is None else end) - start
            return super().find(wanted, start, len(self) if end is None else end)

    buffer = ReadBuffer(size=4096)
    buffer.data = Counting(buffer.data)
    buffer.view = memoryview(buffer.data)
    reader, stream = AnswerReader(buffer), Pieces([answer[at : at + 1] for at in range(len(answer))])
    while reader.read(stream) is None:  # type: ignore[arg-type]
        pass
    assert reader.body == b"".join(parts)
    assert looked_at <= 2 * len(answer)


def test_of_a_long_body_no_more_is_kept_than_is_used() -> None:
    head = b"HTTP/1.1 500 Broken\r\nContent-Length: 100000000\r\n\r\n"
    reader, stream = AnswerReader(ReadBuffer()), Pieces([head, *[bytes(1_000_000)] * 100])
    while reader.read(stream) is None:  # type: ignore[arg-type]
        pass
    assert (len(reader.body), reader.size) == (1 << 16, 100_000_000)


@pytest.mark.parametrize("body", [SizedBody(100, 10), OpenBody(10), ChunkedBody(10)])
def test_of_a_body_in_pieces_exactly_as_much_is_kept_as_is_asked_for(
    body: SizedBody | OpenBody | ChunkedBody,
) -> None:
    text = b"64\r\n" if isinstance(body, ChunkedBody) else b""
    for piece in (text + b"012345", b"6789abcdef", b"ghi"):
        assert body.take(bytearray(piece), 0, len(piece)) == len(piece)
    assert (bytes(body.kept), body.size) == (b"0123456789", 19)


def test_thousands_of_tiny_chunks_are_no_answer() -> None:
    data = bytearray(b"1\r\nx\r\n" * 4097)
    with pytest.raises(MalformedAnswer, match="over 4,096 chunks of under 16 bytes"):
        ChunkedBody(10).take(data, 0, len(data))


def test_a_short_head_is_found_after_a_long_one_that_came_in_pieces() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 200
    assert read_all(Pieces([interim, b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]), 1) == [(200, b"")]


def test_a_document_over_its_limit_is_refused_before_it_is_all_there() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    reader, stream = AnswerReader(ReadBuffer(), most_kept=3_000_000), Pieces([head, *[bytes(1_000_000)] * 100])
    for _ in range(3):
        assert reader.read(stream) is None  # type: ignore[arg-type]
    reader.read(stream)  # type: ignore[arg-type]
    with pytest.raises(MalformedAnswer, match="over 3,000,000 bytes"):
        reader.read(stream)  # type: ignore[arg-type]
    assert len(stream.pieces) == 96
