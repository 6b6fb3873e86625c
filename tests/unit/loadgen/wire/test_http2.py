"""What a server may and may not do on an HTTP/2 connection (RFC 9113), and what it is sent."""

import struct
from typing import Any, cast

import pytest
from memory_wire import HEAD, Memory
from wire_benches import Http2Bench, settings_frame, widen

from loadgen.errors import ClosedEarly, MalformedAnswer
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST,
    MAX_FRAME,
    OPENING,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    HeaderDecoder,
    block_of,
    frame,
    request_head,
)
from loadgen.wire.http2_sending import grpc_message
from loadgen.wire.sockets import ReadBuffer

STATUS = block_of([(b":status", b"200")])
DONE = block_of([(b"grpc-status", b"0")])


def test_a_connection_begins_with_the_preface_and_opens_all_windows_but_none_for_pushes() -> None:
    settings = "00000c040000000000" + "000200000000" + "00047fffffff"
    window = "000004080000000000" + "7fff0000"
    assert bytes.fromhex(settings + window) == OPENING.removeprefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert bytes(Http2Bench().stream.sent) == OPENING + frame(SETTINGS, ACK, 0), (
        "and the server's settings are accepted"
    )


def test_a_connection_is_settled_when_the_servers_settings_are_there() -> None:
    bench = Http2Bench()
    assert bench.http2.settled
    fresh = Http2Connection(cast("Any", Memory(1)), HEAD, ReadBuffer(), lambda *_: None, 0)
    assert not fresh.settled
    assert fresh.wants_to_write
    assert not fresh.idle_but_for_one


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, 0, 0, b"x"),
        frame(HEADERS, 4, 0, STATUS),
        frame(HEADERS, 0, 1, STATUS) + frame(DATA, 0, 1, b"x"),
        frame(HEADERS, 0, 1, STATUS) + frame(HEADERS, 4, 1, STATUS),
        frame(HEADERS, 0, 1, STATUS) + frame(CONTINUATION, 4, 3, b""),
        frame(CONTINUATION, 4, 1, STATUS),
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 64,
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(16_384)) * 4 + frame(CONTINUATION, 4, 1, b"x"),
        frame(HEADERS, 4 | 8, 1, b""),
        frame(HEADERS, 4 | 8, 1, b"\x03" + STATUS + b"ab"[: 2 - len(STATUS)]),
        frame(HEADERS, 4, 1, STATUS) * 9,
        frame(HEADERS, 4, 1, STATUS * 1001),
        frame(DATA, 0, 1, b"x"),
        frame(HEADERS, 4, 1, STATUS) + frame(DATA, 0, 1, b"") * 10_001,
        frame(RST_STREAM, 0, 1, bytes(3)),
        frame(RST_STREAM, 0, 1, bytes(5)),
        frame(WINDOW_UPDATE, 0, 0, bytes(5)),
        frame(GOAWAY, 0, 0, bytes(3)),
        frame(PING, 0, 0, bytes(7)),
        frame(PING, 0, 0, bytes(9)),
        frame(PUSH_PROMISE, 4, 1, bytes(4)),
        frame(SETTINGS, 0, 0, bytes(5)),
        settings_frame((INITIAL_WINDOW, 1 << 31)),
        settings_frame((MAX_FRAME, 16_383)),
        settings_frame((MAX_FRAME, 1 << 24)),
        frame(200, 0, 0, bytes(16_385)),
    ],
)
def test_what_no_server_may_do_ends_the_connection(data: bytes) -> None:
    bench = Http2Bench()
    bench.http2.start(0, b"")
    with pytest.raises(MalformedAnswer):
        bench.give(data)


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 62 + frame(CONTINUATION, 4, 1, STATUS),
        frame(HEADERS, 4, 1, STATUS) * 8,
        frame(HEADERS, 4, 1, STATUS * 1000),
        frame(HEADERS, 4 | 0x20, 1, bytes(5) + STATUS),
        frame(HEADERS, 4 | 0x20 | 8, 1, b"\x02" + bytes(5) + STATUS + b"ab"),
        frame(HEADERS, 4, 1, STATUS) + frame(DATA, 0, 1, b"") * 10_000,
        frame(HEADERS, 4, 1, STATUS) + frame(DATA, 8, 1, b"\0"),
        frame(PING, ACK, 0, bytes(7)),
        frame(SETTINGS, ACK, 0, b""),
        settings_frame((INITIAL_WINDOW, LARGEST), (MAX_FRAME, (1 << 24) - 1), (99, (1 << 32) - 1)),
        frame(GOAWAY, 0, 0, struct.pack(">I", LARGEST)),
        frame(200, 255, 1, bytes(16_384)),
        frame(RST_STREAM, 0, 99, bytes(4)),
        widen(99, 1000),
        frame(HEADERS, 5, 99, STATUS),
        frame(DATA, 0, 99, b"x"),
    ],
)
def test_what_a_server_may_do_does_not(data: bytes) -> None:
    bench = Http2Bench()
    bench.http2.start(0, b"")
    bench.give(data)
    assert bench.ended == []
    bench.give(frame(RST_STREAM, 0, 1, bytes(4)))
    assert [reset for _, reset, _ in bench.ended] == [True]
    assert {kind for kind, *_ in bench.stream.frames()} <= {SETTINGS, WINDOW_UPDATE, HEADERS, DATA}


def test_the_end_of_the_stream_is_an_error_of_its_own() -> None:
    with pytest.raises(ClosedEarly):
        Http2Bench().give(b"")


def test_frames_without_data_are_counted_for_each_answer() -> None:
    bench = Http2Bench()
    for row in range(3):
        bench.http2.start(row, b"")
        number = 2 * row + 1
        bench.give(frame(HEADERS, 4, number, STATUS) + frame(DATA, 0, number, b"") * 9000)
        bench.give(frame(HEADERS, 5, number, DONE))
    assert len(bench.ended) == 3


def test_pings_are_answered_and_a_flood_of_them_is_not_kept_for_ever() -> None:
    bench = Http2Bench()
    for at in range(20_000):
        bench.give(frame(PING, 0, 0, struct.pack(">Q", at)))
    assert bench.stream.frames()[-1] == (PING, ACK, 0, struct.pack(">Q", 19_999))
    bench.stream.room = 0
    bench.give(frame(PING, 0, 0, bytes(8)) * 10_000)
    with pytest.raises(MalformedAnswer, match="over 10,000 pings"):
        bench.give(frame(PING, 0, 0, bytes(8)))


def test_our_window_is_topped_up_by_what_was_taken() -> None:
    bench = Http2Bench()
    number = 1
    bench.http2.start(0, b"")
    bench.give(frame(HEADERS, 4, number, STATUS))
    bench.http2._taken = (1 << 28) - 20
    bench.give(frame(DATA, 0, number, grpc_message(bytes(1000))[:20]))
    assert [one[3] for one in bench.stream.frames() if one[0] == WINDOW_UPDATE] == [
        struct.pack(">I", LARGEST - 65_535)
    ]
    bench.give(frame(DATA, 0, number, b"x"))
    topped = [one for one in bench.stream.frames() if one[0] == WINDOW_UPDATE][1:]
    assert topped == [(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 28) + 1))]
    bench.give(frame(DATA, 0, number, b"x"))
    assert len([one for one in bench.stream.frames() if one[0] == WINDOW_UPDATE]) == 2


def test_a_window_that_shrinks_below_what_was_sent_lets_nothing_go_until_it_is_made_up_for() -> None:
    bench = Http2Bench((INITIAL_WINDOW, 100))
    bench.http2.start(0, bytes(300))
    assert bench.data() == [100]
    bench.give(settings_frame((INITIAL_WINDOW, 10)))
    bench.give(widen(1, 90))
    assert bench.data() == [100]
    bench.give(widen(1, 1))
    assert bench.data() == [100, 1]
    bench.give(settings_frame((INITIAL_WINDOW, 1000)))
    assert bench.data() == [100, 1, 199]


def test_frames_are_as_large_as_the_server_takes_them() -> None:
    assert Http2Bench((INITIAL_WINDOW, 1 << 20)).data() == []
    for most, sizes in ((16_384, [16_384, 16_384, 7232]), (30_000, [30_000, 10_000])):
        bench = Http2Bench((INITIAL_WINDOW, 1 << 20), (MAX_FRAME, most))
        bench.http2.start(0, bytes(40_000))
        assert bench.data() == sizes


def test_a_message_without_bytes_ends_its_call_whatever_the_windows() -> None:
    bench = Http2Bench((INITIAL_WINDOW, 0))
    bench.http2.start(0, b"")
    assert bench.stream.frames()[-1] == (DATA, 1, 1, b"")


def test_a_call_reset_before_it_left_sends_no_more() -> None:
    bench = Http2Bench((INITIAL_WINDOW, 100))
    bench.http2.start(0, bytes(300))
    assert not bench.http2.idle_but_for_one
    bench.give(frame(RST_STREAM, 0, 1, bytes(4)))
    bench.give(widen(0, 1000), widen(1, 1000))
    assert bench.data() == [100]
    assert bench.http2.idle_but_for_one


def test_a_cancelled_call_sends_no_more_and_one_that_is_not_there_is_none() -> None:
    bench = Http2Bench((INITIAL_WINDOW, 100))
    bench.http2.start(7, bytes(300))
    bench.http2.cancel(8)
    assert bench.stream.frames()[-1][0] == DATA
    bench.http2.cancel(7)
    assert bench.stream.frames()[-1] == (RST_STREAM, 0, 1, struct.pack(">I", 8))
    bench.give(settings_frame((INITIAL_WINDOW, 1000)))
    assert bench.data() == [100]


def test_no_call_has_a_number_beyond_the_last() -> None:
    bench = Http2Bench()
    bench.http2.start(0, b"")
    bench.http2._next_id = LARGEST - 4
    started = 0
    while bench.http2.has_room:
        started += 1
        bench.http2.start(started, b"")
    assert started == 3
    assert max(bench.http2.calls) == LARGEST


def test_a_goodbye_names_the_last_call_that_was_taken() -> None:
    bench = Http2Bench()
    for row in range(4):
        bench.http2.start(row, b"")
    bench.give(frame(GOAWAY, 0, 0, struct.pack(">II", 5 | 1 << 31, 0) + b"too old"))
    assert [(row, reset) for row, reset, _ in bench.ended] == [(3, True)]
    assert not bench.http2.has_room


def test_heads_say_the_same_in_all_three_spellings_with_the_newest_field_first() -> None:
    fields = [(b":method", b"POST"), (b":path", b"/x"), (b"te", b"trailers"), (b"a", b"b"), (b":scheme", b"http")]
    private = [(b"authorization", b"secret")]
    head = request_head(fields, private)
    decoder = HeaderDecoder()
    for block in (head.first, head.later, head.later, head.plain):
        assert list(decoder.decode(block)) == fields + private
    assert list(HeaderDecoder().decode(head.plain)) == fields + private
    assert b"secret" in head.later, "no server is to remember it"


def test_the_window_of_the_connection_is_shared_and_grows_by_each_update() -> None:
    bench = Http2Bench((INITIAL_WINDOW, 1 << 20))
    bench.give(widen(0, 10), widen(0, 10))
    bench.http2.start(0, bytes(60_000))
    bench.http2.start(1, bytes(60_000))
    assert sum(bench.data()) == 65_555
    bench.give(widen(0, 100), widen(0, 100_000))
    assert sum(bench.data()) == 120_000


def test_a_frame_begins_with_its_length_its_kind_its_flags_and_its_stream() -> None:
    assert frame(1, 0x24, 0x01020304, b"abc") == bytes.fromhex("000003 01 24 01020304 616263")
    assert frame(6, 0, 0) == bytes.fromhex("000000 06 00 00000000")


@pytest.mark.parametrize(("size", "remembers"), [(0, False), (4095, False), (4096, True)])
def test_a_server_whose_table_is_too_small_is_sent_every_head_spelled_out(size: int, remembers: bool) -> None:
    """The first setting is the size of its table (RFC 9113, 6.5.2)."""
    bench = Http2Bench((1, size))
    for row in range(2):
        bench.http2.start(row, b"")
    heads = [payload for kind, _, _, payload in bench.stream.frames() if kind == HEADERS]
    assert heads == ([HEAD.first, HEAD.later] if remembers else [HEAD.plain, HEAD.plain])
