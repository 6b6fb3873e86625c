"""Answers are read the same however the network cuts them up."""

import itertools
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_wire import Memory

from loadgen.wire.http1_response import AnswerReader
from loadgen.wire.sockets import ReadBuffer


def sized(status: int, parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return b"HTTP/1.1 %d Said\r\nX-Other: 1\r\ncontent-LENGTH: %d\r\n\r\n%b" % (status, len(body), body)


def chunked(status: int, parts: list[bytes]) -> bytes:
    chunks = b"".join(b"%X;note=1\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return b"HTTP/1.1 %d Said\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\nTrailer: x\r\n\r\n" % (status, chunks)


ANSWER = st.tuples(
    st.sampled_from([sized, chunked]),
    st.sampled_from([200, 404, 503]),
    st.lists(st.binary(max_size=300), max_size=4),
    st.lists(st.integers(0, 2000), max_size=8),
)


@given(st.lists(ANSWER, min_size=1, max_size=4))
@settings(deadline=None)
def test_one_answer_after_the_other_however_they_are_cut(answers: list[Any]) -> None:
    reader, stream = AnswerReader(ReadBuffer()), Memory(1)
    for written, status, parts, places in answers:
        data = written(status, parts)
        at = sorted({0, len(data), *(place % len(data) for place in places)})
        stream.coming = [data[a:b] for a, b in itertools.pairwise(at)]
        found = None
        while stream.coming:
            assert found is None
            found = reader.read(cast("Any", stream))
        assert (found.status, found.body) == (status, b"".join(parts))
