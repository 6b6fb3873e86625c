"""Answers over keep-alive connections: each ends its own request, once, however it comes."""

from collections.abc import Iterator

import pytest
from wire_benches import BODY, REQUESTS, HttpBench, http_answer

from loadgen.status import CLOSED, MALFORMED, OK, outcome_of_http
from loadgen.wire.poller import READ, WRITE

RIGHT = http_answer()


def in_chunks(body: bytes = BODY) -> bytes:
    chunks = b"%x;note=1\r\n%b\r\n%x\r\n%b\r\n" % (4, body[:4], len(body) - 4, body[4:])
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    """With three connections: enough that a request leaves two for the next."""
    with HttpBench(3) as bench:
        yield bench


def test_a_large_answer_means_that_no_later_one_may_wait(bench: HttpBench) -> None:
    bench.wire.send(0)
    bench.give(bench.of(0), http_answer(body=BODY + b" " * (1 << 14)))
    assert not bench.wire.answers_may_wait


@pytest.mark.parametrize(
    "right", [RIGHT, in_chunks(), http_answer("Connection: keep-alive")], ids=["", "chunks", "alive"]
)
def test_an_answer_is_one_however_it_is_cut_and_its_connection_is_used_again(
    bench: HttpBench, right: bytes
) -> None:
    for at in range(1, len(right)):
        row = len(bench.ended)
        bench.wire.send(row)
        stream = bench.of(row)
        bench.give(stream, right[:at])
        assert len(bench.ended) == row
        bench.give(stream, right[at:])
    assert bench.ended == [(row, OK, 7) for row in range(len(right) - 1)]
    assert bench.wire.connections_opened == 3


@pytest.mark.parametrize("status", [204, 304, 302, 400, 503, 599])
def test_any_other_status_is_a_failure_of_that_status_and_the_connection_goes_on(
    bench: HttpBench, status: int
) -> None:
    """204 and 304 have no body, whatever their length says (RFC 9112, 6.3)."""
    bench.wire.send(0)
    body = b"" if status in (204, 304) else b"sorry"
    bench.give(bench.of(0), http_answer(status=f"{status} X", body=b"12345")[:-5] + body)
    assert bench.ended == [(0, outcome_of_http(status), 7)]
    assert (bench.wire.error_example or "").startswith(f"http {status}")
    assert len(bench.open_streams()) == 3
    bench.wire.send(1)
    bench.give(bench.of(1), http_answer(status="500 X", body=b"later"))
    assert "later" not in (bench.wire.error_example or ""), "the first error is the example"


@pytest.mark.parametrize("keep", range(0, len(RIGHT), 7))
def test_an_answer_that_breaks_off_fails_its_request_alone(bench: HttpBench, keep: int) -> None:
    bench.wire.send(0)
    bench.wire.send(1)
    bench.give(bench.of(0), *([RIGHT[:keep]] if keep else []), b"")
    assert bench.ended == [(0, CLOSED, 0)]
    assert "closed" in (bench.wire.error_example or "")
    assert list(bench.wire.in_flight) == [1]
    assert bench.streams[0] not in bench.open_streams()


def test_a_body_without_a_length_ends_with_its_connection(bench: HttpBench) -> None:
    bench.wire.send(0)
    bench.give(bench.of(0), b"HTTP/1.1 200 OK\r\n\r\n" + BODY[:9], BODY[9:])
    assert bench.ended == []
    bench.give(bench.of(0), b"")
    assert bench.ended == [(0, OK, 7)]
    assert len(bench.open_streams()) == 2


def test_an_answer_before_its_request_has_left_counts_and_ends_the_connection(bench: HttpBench) -> None:
    """The server did not want the rest, which must not go out as the beginning of the next request."""
    stream = bench.streams[0]
    stream.room = 4
    bench.wire.send(0)
    bench.give(stream, http_answer(status="413 Too Large"))
    assert bench.ended == [(0, outcome_of_http(413), 7)]
    assert stream.sent == REQUESTS[0][:4]
    assert stream not in bench.open_streams()
    assert bench.wire.answers_may_wait, "nothing waits to be sent any more"


def test_an_inference_before_its_request_has_left_is_none(bench: HttpBench) -> None:
    stream = bench.streams[0]
    stream.room = 4
    bench.wire.send(0)
    bench.give(stream, RIGHT)
    assert bench.ended == [(0, MALFORMED, 0)]
    assert stream not in bench.open_streams()


def test_an_answer_that_is_there_is_taken_with_the_room_to_write(bench: HttpBench) -> None:
    stream = bench.streams[0]
    stream.room = 1
    bench.wire.send(0)
    stream.room = None
    bench.give(stream, RIGHT, events=READ | WRITE)
    assert stream.sent == REQUESTS[0]
    assert bench.ended == [(0, OK, 7)]


def test_a_long_answer_gets_no_more_than_its_share_of_reads_at_a_time(bench: HttpBench) -> None:
    bench.wire.send(0)
    stream = bench.of(0)
    stream.coming = [RIGHT[at : at + 1] for at in range(len(RIGHT))]
    rounds = 0
    while not bench.ended:
        rounds += 1
        before = stream.reads
        bench.wire.handle(stream.fd, READ)
        assert stream.reads - before == min(5, len(RIGHT) - before)
    assert 1 < rounds <= -(-len(RIGHT) // 4)
    assert bench.ended == [(0, OK, 7)]


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_what_a_stream_hides_is_read_until_there_is_none_left(bench: HttpBench, pieces: int) -> None:
    """The poller would not speak of it again. But nothing new may be let in meanwhile."""
    bench.wire.send(0)
    stream = bench.of(0)
    stream.hides_data = True
    step = -(-len(RIGHT) // pieces)
    stream.coming = [RIGHT[at : at + step] for at in range(0, len(RIGHT), step)]
    bench.wire.handle(stream.fd, READ)
    assert bench.ended == [(0, OK, 7)]
    assert stream.emptied == (pieces > 1)


def test_an_answer_of_a_later_time_has_that_time(bench: HttpBench) -> None:
    bench.wire.send(0)
    stream = bench.of(0)
    bench.give(stream, RIGHT[:10])
    stream.arrived_ns = 99
    bench.give(stream, RIGHT[10:])
    assert bench.ended == [(0, OK, 99)]
