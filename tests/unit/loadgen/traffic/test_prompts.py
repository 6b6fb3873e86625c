"""Requests for streams of tokens: complete HTTP, and no two prompts begin alike."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload, StreamApi, Streamed
from loadgen.spec.target import Target
from loadgen.traffic.prompts import Prompts

TARGET = Target(url="http://127.0.0.1:9/v1", model_name="m", headers=(("Authorization", "Bearer x"),))


def requests_of(count: int, *, api: StreamApi = "openai-chat", seed: int = 0, **changes: Any) -> list[Any]:
    """Return the path and the JSON of each request."""
    asked = {"output_tokens": 8, "prompt_tokens": 5, **changes}
    file = asked.pop("file", None)
    prompts = Prompts(TARGET, Payload(seed=seed, data_file=file, streamed=Streamed(api=api, **asked)))
    found = []
    for row in range(count):
        head, _, body = prompts[row].decode().partition("\r\n\r\n")
        assert f"Content-Length: {len(body)}" in head
        assert "Authorization: Bearer x" in head
        found.append((head.split()[1], json.loads(body)))
    return found


def texts(requests: list[Any]) -> list[str]:
    return [body["messages"][0]["content"] if "messages" in body else body["prompt"] for _, body in requests]


def test_a_request_asks_for_a_stream_with_usage_and_for_all_tokens() -> None:
    ((path, body),) = requests_of(1)
    assert path == "/v1/chat/completions"
    assert body["model"] == "m"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"]) == (8, True)
    assert len(texts([(path, body)])[0].split()) == 5
    ((path, body),) = requests_of(1, api="openai-completions", allow_short=True)
    assert path == "/v1/completions"
    assert "ignore_eos" not in body


def test_no_two_prompts_begin_alike_in_two_runs_of_a_seed_either_and_the_seed_repeats_the_rest() -> None:
    first, again, other = (texts(requests_of(50, seed=seed)) for seed in (1, 1, 2))
    assert len({text.split()[0] for text in first + again + other}) == 150
    rests = [[text.partition(" ")[2] for text in found] for found in (first, again, other)]
    assert rests[0] == rests[1] != rests[2]


def test_any_two_generated_prompts_have_most_of_their_words_for_themselves() -> None:
    words = [
        set(text.split()[1:]) for seed in (0, 1) for text in texts(requests_of(40, seed=seed, prompt_tokens=200))
    ]
    assert max(len(one & other) / len(one) for place, one in enumerate(words) for other in words[:place]) <= 0.5


def test_a_row_that_is_asked_for_twice_gets_another_prompt() -> None:
    prompts = Prompts(TARGET, Payload(streamed=Streamed(api="openai-chat", output_tokens=1, prompt_tokens=3)))
    assert prompts[0] != prompts[0]


def test_prompts_of_a_file_come_in_turn_each_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("one two\n\nthree\n")
    found = texts(requests_of(3, file=file, prompt_tokens=None))
    assert [text.partition(" ")[2] for text in found] == ["one two", "three", "one two"]
    assert len({text.partition(" ")[0] for text in found}) == 3
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"prompt": "a\\nb"}\n')
    assert texts(requests_of(1, file=lines, prompt_tokens=None))[0].endswith(" a\nb")


def test_only_the_ends_of_lines_end_prompts_and_a_byte_order_mark_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    odd = "one\u2028two\x0cthree\x85four\x0bfive\x1csix"
    file.write_bytes(f"\ufeff{odd}\r\nlast\n".encode())
    found = texts(requests_of(2, file=file, prompt_tokens=None))
    assert [text.partition(" ")[2] for text in found] == [odd, "last"]
    lines = tmp_path / "p.jsonl"
    lines.write_bytes(f'\ufeff{{"prompt": "{odd[:7]}"}}\r\n'.encode())
    assert texts(requests_of(1, file=lines, prompt_tokens=None))[0].endswith(odd[:7])


def test_a_file_that_is_none_or_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    for name in ("fifo", "large", ".", "none"):
        with pytest.raises(PayloadError) as caught:
            requests_of(1, file=tmp_path / name, prompt_tokens=None)
        assert str(caught.value).count("\n") == 1


DEEP = '{"prompt": ' + "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"), [("p.txt", " \n"), ("p.jsonl", "{}"), ("p.jsonl", '{"prompt": 3}'), ("p.jsonl", DEEP)]
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PayloadError):
        requests_of(1, file=tmp_path / name, prompt_tokens=None)
