"""The requests to an endpoint that streams tokens: no two prompts are alike."""

from __future__ import annotations

import json
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload, Streamed
from loadgen.spec.target import Target, http_head

PATHS = {"openai-chat": "/chat/completions", "openai-completions": "/completions"}

_WORDS = np.frombuffer(
    b"able area back ball band bank base bird boat body bone book call camp card care case cash cell city club "
    b"coat code cook cost dark data date deal deep desk door east edge face fact farm fast film fire flag food "
    b"foot form fund game gate goal gold half hall hand head heat hill home hour idea item king lake land leaf "
    b"life line list lock mail mark milk mind moon name news note page park path plan play port race rain rate "
    b"ring road room root sale sand seat seed ship shop side snow song star task team test time town tree wind ",
    "S5",
)
"""Words of which each is one token for most models, with the space: of one length, long prompts are made fast."""

_OWN_WORDS = 16
"""A prompt is made of 16 of the words: any two share few, so no semantic cache takes them for the same."""

_INSTEAD = {"max_tokens": "max_completion_tokens", "stream_options": None}
"""What is sent in place of a field that a server refuses; None: nothing."""

_WAYS_OUT = {
    "context.(length|size|window)|(prompt|input).*(too long|length)|max_new_tokens": (
        "Ask for fewer tokens: --prompt-tokens, or shorter --prompts, and --output-tokens."
    ),
    "ignore_eos": "Let the model stop by itself: add --allow-short.",
    "max_(completion_)?tokens": "Ask for another number of tokens: --output-tokens.",
}
"""The advice on a refusal, by what it names; the first counts."""

_MOST_BYTES = 64 << 20


class Prompts:
    """Requests without end, each made when it is asked for.

    A prompt begins with a mark of its own, new in each run of the same seed too: no prefix cache knows any of it.
    Those of a file come in turn; the seed decides the words of others, which differ from prompt to prompt. Raises
    PayloadError if the file cannot be used.
    """

    def __init__(self, target: Target, payload: Payload) -> None:
        assert payload.streamed is not None
        self._target, self._asked, self._run = target, payload.streamed, secrets.token_hex(4)
        self._texts = [] if payload.data_file is None else prompts_in(payload.data_file)
        self._seed, self._made = payload.seed, 0
        self._refused: list[str] = []

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, row: int) -> bytes:
        """Return a request that was not made before, whatever its row."""
        mark, text = f"{self._made:x}-{self._run}", self._text()
        self._made += 1
        fields = body_of(self._target.model_name, f"{mark} {text}", self._asked)
        for refused in self._refused:
            value = fields.pop(refused)
            fields |= {other: value} if (other := _INSTEAD[refused]) else {}
        body = json.dumps(fields).encode()
        path = f"POST {self._target.base_path}{PATHS[self._asked.api]}"
        head = ["Content-Type: application/json", "Accept: text/event-stream", f"Content-Length: {len(body)}"]
        return http_head(self._target, path, head) + body

    def go_without(self, refusal: str) -> list[str]:
        """Send no more what a refusal names, if there is something else; return a note for each such field."""
        new = [one for one in _INSTEAD if one not in self._refused and _names(refusal, one)]
        self._refused += new
        return [f"the server refuses {one}: requests have {_INSTEAD[one] or 'nothing'} instead" for one in new]

    def _text(self) -> str:
        if self._texts:
            return self._texts[self._made % len(self._texts)]
        drawn = np.random.default_rng([self._seed, self._made])
        own = drawn.choice(_WORDS, _OWN_WORDS, replace=False)
        return drawn.choice(own, (self._asked.prompt_tokens or 1) - 1).tobytes().decode().rstrip()


def body_of(model: str, prompt: str, asked: Streamed) -> dict[str, Any]:
    """Return the JSON of a request. `ignore_eos` makes vLLM, SGLang and llama.cpp go on to the last token."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": asked.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if not asked.allow_short:
        body["ignore_eos"] = True
    if asked.api == "openai-chat":
        return {**body, "messages": [{"role": "user", "content": prompt}]}
    return {**body, "prompt": prompt}


def way_out(refusal: str) -> str:
    """Return the advice on what a server's refusal of a stream names; empty if that is nothing known."""
    return next((advice for pattern, advice in _WAYS_OUT.items() if _names(refusal, pattern)), "")


def _names(text: str, pattern: str) -> bool:
    """True if a server's words name a field, or what else matches, other than by repeating a request's JSON."""
    return re.search(rf"\b({pattern})\b(?!\\*['\"]\s*:\s*([\d{{]|true))", text[:5000], re.IGNORECASE) is not None


def prompts_in(path: Path) -> list[str]:
    """Return the prompts of a file: a text per line, or in .jsonl an object per line with its `prompt`.

    Lines end with \\n or \\r\\n: other breaks are part of a prompt. Raises PayloadError.
    """
    try:
        if not path.is_file():  # to open a FIFO can take for ever
            raise OSError("it is not a file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has over {_MOST_BYTES:,} bytes")
        lines = [line for line in data.decode("utf-8-sig").replace("\r\n", "\n").split("\n") if line.strip()]
        found = [json.loads(line)["prompt"] for line in lines] if path.suffix == ".jsonl" else lines
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PayloadError(
            f"{path} cannot be used for prompts: {type(error).__name__}: {error}.\n"
            'Write a prompt per line, or {"prompt": "..."} per line of a .jsonl, in 64 MiB at most.'
        ) from error
    if not found or not all(isinstance(text, str) for text in found):
        raise PayloadError(f"{path} has no prompt, or one that is not text.\nWrite a prompt per line.")
    return found
