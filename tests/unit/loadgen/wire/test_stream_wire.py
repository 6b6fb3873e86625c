"""Tokens arrive after their request was sent, whatever the wall clock or the server does."""

import json
import time
from typing import cast

import pytest
from memory_wire import Addresses, Memory, Watched, connect

from loadgen.spec.plan import Streamed
from loadgen.status import MALFORMED, OK
from loadgen.wire import addresses as wire_addresses
from loadgen.wire.poller import READ, Poller
from loadgen.wire.stream_wire import Reply, StreamWire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WORD = {"choices": [{"delta": {"content": "word"}, "finish_reason": None}]}
DONE = b"e\r\ndata: [DONE]\n\n\r\n"
END = {"choices": [{"delta": {}, "finish_reason": "length"}]}
HOUR_NS = 3600 * 10**9


def chunk(document: object) -> bytes:
    event = b"data: %b\n\n" % json.dumps(document).encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


class Bench:
    """A wire with one connection, which is ready."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.outcomes: list[int] = []
        self.ended_ns: list[int] = []
        addresses = Addresses()
        self.wire = StreamWire(
            asked=Streamed(api="openai-chat", output_tokens=2, prompt_tokens=1),
            model="m",
            addresses=cast("wire_addresses.Addresses", addresses),
            requests=(b"hello",),
            poller=cast("Poller", Watched()),
            finished=lambda _row, outcome, at_ns: (self.outcomes.append(outcome), self.ended_ns.append(at_ns))[0],
        )
        self.wire.replied = lambda _row, reply: self.replies.append(reply)
        self.wire.open(1)
        connect(self.wire, addresses)
        self.stream: Memory = addresses.streams[0]

    def arrive(self, *pieces: bytes, wall_ns: int) -> None:
        self.stream.arrived_ns = wall_ns
        for piece in pieces:
            self.stream.coming = [piece]
            self.wire.handle(self.stream.fd, READ)


@pytest.mark.parametrize("step_ns", [HOUR_NS, 0, -HOUR_NS])
def test_a_clock_that_is_set_makes_no_token_arrive_before_its_request(step_ns: int) -> None:
    bench = Bench()
    began_ns = time.monotonic_ns()
    bench.wire.send(0)
    sent_ns = time.monotonic_ns()
    arrived_ns = time.time_ns() - step_ns
    bench.arrive(HEAD + chunk(WORD), chunk(WORD) + chunk(END) + b"0\r\n\r\n", wall_ns=arrived_ns)
    assert bench.outcomes == [OK]
    (reply,) = bench.replies
    earliest_ns = sent_ns if step_ns else began_ns  # arrived between the two, or read later
    assert earliest_ns <= reply.first_ns <= reply.last_ns <= time.monotonic_ns()


def test_a_reply_ends_when_it_is_done_and_not_with_its_body() -> None:
    bench, sent_ns = Bench(), time.time_ns()
    bench.wire.send(0)
    bench.arrive(HEAD + chunk(WORD), chunk(WORD) + chunk(END) + DONE, wall_ns=sent_ns + 1)
    bench.arrive(b"3\r\n: \n\r\n", b"0\r\n\r\n", wall_ns=sent_ns + HOUR_NS)
    assert (bench.outcomes, bench.ended_ns) == ([OK], [sent_ns + 1])


def test_tokens_that_come_before_their_request_are_none_of_its_own() -> None:
    bench = Bench()
    bench.arrive(HEAD + chunk(WORD), wall_ns=time.time_ns())
    bench.wire.send(0)
    bench.arrive(chunk(WORD) + chunk(END) + b"0\r\n\r\n", wall_ns=time.time_ns())
    assert (bench.outcomes, bench.replies) == ([MALFORMED], [])
    assert "before their request" in (bench.wire.error_example or "")
