"""A server that echoes a request's key gets no part of it shown, wherever its words are cut to be shown."""

import base64
import html
import json
from collections.abc import Callable
from itertools import cycle
from urllib.parse import quote

import pytest
from http_stub import answering

from loadgen.errors import TargetRefused
from loadgen.measurement.server_stats import read_statistics
from loadgen.sending.prepared import PreparedTarget
from loadgen.spec.plan import Payload, Streamed
from loadgen.spec.target import Target, stranger_text
from loadgen.wire.poller import Poller

KEY = "Zq7/pW+4Xk9&Vd2=Jh6Tm8Rb3Yc5Ng1LsQwErTyUiOpAsDfGhJkLzXcVbNmQwE01"
HEADERS = (("Authorization", f"Bearer {KEY}"),)
PIECES = {KEY[at : at + 5] for at in range(len(KEY) - 4)}
STREAMS = Payload(streamed=Streamed(api="openai-chat", output_tokens=2, prompt_tokens=3))

Page = Callable[[str], bytes]
PAGES: dict[str, Page] = {
    "a page": lambda words: words.encode(),
    "an error": lambda words: json.dumps({"error": words}).encode(),
    "an error of OpenAI's": lambda words: json.dumps({"error": {"message": words}}).encode(),
}
EVENTS: dict[str, Page] = {
    "no stream": lambda words: words.encode(),
    "an error": lambda words: b"data: %b\n\n" % json.dumps({"error": words}).encode(),
    "no completion": lambda words: f"data: {words}\n\n".encode(),
    "a finish reason": lambda words: (
        b"data: %b\n\n" % json.dumps({"choices": [{"finish_reason": words}]}).encode()
    ),
}
CUTS = [*range(0, 80, 8), *range(380, 520, 4)]
"""Lengths of the words before the key: the key is cut at each of its places, whatever stands before them."""


def shows_the_key(text: str) -> bool:
    return any(piece in text for piece in PIECES)


def said_of_streams(status: int, page: Page, words: list[str]) -> list[str]:
    """Return what is told of a stream for each of the words."""
    said: list[str] = []
    with answering(lambda *_: (status, page(words[len(said)]))) as port:
        target = Target(url=f"http://127.0.0.1:{port}/v1", model_name="m", headers=HEADERS)
        for _ in words:
            poller = Poller()
            try:
                prepared = PreparedTarget(target, STREAMS, poller, 5.0)
                said.append(str(prepared.error_example))
                prepared.close()
            except TargetRefused as error:
                said.append(str(error))
            finally:
                poller.close()
    return said


WORDS = ["x" * before + f" Authorization: Bearer {KEY} is wrong" for before in CUTS]


@pytest.mark.parametrize("status", [401, 500])
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_in_the_error_of_a_refused_stream(status: int, page: Page) -> None:
    said = said_of_streams(status, page, WORDS)
    assert all(f"http {status}" in one for one in said)
    assert [one for one in said if shows_the_key(one)] == []
    assert "***" in said[0]


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_in_a_stream(events: Page) -> None:
    said = said_of_streams(200, events, WORDS)
    assert [one for one in said if shows_the_key(one)] == []
    assert "***" in said[0]


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("status", [200, 401])
def test_in_the_answer_to_a_question(status: int, page: Page) -> None:
    words = cycle(WORDS)
    with answering(lambda *_: (status, page(next(words)))) as port:
        target = Target(url=f"http://127.0.0.1:{port}", model_name="m", headers=HEADERS)
        for _ in WORDS[::2]:
            with pytest.raises(TargetRefused) as caught:
                PreparedTarget(target, Payload(), Poller(), 5.0)
            assert not shows_the_key(str(caught.value))
            assert not shows_the_key(str(read_statistics(target)))


METADATA = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}], "outputs": []}
ODD: list[Callable[[str], object]] = [
    lambda words: words,
    lambda words: {**METADATA, "name": words * 20},
    lambda words: {**METADATA, "inputs": [{"name": "x", "datatype": words * 20}]},
    lambda words: {**METADATA, "inputs": [{"name": "x", "datatype": "FP32", "shape": words}]},
    lambda words: {**METADATA, "inputs": [{"name": "x", "datatype": "FP32", "shape": [words]}]},
]


@pytest.mark.parametrize("odd", ODD)
def test_in_metadata_that_are_odd(odd: Callable[[str], object]) -> None:
    for before in range(0, 60, 5):
        document = json.dumps(odd("x" * before + KEY)).encode()
        with answering(lambda *_, document=document: (200, document)) as port:
            target = Target(url=f"http://127.0.0.1:{port}", model_name="m", headers=HEADERS)
            with pytest.raises(TargetRefused) as caught:
                PreparedTarget(target, Payload(), Poller(), 5.0)
        assert not shows_the_key(str(caught.value))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "spelling",
    [
        encoded(KEY),
        encoded(KEY).rstrip("="),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
        quote(encoded(KEY), safe=""),
        encoded(f"Bearer {KEY}"),
        *(encoded(f"{'u' * length}:{KEY}") for length in range(1, 4)),
        html.escape(f'"{KEY}"'),
        ascii(KEY),
    ],
)
def test_in_another_spelling(spelling: str) -> None:
    for before in range(0, 100, 3):
        shown = stranger_text("x" * before + " " + spelling, HEADERS, most=100)
        assert not any(spelling[at : at + 5] in shown for at in range(5, len(spelling) - 12)), shown
