"""Server-sent events are read the same however the network cuts them, and so is the reply that they make up."""

import contextlib
import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.errors import MalformedAnswer
from loadgen.sending.request_table import own_table
from loadgen.spec.plan import Streamed
from loadgen.wire.stream_wire import Event, EventParser, Reply

TEXTS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=30)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def written(event: Event, end: str, comment: str) -> str:
    lines = [f":{comment}", *([f"event: {event.name}"] if event.name else [])]
    return end.join([*lines, *(f"data: {line}" for line in event.data.split("\n")), "", ""])


def events_of(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(
    st.lists(
        st.builds(
            written,
            st.builds(Event, TEXTS.filter(lambda name: name == name.strip()), TEXTS.map(str)),
            ENDS,
            TEXTS,
        ),
        max_size=5,
    ),
    st.data(),
)
def test_events_are_the_same_however_they_are_cut(texts: list[str], data: Any) -> None:
    stream = "".join(texts).encode() + b":end\n"  # the end of the last line may be half of one
    whole = events_of([stream])
    assert len(whole) == len(texts)
    assert events_of([stream[at : at + 1] for at in range(len(stream))]) == whole
    places = sorted({0, len(stream), *data.draw(st.lists(st.integers(0, len(stream)), max_size=8))})
    assert events_of([stream[first:last] for first, last in pairwise(places)]) == whole


@given(st.lists(TEXTS, min_size=1, max_size=4), ENDS)
def test_the_lines_of_one_event_are_joined(lines: list[str], end: str) -> None:
    stream = "".join(f"data: {line}{end}" for line in lines) + end + ":\n"
    assert events_of([stream.encode()]) == [Event("", "\n".join(lines))]


@given(st.integers(1, 12), st.integers(0, 400))
def test_a_reply_is_the_same_wherever_it_is_cut(tokens: int, place: int) -> None:
    choices = [{"delta": {"content": "é"}, "finish_reason": None}] * tokens + [
        {"delta": {}, "finish_reason": "stop"}
    ]
    documents = [{"choices": [one]} for one in choices] + [{"choices": [], "usage": {"completion_tokens": tokens}}]
    stream = (
        b"".join(b"data: %b\r\n\r\n" % json.dumps(one).encode() for one in documents) + b"data: [DONE]\r\n\r\n"
    )
    reply = Reply()
    reply.feed(stream[:place], 1)
    reply.feed(stream[place:], 2)
    assert (reply.chunks, reply.tokens_out, reply.finish) == (tokens, tokens, "stop")


NAMES = st.sampled_from([
    "choices", "delta", "content", "finish_reason", "usage", "completion_tokens", "prompt_tokens_details", "error",
])  # fmt: skip
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "é", "\ud800", "stop"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


CHOICE: Any = st.dictionaries(NAMES, VALUES, max_size=3)
DOCUMENT: Any = CHOICE | st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)})


@given(st.lists(DOCUMENT, max_size=3), st.binary(max_size=40))
@example([{"choices": [{"finish_reason": "\ud800"}]}], b"")
def test_whatever_a_server_sends_it_is_a_reply_or_malformed(documents: list[Any], more: bytes) -> None:
    reply, table = Reply(), own_table(1, streamed=True)
    with contextlib.suppress(MalformedAnswer):
        reply.feed(b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in documents), 1)
        reply.feed(more + b"\n\n", 2)
    table.notes_replies(0, 1, 0)(0, reply)
    outcome, fault = reply.fault(Streamed(api="openai-chat", output_tokens=1, prompt_tokens=1))
    assert bool(outcome) == bool(fault)
