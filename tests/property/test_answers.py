"""Answers are read the same however the network cuts them up."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.wire.http1_response import AnswerReader
from loadgen.wire.sockets import ReadBuffer


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
    answers: list[Any] = []
    while len(answers) < count:
        answer = reader.read(stream)
        if answer is not None:
            answers.append((answer.status, answer.body))
    return answers


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


@given(BODY.filter(bool), st.integers(0, 10_000))
@settings(deadline=None)
def test_an_answer_that_breaks_off_is_never_taken_for_whole(body: bytes, keep: int) -> None:
    answer = sized(200, body)
    whole = answer[: keep % len(answer)]
    with pytest.raises(ClosedEarly):
        read_all(Pieces([whole] if whole else []), 1)


def test_an_interim_answer_is_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_all(Pieces([interim + sized(500, b"no")]), 1) == [(500, b"no")]
    assert read_all(Pieces([interim, sized(200, b"yes")]), 1)[0][0] == 200


def test_a_body_larger_than_the_buffer() -> None:
    body = bytes(np.arange(5000) % 251)
    answer = sized(200, body)
    reader = AnswerReader(ReadBuffer(size=600))
    stream = Pieces([answer[at : at + 600] for at in range(0, len(answer), 600)])
    heads = [reader.read(stream) for _ in range(len(stream.pieces))]  # type: ignore[arg-type]
    assert heads[-1] is not None
    assert not any(heads[:-1])
