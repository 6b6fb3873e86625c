"""What an endpoint refuses of a request for a stream: what is sent instead, or what the user can do."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from http_stub import answering

from loadgen.errors import TargetRefused
from loadgen.sending.prepared import PreparedTarget
from loadgen.spec.plan import Payload, Streamed
from loadgen.spec.target import Target
from loadgen.wire.poller import Poller

Body = dict[str, Any]
REPLY = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}\n\n' * 2


def openai(field: str, _: Body) -> tuple[int, object]:
    return 400, {"error": {"message": f"Unsupported parameter: '{field}' is not supported with this model."}}


def pydantic(field: str, body: Body) -> tuple[int, object]:
    """Its refusals repeat the request."""
    return 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", field], "input": body}]}


def prepared(refuse: Callable[[Body], tuple[int, object] | None]) -> tuple[tuple[str, ...], list[Body]]:
    """Try an endpoint; return the notes, and the bodies that it got."""
    bodies: list[Body] = []

    def answer(_method: str, _path: str, data: bytes) -> tuple[int, bytes]:
        bodies.append(json.loads(data))
        refused = refuse(bodies[-1])
        return (200, REPLY) if refused is None else (refused[0], json.dumps(refused[1]).encode())

    with answering(answer) as port:
        target, poller = Target(url=f"http://127.0.0.1:{port}/v1", model_name="m"), Poller()
        try:
            found = PreparedTarget(
                target,
                Payload(streamed=Streamed(api="openai-chat", output_tokens=2, prompt_tokens=3)),
                poller,
                5.0,
            )
            found.close()
        finally:
            poller.close()
    return found.notes, bodies


@pytest.mark.parametrize("words", [openai, pydantic])
def test_a_field_that_need_not_be_sent_is_replaced_or_left_out_and_that_is_noted(words: Any) -> None:
    refused = ("max_tokens", "stream_options")
    notes, bodies = prepared(lambda body: next((words(one, body) for one in refused if one in body), None))
    assert [len(body.keys() & set(refused)) for body in bodies] == [2, 1, 0]
    assert (bodies[-1]["max_completion_tokens"], bodies[-1]["ignore_eos"]) == (2, True)
    assert [next(one for one in refused if one in note) for note in notes] == list(refused)


@pytest.mark.parametrize("words", [openai, pydantic])
def test_a_field_that_only_the_user_can_give_up_is_named_with_its_option(words: Any) -> None:
    with pytest.raises(TargetRefused, match=r"\n.*--allow-short"):
        prepared(lambda body: words("ignore_eos", body))


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 8128 tokens.",
        "'max_tokens' or 'max_completion_tokens' is too large: 128. This model's maximum context length is 100.",
        "the request exceeds the available context size. try increasing the context size",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8000 `inputs` tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ],
)
def test_a_prompt_over_the_context_asks_for_fewer_tokens(text: str) -> None:
    with pytest.raises(TargetRefused, match=r"\n.*--prompt-tokens"):
        prepared(lambda _: (400, {"error": {"message": text}}))


def test_a_refusal_that_only_repeats_the_request_names_none_of_its_fields() -> None:
    tried: list[Body] = []
    with pytest.raises(TargetRefused) as caught:
        prepared(lambda body: tried.append(body) or (422, {"detail": "no such model", "input": body}))
    assert len(tried) == 1
    assert "--allow-short" not in str(caught.value)
