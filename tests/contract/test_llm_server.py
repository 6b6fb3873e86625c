"""What a server of tokens must do, as a client sees it; and that the truth of the fake is what arrives."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from llama_server import llama_server
from llm_server import BEHAVIOURS, FAILING, llm_server

FAST = {"ttft_s": 0.02, "tpot_s": 0.001, "stall_s": 0.05}


def ask(url: str, *, chat: bool = True, tokens: int = 8, usage: bool = True) -> tuple[int, list[Any], list[bytes]]:
    """Return the status, the frames, and the pieces in which the body arrived."""
    prompt = {"messages": [{"role": "user", "content": "a b c"}]} if chat else {"prompt": "a b c"}
    limit = {"max_completion_tokens" if chat else "max_tokens": tokens}
    body = {
        "model": "fake",
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": usage},
        **prompt,
        **limit,
    }
    path, pieces = "/v1/chat/completions" if chat else "/v1/completions", list[bytes]()
    with requests.post(url + path, json=body, stream=True, timeout=10) as answer:
        try:
            pieces.extend(filter(None, answer.iter_content(None)))  # keeps what came before an error
        except requests.exceptions.ChunkedEncodingError:
            pieces.append(b"data: cut\n\n")
    if answer.status_code != 200:
        return answer.status_code, [], pieces
    frames = [line.removeprefix("data: ") for line in b"".join(pieces).decode().split("\n\n") if line]
    return 200, [json.loads(frame) if frame[0] == "{" else frame for frame in frames], pieces


def tokens_in(frames: list[Any], *keys: str) -> int:
    deltas = [c.get("delta", c) for f in frames if isinstance(f, dict) for c in f.get("choices", ())]
    return sum(delta.get(key, "").count(" hello") for delta in deltas for key in keys)


@pytest.fixture(scope="module", params=["fake", pytest.param("llama.cpp", marks=pytest.mark.system)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "fake":
        with llm_server(**FAST) as fake:
            yield fake.url
    else:
        pytest.importorskip("xllamacpp")
        with llama_server(tmp_path_factory.mktemp("llama")) as real:
            yield real.url


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_has_its_tokens_one_finish_reason_its_usage_and_its_end(url: str, chat: bool) -> None:
    status, (*frames, end), _ = ask(url, chat=chat)
    assert status == 200
    assert end == "[DONE]"
    assert {frame["object"] for frame in frames} == {"chat.completion.chunk" if chat else "text_completion"}
    choices = [choice for frame in frames for choice in frame["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    texts = [choice["delta"].get("content") if chat else choice["text"] for choice in choices]
    assert len(list(filter(None, texts))) == 8
    (usage,) = [frame["usage"] for frame in frames if frame.get("usage")]
    assert usage["completion_tokens"] == 8
    assert usage["prompt_tokens"] > 0


def test_models_are_listed(url: str) -> None:
    (model,) = requests.get(f"{url}/v1/models", timeout=10).json()["data"]
    assert model["id"]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("usage", [True, False])
def test_the_usage_comes_alone_if_it_is_asked_for(chat: bool, usage: bool) -> None:
    with llm_server(**FAST, cached_tokens=2) as server:
        status, frames, _ = ask(server.url, chat=chat, usage=usage)
        (truth,) = server.truth()
    assert status == 200
    assert tokens_in(frames, "content", "text") == truth["tokens"] == truth["asked"] == 8
    assert frames[8]["choices"][0]["finish_reason"] == "length"
    assert frames[-1] == "[DONE]"
    assert len(frames) == 10 + usage
    if usage:
        assert frames[9]["choices"] == []
        assert frames[9]["usage"]["completion_tokens"] == 8
        assert frames[9]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert truth["good"]
    assert truth["first_s"] - truth["arrived_s"] >= 0.02
    assert truth["last_s"] - truth["arrived_s"] >= 0.027
    assert truth["api"] == ("chat" if chat else "completions")


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_truth_of_each_behaviour_is_what_arrives(behaviour: str) -> None:
    with llm_server(behaviour, **FAST) as server:
        seen = [ask(server.url) for _ in range(4)]
        truth = server.truth()
    assert [one["good"] for one in truth] == [True, behaviour not in FAILING] * 2
    for (status, frames, _), one in zip(seen, truth, strict=True):
        whole = tokens_in(frames, "content", "reasoning_content") == 8
        reasons = [f["choices"][0]["finish_reason"] for f in frames if isinstance(f, dict) and f.get("choices")]
        assert one["good"] == (whole and status == 200 and reasons[-1:] == ["length"])
        assert one["tokens"] == tokens_in(frames, "content", "reasoning_content")
    look_closer(behaviour, *seen[0][1:], *seen[1][:2])


def look_closer(behaviour: str, healthy: list[Any], pieces: list[bytes], status: int, failed: list[Any]) -> None:
    """Check the first request, which is a healthy one, and the second, which may not be."""
    match behaviour:
        case "reasoning-first":
            assert tokens_in(healthy, "reasoning_content") == 4
            assert "reasoning_content" in healthy[0]["choices"][0]["delta"]
        case "empty-first-frame":
            assert healthy[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        case "error-at-0" | "error-at-5":
            assert status == 200
            assert "error" in failed[int(behaviour[-1])]
            assert tokens_in(failed, "content") == int(behaviour[-1])
        case "usage-cut":
            assert sum(len(piece) == 1 for piece in pieces) > 50
        case "half-503":
            assert status == 503
        case "no-done":
            assert "usage" in healthy[-1]
        case "stop-at-3":
            assert failed[3]["choices"][0]["finish_reason"] == "stop"
            assert tokens_in(failed, "content") == 3
        case "one-write":
            assert pieces[0].count(b" hello") == 8
        case "stalled":
            assert failed[-1] == "cut"
            assert tokens_in(failed, "content") == 5
        case _:
            assert tokens_in(healthy[:1], "content") == 1


def test_requests_beyond_the_slots_wait() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with llm_server(slots=1, ttft_s=0.05, tpot_s=0.001) as server, ThreadPoolExecutor(3) as threads:
        list(threads.map(ask, [server.url] * 3))
        first, second, third = sorted(server.truth(), key=lambda one: one["first_s"])
    assert second["first_s"] - first["last_s"] >= 0.05
    assert third["first_s"] - second["last_s"] >= 0.05


def test_a_frame_may_hold_several_tokens() -> None:
    with llm_server(**FAST, tokens_per_frame=3) as server:
        _, frames, _ = ask(server.url)
    assert [frame["choices"][0]["delta"].get("content", "").count(" hello") for frame in frames[:3]] == [3, 3, 2]
