"""The reply of a model from its events: which are tokens, which end it well, and which do not."""

import json
import time
from typing import Any

import pytest

from loadgen.errors import MalformedAnswer
from loadgen.spec.plan import Streamed
from loadgen.status import CUT_OFF, NO_STREAM, OK, STREAM_ERROR, TOO_LONG, TOO_SHORT
from loadgen.wire.stream_wire import Event, EventParser, Reply

ASKED = Streamed(api="openai-chat", output_tokens=2, prompt_tokens=1)
ROLE = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
THINKS = {"choices": [{"delta": {"reasoning_content": "Hm"}, "finish_reason": None}]}
WORD = {"choices": [{"delta": {"content": "word"}, "finish_reason": None}]}
REFUSAL = {"choices": [{"delta": {"refusal": "No"}, "finish_reason": None}]}
TEXT = {"choices": [{"text": "word", "finish_reason": None}]}
END = {"choices": [{"delta": {}, "finish_reason": "length"}]}
FAILURE = {"error": {"message": "the engine died", "code": 500}}


MS = 1_000_000


def says(text: str, field: str = "content") -> dict[str, Any]:
    return {"choices": [{"delta": {field: text}, "finish_reason": None}]}


def usage(tokens: int, **details: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": details or None}
    return {"choices": [], "usage": counts}


def hidden(tokens: int, of: int) -> dict[str, Any]:
    counts = {"completion_tokens": of, "completion_tokens_details": {"reasoning_tokens": tokens}}
    return {"choices": [], "usage": counts}


def reply_of(*documents: dict[str, Any], every_ns: int = 10) -> Reply:
    """The first document arrives at 10 ns, the others so long after each other."""
    reply = Reply()
    for place, document in enumerate(documents, start=1):
        reply.feed(b"data: %b\n\n" % json.dumps(document).encode(), every_ns * place)
    return reply


@pytest.mark.parametrize(
    ("documents", "first_ns", "last_ns", "outcome"),
    [
        ([WORD, WORD, END, usage(2)], 10, 20, OK),
        ([TEXT, TEXT, END, usage(2)], 10, 20, OK),
        ([REFUSAL, REFUSAL, END, usage(2)], 10, 20, OK),
        ([ROLE, ROLE, WORD, WORD, END, usage(2)], 30, 40, OK),  # a frame without text brings no token
        ([THINKS, WORD, END, usage(2)], 10, 20, OK),  # reasoning is made of tokens
        ([WORD, END, usage(2)], 10, 10, OK),  # two tokens in one chunk
        ([WORD, WORD, END], 10, 20, OK),  # without usage chunks are counted
        ([WORD, END], 10, 10, TOO_SHORT),
        ([WORD, WORD, END, usage(1)], 10, 20, TOO_SHORT),
        ([WORD, WORD, END, usage(3)], 10, 20, TOO_LONG),
        ([WORD, WORD, WORD, END], 10, 30, OK),  # chunks may be parts of tokens
        ([WORD, WORD, END, usage(0)], 10, 20, OK),  # usage of zeros beside chunks is none
        ([says("a", "reasoning_details"), WORD, END, usage(2)], 10, 20, OK),
        ([WORD, WORD, usage(2)], 10, 20, CUT_OFF),
        ([], 0, 0, CUT_OFF),
        ([FAILURE], 0, 0, STREAM_ERROR),
        ([WORD, WORD, FAILURE, END, usage(2)], 10, 20, STREAM_ERROR),
        ([END, usage(2)], 0, 0, TOO_SHORT),
    ],
)
def test_what_a_reply_is(documents: list[dict[str, Any]], first_ns: int, last_ns: int, outcome: int) -> None:
    reply = reply_of(*documents)
    assert (reply.first_ns, reply.last_ns) == (first_ns, last_ns)
    found, fault = reply.fault(ASKED)
    assert found == outcome
    assert bool(fault) == (outcome != OK)


@pytest.mark.parametrize(
    ("documents", "streamed"),
    [
        ([WORD] * 4, (1, 3)),
        ([WORD] * 4 + [usage(4)], (1, 3)),
        ([WORD] * 2 + [usage(32)], (16, 16)),
        (
            [says("a" * 4), says("a" * 64), says("a" * 64), usage(33)],
            (1, 32),
        ),  # the texts tell the first one's share
        ([says("a" * 99), WORD, WORD, usage(4)], (2, 2)),  # and each event has a token
        ([WORD] * 3 + [usage(2)], (1, 1)),  # chunks may be parts of tokens
        ([WORD] * 16 + [hidden(112, of=128)], (1, 15)),
        ([says("a", "reasoning_content")] + [WORD] * 3 + [hidden(1, of=4)], (1, 3)),
        ([WORD] * 4 + [hidden(2, of=4)], (1, 3)),  # reasoning within the content
        ([WORD, usage(32)], (32, 0)),
    ],
)
def test_the_tokens_of_the_first_event_and_those_after_it(
    documents: list[dict[str, Any]], streamed: tuple[int, int]
) -> None:
    assert reply_of(*documents, every_ns=5 * MS).streamed_tokens == streamed


def test_tokens_of_one_write_come_at_once_though_in_segments() -> None:
    assert reply_of(*[WORD] * 9, usage(9), every_ns=MS // 10).streamed_tokens == (9, 0)


def test_a_reply_of_another_type_is_cut_off_or_no_stream() -> None:
    alone = Reply()
    alone.feed(b'{"choices": [{"message": {"content": "word"}, "finish_reason": "stop"}]}', 1)
    assert alone.fault(ASKED, "application/json")[0] == NO_STREAM
    assert reply_of(WORD).fault(ASKED, "application/json")[0] == CUT_OFF


def test_a_short_reply_is_good_if_it_may_be_short_but_not_an_empty_one() -> None:
    asked = Streamed(api="openai-chat", output_tokens=9, prompt_tokens=1, allow_short=True)
    assert reply_of(WORD, END, usage(1)).fault(asked)[0] == OK
    assert reply_of(ROLE, END, usage(0)).fault(asked)[0] == TOO_SHORT
    assert reply_of(WORD, END, usage(10)).fault(asked)[0] == TOO_LONG


def ended(reason: object) -> dict[str, Any]:
    return {"choices": [{"delta": {}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        *((known, known) for known in ("error", "abort", "cancelled", "timeout", "content_filter")),
        *((unknown, "other") for unknown in ("ERROR", "Stop", "stop ", "\x1b[2J", "\ud800", 7, ["stop"])),
    ],
)
def test_a_request_that_the_server_gave_up_is_not_good_however_short_it_may_be(reason: object, kind: str) -> None:
    asked = Streamed(api="openai-chat", output_tokens=9, prompt_tokens=1, allow_short=True)
    reply = reply_of(WORD, END, ended(reason), ended("stop"), usage(1))  # the first bad reason stays
    assert reply.fault(asked)[0] == STREAM_ERROR
    assert reply.finish_kind == kind


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "function_call", "eos_token", "end_turn"])
def test_the_reasons_of_requests_that_were_carried_out(reason: str) -> None:
    reply = reply_of(WORD, WORD, ended(reason), usage(2))
    assert (reply.fault(ASKED)[0], reply.finish_kind) == (OK, reason)


@pytest.mark.parametrize(
    "failure",
    [
        {"error": {}},
        {"error": ""},
        {"error": False},
        {"object": "error", "message": "out of memory"},
        {"choices": [{"error": {"code": 502}, "delta": {"content": "word"}, "finish_reason": "stop"}]},
        {"choices": [{"error": {}}]},
    ],
)
def test_an_error_is_one_wherever_it_is_and_though_it_says_nothing(failure: dict[str, Any]) -> None:
    assert reply_of(WORD, WORD, failure, END, usage(2)).fault(ASKED)[0] == STREAM_ERROR


def test_no_error_is_none() -> None:
    well = {"error": None, "choices": [{"delta": {"content": "word"}, "error": None}]}
    assert reply_of(well, well, END, usage(2)).fault(ASKED)[0] == OK


@pytest.mark.parametrize(
    ("delta", "tokens"),
    [
        ({"content": ""}, 0),
        ({"content": []}, 0),
        ({"content": [{"type": "text", "text": ""}]}, 0),
        ({"content": {}}, 0),
        ({"content": True}, 0),
        ({"content": 7}, 0),
        ({"tool_calls": [{}]}, 0),
        ({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"arguments": ""}}]}, 0),
        ({"content": " "}, 1),
        ({"content": [{"type": "text", "text": "word"}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, 1),
        ({"function_call": {"arguments": "{"}}, 1),
    ],
)
def test_what_holds_no_text_is_no_token(delta: dict[str, Any], tokens: int) -> None:
    assert reply_of({"choices": [{"delta": delta, "finish_reason": None}]}).chunks == tokens


def test_an_event_named_error_is_one_whatever_it_holds() -> None:
    reply = Reply()
    reply.feed(b'event: error\ndata: {"message": "out of memory"}\n\n', 1)
    assert reply.fault(ASKED)[0] == STREAM_ERROR


def test_gaps_and_counts() -> None:
    reply = reply_of(WORD, ROLE, ROLE, WORD, WORD, END, usage(5, cached_tokens=4))
    assert (reply.longest_gap_ns, reply.chunks) == (30, 3)
    assert (reply.tokens_in, reply.tokens_out, reply.cached_tokens) == (7, 5, 4)


def test_done_comments_and_other_fields_are_no_part_of_it() -> None:
    reply = Reply()
    reply.feed(b": keep-alive\n\ndata:\n\nid: 7\nretry: 10\n\ndata: [DONE]\n\ndata: {\n\n", 1)
    assert (reply.chunks, reply.finish, reply.error, reply.done) == (0, "", "", True)


@pytest.mark.parametrize("data", [b"<html>", b"[1]", b'{"choices": [7]}', b'{"choices": 1}', b'{"usage": 3}'])
def test_an_event_that_is_no_part_of_a_completion_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        Reply().feed(b"data: %b\n\n" % data, 1)


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    parser = EventParser()

    def feed(line: bytes) -> None:
        for _ in range(1000):
            list(parser.feed(line))

    with pytest.raises(MalformedAnswer):
        feed(b"data: " + bytes(1000) + b"\n")
    with pytest.raises(MalformedAnswer):
        feed(bytes(1000))


def test_a_long_line_in_pieces_of_a_byte_takes_as_long_as_its_bytes() -> None:
    parser, began_s = EventParser(), time.process_time()
    for _ in range(2):
        line = b"data: " + b"x" * 250_000
        assert [event for byte in line for event in parser.feed(bytes([byte]))] == []
        assert [len(event.data) for event in parser.feed(b"\n\n")] == [250_000]
    assert time.process_time() - began_s < 15  # half a second; minutes if each piece were joined to those before


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    data = b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n"
    parser = EventParser()
    assert [event for at in range(len(data)) for event in parser.feed(data[at : at + 1])] == [Event("", "1")]


def test_data_alone_is_enough_for_an_event() -> None:
    assert list(EventParser().feed(b"data\n\nevent: x\n\ndata:a\n\n")) == [Event("", ""), Event("", "a")]
