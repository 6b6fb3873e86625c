"""Replies that are streams of tokens: server-sent events in pieces, and when they arrived."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from loadgen.errors import MalformedAnswer
from loadgen.spec.plan import Streamed
from loadgen.status import CUT_OFF, NO_STREAM, OK, STREAM_ERROR, TOO_LONG, TOO_SHORT
from loadgen.wire.http1 import Connection, HttpWire
from loadgen.wire.http1_response import Answer, AnswerReader, body_text
from loadgen.wire.in_front import note_model
from loadgen.wire.sockets import ReadBuffer

_MAX_EVENT = 1 << 18
_MAX_BEGINNING = 1 << 14
_MOST_TOKENS = (1 << 31) - 1
_ONE_ARRIVAL_NS = 1_000_000  # what is written at once may arrive in several segments
_DONE = "[DONE]"
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_TEXTS = (*_REASONING, "content", "refusal", "text", "tool_calls", "function_call")
"""The fields of a delta whose tokens the model has made. Servers name reasoning in three ways, or in two."""

_INSIDE = ("text", "thinking", "summary", "function", "name", "arguments")
"""The fields of a part of a content, or of a call, whose tokens the model has made."""

_GOOD = (
    "stop", "length", "tool_calls", "function_call",  # of OpenAI's API, which vLLM, SGLang and llama.cpp use
    "eos", "eos_token", "stop_sequence",  # of TGI and its heirs
    "end_turn", "max_tokens", "tool_use", "model_length",  # of gateways to other APIs
)  # fmt: skip
"""The finish reasons of a request that was carried out; by any other, a server says that it gave it up."""
_BAD = ("error", "abort", "cancelled", "timeout", "content_filter")


class Event(NamedTuple):
    """One event: its name, empty for most, and its data, the lines joined."""

    name: str
    data: str


class EventParser:
    """Parses a stream of server-sent events (WHATWG HTML, 9.2.6) whose bytes may be split anywhere."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._ended_by = b""
        self._encoding = "utf-8-sig"  # a byte order mark may precede the first line
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete. Raises MalformedAnswer for one of over 256 KiB."""
        for piece in data.splitlines(keepends=True):
            before, self._ended_by = self._ended_by, piece[-1:]
            if piece == b"\n" and before == b"\r":  # both are one end of a line
                continue
            self._line += piece  # each byte is looked at once, however small the pieces are
            self._size += len(piece)
            if self._ended_by not in b"\r\n":
                continue
            line = self._line.rstrip(b"\r\n").decode(self._encoding, errors="replace")
            self._line, self._encoding = bytearray(), "utf-8"
            if line:
                self._take(line)
                continue
            if self._data:
                yield Event(self._name, "\n".join(self._data))
            self._name, self._data, self._size = "", [], 0
        if self._size > _MAX_EVENT:
            raise MalformedAnswer(f"an event of over {_MAX_EVENT:,} bytes")

    def _take(self, line: str) -> None:
        field, _, value = line.partition(":")  # a line that begins with a colon is a comment
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value


class Reply:
    """What a stream has brought so far. Times in ns of any one clock; 0: no token has come.

    `done`: it has ended, whatever comes after. `finish` is the first finish reason that is not good, else the
    last; `error` and `fault` are the server's words in full, for `stranger_text`.
    """

    def __init__(self) -> None:
        self.first_ns = self.last_ns = self.longest_gap_ns = 0
        self.chunks = 0
        self.tokens_in = self.tokens_out = -1
        self.cached_tokens = 0
        self.done = False
        self.finish = self.model = ""
        self.error = ""
        self._events = EventParser()
        self._beginning = bytearray()
        self._reasoning_tokens = 0
        self._reasons = False  # the text of its reasoning is streamed
        self._first_chunks = self._first_text = self._text = 0  # of the first arrival; of all in letters

    def feed(self, data: bytes, at_ns: int) -> None:
        """Take bytes that arrived at a time. Raises MalformedAnswer."""
        self._beginning += data[: _MAX_BEGINNING - len(self._beginning)]
        for event in self._events.feed(data):
            self.done |= event.data.strip() == _DONE
            if event.data.strip() and not self.done:  # without data it keeps the connection alive
                try:
                    self._take(event, at_ns)
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    raise MalformedAnswer(f"an event that is no part of a completion: {event.data}") from error

    def _take(self, event: Event, at_ns: int) -> None:
        document: dict[str, Any] = json.loads(event.data)
        choices = document.get("choices") or ()
        self.model = str(document.get("model") or self.model)
        errors = [part["error"] for part in (document, *choices) if part.get("error") is not None]
        if "error" in (event.name, document.get("object")):
            errors.append(document)
        if errors:
            self.error = self.error or json.dumps(errors[0])
            return
        if (usage := document.get("usage")) is not None:
            self._count(usage)
        for choice in choices:
            delta = choice.get("delta") or choice
            if letters := {name: count for name in _TEXTS if (count := _letters(delta.get(name)))}:
                self._token(at_ns, max(letters.values()))
                self._reasons |= not letters.keys().isdisjoint(_REASONING)
            if self.finish in ("", *_GOOD):
                self.finish = str(choice.get("finish_reason") or self.finish)

    def _token(self, at_ns: int, letters: int) -> None:
        if self.chunks:
            self.longest_gap_ns = max(self.longest_gap_ns, at_ns - self.last_ns)
        else:
            self.first_ns = at_ns
        self.last_ns = at_ns
        self.chunks += 1
        self._text += letters
        if at_ns - self.first_ns < _ONE_ARRIVAL_NS:
            self._first_chunks += 1
            self._first_text += letters

    def _count(self, usage: Mapping[str, Any]) -> None:
        self.tokens_in = _whole(usage.get("prompt_tokens"))
        self.tokens_out = _whole(usage.get("completion_tokens"))
        self.cached_tokens = max(0, _whole((usage.get("prompt_tokens_details") or {}).get("cached_tokens")))
        details = usage.get("completion_tokens_details") or {}
        self._reasoning_tokens = max(0, _whole(details.get("reasoning_tokens")))

    @property
    def streamed_tokens(self) -> tuple[int, int]:
        """The tokens of the first arrival, and of those after it.

        Where an event brings several, the length of the texts shares the tokens out. Reasoning that was counted
        but not streamed is none of them: at most what leaves each event a token.
        """
        made = self.chunks if self.tokens_out < 0 else self.tokens_out
        if not self._reasons:
            made -= min(self._reasoning_tokens, max(0, made - self.chunks))
        by_text = made - made * self._first_text // max(1, self._text)
        later = min(max(by_text, self.chunks - self._first_chunks), max(0, made - self._first_chunks))
        return made - later, later

    @property
    def finish_kind(self) -> str:
        """The finish reason if it is a known one, else "other", of 16 bytes at most; empty: none."""
        return self.finish if self.finish in ("", *_GOOD, *_BAD) else "other"

    def fault(self, asked: Streamed, content_type: str = "text/event-stream") -> tuple[int, str]:
        """Return the outcome of a stream that has ended, and what is wrong with it in words."""
        made = self.chunks if self.tokens_out < 0 else self.tokens_out
        if self.error:
            return STREAM_ERROR, f"an error inside a response of status 200: {self.error}"
        if not self.finish:
            outcome = NO_STREAM if content_type == "application/json" and not self.chunks else CUT_OFF
            what = f"the response, of type {content_type}, ended without a finish reason; it begins"
            return outcome, f"{what}: {body_text(self._beginning)}"
        if self.finish not in _GOOD:
            return STREAM_ERROR, f"the finish reason is {self.finish}"
        short = not self.chunks or (made < asked.output_tokens and not asked.allow_short)
        if short or self.tokens_out > asked.output_tokens:  # without usage, chunks may be parts of tokens
            what = "tokens" if self.tokens_out >= 0 else "chunks, without usage,"
            fault = f"{made} {what} of {asked.output_tokens}, finish reason {self.finish}"
            return (TOO_SHORT if short else TOO_LONG), fault
        return OK, ""


def _letters(value: object) -> int:
    """Return the length of a text, or of those of parts or calls; a call begins with a name alone."""
    if isinstance(value, list):
        return sum(map(_letters, value))
    if isinstance(value, dict):
        return sum(_letters(value.get(name)) for name in _INSIDE)
    return len(value) if isinstance(value, str) else 0


def _whole(value: object) -> int:
    """Return a number of tokens, -1 if it is none, or 0, which is no count of what has come."""
    return min(value, _MOST_TOKENS) if isinstance(value, int) and value > 0 else -1


Replied = Callable[[int, Reply], None]
"""Takes a row and its reply, with times of the monotonic clock, before the row is finished."""


class ReplyReader(AnswerReader):
    """Reads the replies of one connection, each at the times when the kernel received its bytes."""

    def __init__(self, buffer: ReadBuffer) -> None:
        super().__init__(buffer)
        self.reply = Reply()
        self.sent_ns = 0  # when the request was begun to be sent
        self.ended_ns = 0  # when its last event arrived, by the wall clock
        self._at_ns = 0

    def on_body(self, data: bytes) -> None:
        """Take a part of the body; of a status other than 200 it is the error's text."""
        if self._parser.get_status_code() != 200:
            super().on_body(data)
            return
        self._size += len(data)
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        arrived_ns = self.arrived_ns or wall_ns
        age_ns = wall_ns - arrived_ns
        if not self.reply.done:
            self.ended_ns = arrived_ns
        if now_ns - age_ns < self.sent_ns:  # somebody has set the clock
            age_ns = 0
        # Never before the part before it, nor later than now.
        self._at_ns = min(now_ns, max(self._at_ns, now_ns - age_ns))
        self.reply.feed(data, self._at_ns)


@dataclass(kw_only=True, eq=False)
class StreamWire(HttpWire):
    """See `HttpWire`. A response of status 200 has failed if its stream is not what was asked for."""

    look_at_each: ClassVar[int] = 1

    asked: Streamed
    model: str
    replied: Replied | None = field(default=None, init=False)

    @property
    def answers_may_wait(self) -> bool:
        """Never: the kernel would note one time for all tokens that wait in it."""
        return False

    def reader(self, buffer: ReadBuffer) -> AnswerReader:
        """See `HttpWire`."""
        return ReplyReader(buffer)

    def send(self, row: int) -> bool:
        """See `Wire`."""
        began_ns = time.monotonic_ns()
        whole = super().send(row)
        if (connection := self.in_flight.get(row)) is not None:
            assert isinstance(connection.reader, ReplyReader)
            connection.reader.sent_ns, connection.reader.ended_ns = began_ns, 0
        return whole

    def fault_of(self, answer: Answer, connection: Connection) -> tuple[int, str]:
        """See `HttpWire`."""
        reader = connection.reader
        assert isinstance(reader, ReplyReader)
        reply, reader.reply = reader.reply, Reply()
        reader.arrived_ns = reader.ended_ns or reader.arrived_ns
        if reply.chunks and reply.first_ns < reader.sent_ns:
            raise MalformedAnswer("tokens before their request was sent")
        if self.replied is not None and connection.row is not None:
            self.replied(connection.row, reply)
        outcome, fault = reply.fault(self.asked, answer.content_type)
        if outcome == OK:
            note_model(self.in_front, self.model, reply.model)
        return outcome, fault
