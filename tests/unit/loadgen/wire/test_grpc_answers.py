"""Answers to calls: what the server says of each, however it comes."""

from collections.abc import Iterator

import pytest
from wire_benches import GrpcBench, grpc_answer

from loadgen.spec.target import Target
from loadgen.status import MALFORMED, OK, outcome_name, outcome_of_grpc, outcome_of_http
from loadgen.wire.http2_frames import DATA, HEADERS, HeaderDecoder, block_of, frame
from loadgen.wire.http2_sending import INFER, grpc_head, grpc_message, status_of
from loadgen.wire.poller import READ, WRITE

STATUS = (b":status", b"200")
NO_STATUS = "http 200 without a grpc-status"
ANSWER = grpc_answer(1)


@pytest.fixture
def one() -> Iterator[GrpcBench]:
    with GrpcBench(1) as bench:
        yield bench


@pytest.mark.parametrize(
    ("fields", "outcome", "text"),
    [
        ([STATUS, (b"grpc-status", b"0")], "ok", ""),
        ([STATUS, (b"grpc-status", b"0"), (b"grpc-message", b"fine")], "ok", "fine"),
        ([STATUS, (b"grpc-status", b"14"), (b"grpc-message", b"no%20 %C3%A4")], "grpc UNAVAILABLE", "no  ä"),
        ([STATUS, (b"grpc-status", b"99999")], "grpc UNKNOWN", ""),
        ([STATUS, (b"grpc-status", b"100000")], "malformed answer", f"{NO_STATUS}, no content type"),
        ([STATUS, (b"grpc-status", b"-1")], "malformed answer", f"{NO_STATUS}, no content type"),
        ([STATUS, (b"content-type", b"text/html")], "malformed answer", f"{NO_STATUS}, text/html"),
        *(
            ([(b":status", b"%d" % http), (b"grpc-status", b"0")], f"http {http}", f"http {http}")
            for http in (201, 204, 302, 404, 500, 503)
        ),
        *(
            ([(b":status", http), (b"grpc-status", b"0")], "malformed answer", "an answer without a status")
            for http in (b"", b"20", b"2000", b"abc")
        ),
        ([(b"grpc-status", b"0")], "malformed answer", "an answer without a status"),
    ],
)  # fmt: skip
def test_the_status_of_a_call_is_that_of_http_and_then_that_of_grpc(
    fields: list[tuple[bytes, bytes]], outcome: str, text: str
) -> None:
    number, said = status_of(fields)
    assert (outcome_name(number), said) == (outcome, text)


@pytest.mark.parametrize(
    ("url", "scheme", "authority"),
    [
        ("grpc://example:8001", b"http", b"example:8001"),
        ("grpcs://example:443", b"https", b"example"),
        ("grpc://[::1]:8001", b"http", b"[::1]:8001"),
    ],
)
def test_a_call_says_where_it_goes_and_carries_the_users_headers(
    url: str, scheme: bytes, authority: bytes
) -> None:
    target = Target(url=url, model_name="m", model_version="", headers=(("X-Team", "A"),))
    head = grpc_head(target, INFER)
    decoder = HeaderDecoder()
    for block in (head.first, head.later, head.plain):
        assert list(decoder.decode(block)) == [
            (b":method", b"POST"),
            (b":scheme", scheme),
            (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
            (b":authority", authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"tritune"),
            (b"x-team", b"A"),
        ]


def test_a_header_host_is_the_authority_of_a_call_and_no_field_beside_it() -> None:
    head = grpc_head(Target(url="grpc://10.0.0.1:80", model_name="m", headers=(("Host", "m.example"),)), INFER)
    fields = HeaderDecoder().decode(head.first)
    assert (b":authority", b"m.example") in list(fields or [])
    assert b"host" not in dict(fields or [])


def test_a_message_goes_uncompressed_after_its_length() -> None:
    assert grpc_message(b"x" * 258) == b"\0\0\0\1\2" + b"x" * 258


@pytest.mark.parametrize("at", range(1, len(ANSWER)))
def test_an_answer_is_one_however_it_is_cut(one: GrpcBench, at: int) -> None:
    for row in range(2):
        one.wire.send(row)
        whole = grpc_answer(2 * row + 1)
        one.give(one.streams[0], whole[:at])
        assert len(one.ended) == row
        one.give(one.streams[0], whole[at:])
    assert one.ended == [(0, OK, 7), (1, OK, 7)]


def test_an_answer_of_headers_alone_tells_its_status(one: GrpcBench) -> None:
    for row, status in enumerate((b"13", b"5", b"0")):
        one.wire.send(row)
        block = block_of([STATUS, (b"grpc-status", status), (b"grpc-message", b"number %b" % status)])
        one.give(one.streams[0], frame(HEADERS, 5, 2 * row + 1, block))
    assert one.ended == [(0, outcome_of_grpc(13), 7), (1, outcome_of_grpc(5), 7), (2, MALFORMED, 7)]
    assert one.wire.error_example == "grpc INTERNAL, number 13", "the first is the example"


def test_a_gateway_that_answers_in_the_servers_place_is_told_by_its_status(one: GrpcBench) -> None:
    one.wire.send(0)
    one.give(one.streams[0], frame(HEADERS, 4, 1, block_of([(b":status", b"502")])) + frame(DATA, 1, 1, b"<html>"))
    assert one.ended == [(0, outcome_of_http(502), 7)]
    assert one.wire.error_example == "http 502, http 502"


def test_an_answer_of_another_status_does_not_pass_for_the_one_before(one: GrpcBench) -> None:
    """A failure between successes, and a success after it, of the same frames and lengths."""
    statuses = [b"0", b"0", b"0", b"8", b"0", b"8"]
    for row, status in enumerate(statuses):
        one.wire.send(row)
        one.give(one.streams[0], grpc_answer(2 * row + 1, status=status))
    assert [outcome for _, outcome, _ in one.ended] == [outcome_of_grpc(int(status)) for status in statuses]


@pytest.mark.parametrize("pieces", [1, 3, 30])
def test_what_a_stream_hides_is_read_until_there_is_none_left(one: GrpcBench, pieces: int) -> None:
    one.wire.send(0)
    stream = one.streams[0]
    stream.hides_data = True
    step = -(-len(ANSWER) // pieces)
    stream.coming = [ANSWER[at : at + step] for at in range(0, len(ANSWER), step)]
    one.wire.handle(stream.fd, READ)
    assert one.ended == [(0, OK, 7)]
    assert (stream.coming, stream.emptied) == ([], 1)


def test_without_anything_hidden_one_read_is_enough(one: GrpcBench) -> None:
    one.wire.send(0)
    stream = one.streams[0]
    before = stream.reads
    stream.coming = [ANSWER[:9], ANSWER[9:]]
    one.wire.handle(stream.fd, READ)
    assert stream.reads == before + 1
    one.wire.handle(stream.fd, WRITE)
    assert stream.reads == before + 1


def test_an_answer_of_a_later_time_has_that_time(one: GrpcBench) -> None:
    one.wire.send(0)
    one.give(one.streams[0], ANSWER[:10])
    one.streams[0].arrived_ns = 99
    one.give(one.streams[0], ANSWER[10:])
    assert one.ended == [(0, OK, 99)]
