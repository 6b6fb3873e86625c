"""An OpenAI-compatible server of a few lines that streams tokens, misbehaves as asked, and knows the truth.

`python -m tests.support.llm_server --behaviour plain` prints its address and serves until its stdin closes.
GET /truth has an entry per request, by the server's own clock: what was asked, when the first and the last token
were written, and whether the request was good: its finish reason, all tokens asked for, and no error. Where a
behaviour makes requests fail, it is every second one, so that failures and successes can be counted.
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

MODEL = "fake"
BEHAVIOURS = {
    "plain": "each token in a frame of its own",
    "reasoning-first": "the first half of the tokens are reasoning, and tokens as all others",
    "empty-first-frame": "a frame with a role and no token at once, long before the first token",
    "error-at-0": "every second: status 200, then an error frame instead of the first token",
    "error-at-5": "every second: status 200, five tokens, then an error frame",
    "usage-cut": "the frame of the usage arrives byte by byte",
    "half-503": "every second: status 503",
    "no-done": "finish reason and usage, but no [DONE]: the request is good",
    "stop-at-3": "every second: three tokens and finish reason `stop`, however many were asked for",
    "one-write": "all tokens in one write, when the last is made: the first token comes with the last",
    "stalled": "every second: five tokens, nothing more for `stall_s`, then a closed connection",
    "slow-client": "as plain; whoever measures stops the client's process again and again, so that it reads late",
}
TEXTS = ("reasoning_content", "content")
FAILING = ("error-at-0", "error-at-5", "half-503", "stop-at-3", "stalled")


@dataclass(frozen=True)
class Laws:
    """How a healthy request goes: times in seconds, and what the usage says."""

    behaviour: str = "plain"
    ttft_s: float = 0.05
    tpot_s: float = 0.01
    slots: int = 64  # requests served at once; the others wait. Capacity: slots / (ttft + (n - 1) tpot) per second
    tokens_per_frame: int = 1
    cached_tokens: int = 0
    hidden_tokens: int = 0  # the first tokens: reasoning that the usage counts and nobody gets
    after_done_s: float = 0.0  # from [DONE] to the end of the body
    streams: int = 1  # 0: answers with one JSON
    stall_s: float = 30.0
    prompt_tokens: int = 0  # what the usage says of each prompt; 0: its words
    header: str = ""  # a line of the head of each reply
    other_model: str = ""  # every second reply names this model


@dataclass
class Served:
    """A request as it was: times by the monotonic clock in seconds, None for what never happened."""

    arrived_s: float
    api: str
    asked: int
    request: dict[str, Any]  # without the prompt
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    good: bool = False
    words: str = ""  # the beginning of the prompt
    model: str = MODEL


class LlmServer:
    def __init__(self, laws: Laws) -> None:
        self.laws, self.served = laws, list[Served]()
        self.slots = asyncio.Semaphore(laws.slots)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
                method, path, _ = head.split(" ", 2)
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "POST" and path.endswith(("/chat/completions", "/completions")):
                    await self.completion(path, json.loads(body), writer)
                else:
                    self.document(path, writer)
                await writer.drain()
        writer.close()

    def document(self, path: str, writer: asyncio.StreamWriter) -> None:
        known: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]},
            "/truth": [asdict(one) for one in self.served],
            "/health": {},
        }
        body = json.dumps(known.get(path, {"error": {"message": f"no {path}", "code": 404}})).encode()
        self.answer(writer, b"200 OK" if path in known else b"404 Not Found", body)

    def answer(self, writer: asyncio.StreamWriter, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)

    async def completion(self, path: str, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        chat = path.endswith("/chat/completions")
        prompt = request.pop("messages" if chat else "prompt")
        text = str(prompt[0]["content"] if chat else prompt)
        asked = request.get("max_completion_tokens") or request.get("max_tokens") or 16
        loop = asyncio.get_running_loop()
        one = Served(loop.time(), "chat" if chat else "completions", asked, request, words=text[:500])
        self.served.append(one)
        if self.laws.other_model and len(self.served) % 2 == 0:
            one.model = self.laws.other_model
        words = self.laws.prompt_tokens or len(text.split())
        failing = self.laws.behaviour in FAILING and len(self.served) % 2 == 0
        if failing and self.laws.behaviour == "half-503":
            self.answer(writer, b"503 Service Unavailable", b'{"error":{"message":"overloaded","code":503}}')
            return
        if not self.laws.streams:
            self.answer(
                writer, b"200 OK", b'{"choices":[{"message":{"content":"hello"},"finish_reason":"length"}]}'
            )
            return
        header = self.laws.header.encode() + b"\r\n" * bool(self.laws.header)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + header)
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        async with self.slots:
            async for piece in self.pieces(one, words, failing):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        if failing and self.laws.behaviour == "stalled":
            raise ConnectionResetError
        await asyncio.sleep(self.laws.after_done_s)
        writer.write(b"0\r\n\r\n")

    async def pieces(self, one: Served, words: int, failing: bool) -> AsyncIterator[bytes]:
        """Yield what is written at once, at its time: one frame, or more, or a byte."""
        laws, behaviour, start_s = self.laws, self.laws.behaviour, asyncio.get_running_loop().time()
        last, step = one.asked - 1, laws.tokens_per_frame
        if behaviour == "empty-first-frame":
            yield frame(one, {"role": "assistant", "content": ""})
        cut = {"error-at-0": 0, "error-at-5": 5, "stop-at-3": 3, "stalled": 5}[behaviour] if failing else one.asked
        written = b""
        for first in range(laws.hidden_tokens, min(cut, one.asked), step):
            upto = min(first + step, one.asked)  # the token that fills the frame is there
            await until(start_s + laws.ttft_s + laws.tpot_s * (last if behaviour == "one-write" else upto - 1))
            kind = "reasoning_content" if behaviour == "reasoning-first" and upto <= one.asked // 2 else "content"
            written += frame(one, {kind: " hello" * (upto - first)})
            if behaviour == "one-write" and upto < one.asked:
                continue
            now_s = asyncio.get_running_loop().time()
            one.first_s, one.last_s, one.tokens = one.first_s or now_s, now_s, upto
            yield written
            written = b""
        if failing and behaviour == "stalled":
            await asyncio.sleep(laws.stall_s)
            return
        if failing and behaviour.startswith("error"):
            await until(start_s + laws.ttft_s + laws.tpot_s * cut)
            yield b'data: {"error": {"message": "the engine died", "type": "server_error", "code": 500}}\n\n'
        else:
            yield frame(one, {}, "stop" if one.tokens < one.asked else "length")
            one.good = one.tokens >= one.asked
            text = usage(one, words, laws)
            size = 1 if behaviour == "usage-cut" else max(1, len(text))
            for at in range(0, len(text), size):
                yield text[at : at + size]
                await asyncio.sleep(0.0005 if behaviour == "usage-cut" else 0)
        if behaviour != "no-done":
            yield b"data: [DONE]\n\n"


def sse(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def objects(one: Served) -> str:
    return "chat.completion.chunk" if one.api == "chat" else "text_completion"


def frame(one: Served, delta: dict[str, str], finish: str | None = None) -> bytes:
    said = {"delta": delta} if one.api == "chat" else {"text": "".join(delta.get(key, "") for key in TEXTS)}
    choice = {"index": 0, **said, "finish_reason": finish}
    return sse({"id": "1", "object": objects(one), "created": 1, "model": one.model, "choices": [choice]})


def usage(one: Served, words: int, laws: Laws) -> bytes:
    """Return the frame of the usage, or nothing if it was not asked for."""
    if not (one.request.get("stream_options") or {}).get("include_usage"):
        return b""
    counts = {"prompt_tokens": words, "completion_tokens": one.tokens, "total_tokens": words + one.tokens}
    details = {}
    if laws.cached_tokens:
        details["prompt_tokens_details"] = {"cached_tokens": laws.cached_tokens}
    if laws.hidden_tokens:
        details["completion_tokens_details"] = {"reasoning_tokens": laws.hidden_tokens}
    return sse({"id": "1", "object": objects(one), "model": one.model, "choices": [], "usage": counts | details})


async def until(at_s: float) -> None:
    await asyncio.sleep(at_s - asyncio.get_running_loop().time())


class RunningServer:
    """A server in a process of its own, for a test or a benchmark."""

    def __init__(self, url: str) -> None:
        self.url = url

    def truth(self) -> list[dict[str, Any]]:
        """Return what `Served` has of each request, in the order of arrival."""
        with urllib.request.urlopen(f"{self.url}/truth", timeout=10) as answer:  # noqa: S310 - our own
            served: list[dict[str, Any]] = json.load(answer)
            return served


@contextmanager
def llm_server(behaviour: str = "plain", /, **laws: float | str) -> Iterator[RunningServer]:
    """Start a server in a process of its own; see `Laws`."""
    options = [word for name, value in laws.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, __file__, "--behaviour", behaviour, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield RunningServer(process.stdout.readline().strip())
        finally:
            process.stdin.close()
            process.wait(timeout=10)


async def serve(port: int, laws: Laws) -> None:
    server = await asyncio.start_server(LlmServer(laws).connection, "127.0.0.1", port)
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # open streams need not end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--behaviour", choices=BEHAVIOURS, default="plain", help=str(BEHAVIOURS))
    parser.add_argument("--port", type=int, default=0)
    for one in fields(Laws)[1:]:
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    options = vars(parser.parse_args())
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: waits end within a microsecond
    asyncio.run(serve(options.pop("port"), Laws(**options)))


if __name__ == "__main__":
    main()
