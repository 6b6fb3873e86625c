"""Ask a server outside the load for metadata, configuration and statistics, or to map shared memory."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from loadgen.errors import ClosedEarly, LoadError, MalformedAnswer, TargetRefused, TargetUnreachable
from loadgen.json_values import Unusable
from loadgen.printable import printable
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target, http_head, stranger_text
from loadgen.status import OK, is_passing, outcome_name, outcome_of_http
from loadgen.traffic.model_info import ModelInfo, model_info
from loadgen.wire.http1_response import Answer, AnswerReader, error_text
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_sending import PREFIX_BYTES, Call, grpc_head, grpc_message, status_of
from loadgen.wire.poller import GIVE_WAY_NS, WRITE, Poller, give_way, original
from loadgen.wire.sockets import ReadBuffer, Stream, addresses_of

_NAMES = "Check the address and its path, the model's name and version, and that it is loaded."
_ADVICE = {
    "http 301, http 302, http 303, http 307, http 308": "It redirects; give the address it redirects to.",
    "http 401, http 403, grpc UNAUTHENTICATED, grpc PERMISSION_DENIED": "Send the right authorization header.",
    "http 404, http 405, grpc NOT_FOUND, grpc UNIMPLEMENTED": _NAMES,
    "http 413, grpc RESOURCE_EXHAUSTED, grpc OUT_OF_RANGE": (
        "It is over a limit of the server, or of a gateway: raise that, or send smaller shapes or batches."
    ),
    "http 415": "It takes no binary tensors: use --format json.",
    "no stream": "Turn streaming on there, or in the gateway before it: --api needs server-sent events.",
    "malformed answer": (
        "Look at one answer, and at the address. Triton's Python backend sends empty outputs with some versions "
        "of numpy."
    ),
}


def advice_on(outcome: int, info: ModelInfo | None = None, payload: Payload | None = None) -> str:
    """Return the advice on a failure. `info` and `payload` belong to an inference; a question has neither."""
    name = outcome_name(outcome)
    if is_passing(outcome):
        return "It was asked three times. See its log; loadtest --wait-ready 2m waits for a model that starts."
    for names, advice in _ADVICE.items():
        if name in names.split(", "):
            return advice
    log = "See the server's log." if name.startswith(("http 5", "grpc INTERNAL", "grpc UNKNOWN")) else ""
    if info is None or payload is None:
        return log or _NAMES
    data = f"Check the values and shapes in {payload.data_file}."
    if payload.data_file is None:
        data = "If the model refuses generated values or sizes, give real ones: --input-data FILE."
    # A server without Triton's configuration is another one: MLServer answers binary tensors with status 500.
    may_refuse = name.startswith("http") and payload.format == "binary" and info.max_batch_size is None
    return " ".join(filter(None, ("If it takes no binary tensors, use --format json." * may_refuse, log, data)))


PATIENCE_S = 10.0
"""The time for a question, from its connection to the end of its answer."""

MAX_BYTES = 16 << 20
"""A response with a body of more bytes is malformed."""

MOST_NAMED = 8
"""Of a server's models, so many are named."""

PAUSES_S = (0.5, 1.0)
"""A first request, or a question, whose failure may pass is sent again after these times, or the server's own."""

_LONGEST_PAUSE_S = 10.0
_BUFFER_BYTES = 1 << 16
_CLOSED = (ClosedEarly, ConnectionResetError, BrokenPipeError)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A question over HTTP, with the path after the model's or server's and the JSON of a POST, and over gRPC."""

    path: str
    method: str
    fields: Mapping[str, Any]
    post: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """`document` is the JSON of a response with outcome OK, else None; `text` says what the server refused."""

    outcome: int
    text: str
    document: Any = None
    retry_after: bytes = b""


def read_model_info(target: Target) -> ModelInfo:
    """Return the model's inputs and outputs. Raises TargetUnreachable, TargetRefused, PayloadError."""
    try:
        metadata = _ask(target, _of_model(target, "", "ModelMetadata"))
        if metadata.outcome != OK:
            raise TargetRefused(
                f"{target.url} does not serve {target.model_name}: {metadata.text.rstrip('.')}.\n"
                f"{_served_instead(target, metadata.outcome) or advice_on(metadata.outcome)}"
            )
        reply = _ask(target, _of_model(target, "/config", "ModelConfig"))
        config = reply.document
        if config is not None and not target.is_http:
            config = config.get("config")
        # Answers name the model as requests do: NVIDIA Dynamo may have another name in the metadata.
        info = replace(model_info(metadata.document, config), name=target.model_name, unconfigured=reply.text)
    except Unusable as error:
        why = stranger_text(str(error), target.secrets)
        raise TargetRefused(
            f"{target.url} answered, but not as a KServe v2 server does ({why}).\nCheck the address and its path."
        ) from error
    return info


def _served_instead(target: Target, outcome: int) -> str:
    """Return a line with the models that the server has ready; "" if it does not say, or has the target's."""
    question = _Question(
        path=f"{target.base_path}/v2/repository/index",
        method="RepositoryIndex",
        fields={"ready": True},
        post={"ready": True},
    )
    try:
        index = None if is_passing(outcome) else _ask(target, question).document
    except (LoadError, Unusable):
        return ""
    models = index.get("models") if isinstance(index, dict) else index
    named = [one.get("name") for one in models if isinstance(one, dict)] if isinstance(models, list) else []
    names = [stranger_text(name, target.secrets, most=100) for name in dict.fromkeys(map(str, named))]
    if not names or target.model_name in names:
        return ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"It serves {', '.join(names[:MOST_NAMED])}{more}: name one of them with --model."


def statistics_of(target: Target) -> Any:
    """Return the response with the model's counters; None if the server has none. Raises LoadError, Unusable."""
    return _ask(target, _of_model(target, "/stats", "ModelStatistics")).document


def read_server_name(target: Target) -> str | None:
    """Return the server's own name; None if it sends none or does not respond in time."""
    try:
        about = _ask(target, _Question(path=f"{target.base_path}/v2", method="ServerMetadata", fields={})).document
    except (LoadError, Unusable):
        return None
    return str(about.get("name")) if isinstance(about, dict) else None


def change_memory(target: Target, region: str, what: Literal["Register", "Unregister"], **post: Any) -> None:
    """Let the server map, or unmap, shared memory of its machine. Raises TargetUnreachable, TargetRefused."""
    path = f"{target.base_path}/v2/systemsharedmemory/region/{region}/{what.lower()}"
    method, fields = f"SystemSharedMemory{what}", {"name": region, **post}
    reply = _ask(target, _Question(path=path, method=method, fields=fields, post=post))
    if reply.outcome != OK:
        raise TargetRefused(f"{target.url} does not take shared memory: {reply.text}.\nSend the inputs instead.")


def _of_model(target: Target, path: str, method: str) -> _Question:
    fields = {"name": target.model_name, "version": target.model_version}
    return _Question(path=target.model_path + path, method=method, fields=fields)


def _ask(target: Target, question: _Question) -> _Reply:
    """Ask, again if the failure may pass. Raises TargetUnreachable, TargetRefused, and Unusable for no answer."""
    ask = _over_http if target.is_http else _over_grpc
    for default_s in PAUSES_S:
        try:
            reply = ask(target, question)
        except TargetUnreachable as error:
            if not isinstance(error.__cause__, _CLOSED):
                raise
            pause(default_s)
        else:
            if not is_passing(reply.outcome):
                return reply
            pause(default_s, reply.retry_after)
    return ask(target, question)


def pause(default_s: float, retry_after: bytes = b"") -> None:
    """Sleep as long as the server asked for by `Retry-After` in seconds, at most 10 s; else `default_s`."""
    asked = retry_after.strip()
    ends = time.monotonic() + min(float(asked) if asked.isdigit() else default_s, _LONGEST_PAUSE_S)
    while (left_s := ends - time.monotonic()) > 0:
        original("time", "sleep")(min(left_s, GIVE_WAY_NS / 1e9))
        give_way()


def _over_http(target: Target, question: _Question) -> _Reply:
    body = b"" if question.post is None else json.dumps(question.post).encode()
    fields = [f"Content-Length: {len(body)}"] if body else []
    head = http_head(target, f"{'POST' if body else 'GET'} {question.path}", fields)
    answer = http_answer(target, head + body)
    if answer.status != 200:
        return _Reply(
            outcome=outcome_of_http(answer.status),
            text=stranger_text(error_text(answer), target.secrets),
            retry_after=answer.fields.get(b"retry-after", b""),
        )
    try:
        return _Reply(outcome=OK, text="", document=json.loads(answer.body) if answer.body else None)
    except (ValueError, RecursionError) as error:
        raise Unusable(str(error)) from error


def _over_grpc(target: Target, question: _Question) -> _Reply:
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2  # takes 0.25 s to import

    request = getattr(service_pb2, f"{question.method}Request")(**question.fields)
    call = grpc_call(target, f"/inference.GRPCInferenceService/{question.method}", request.SerializeToString())
    outcome, text = status_of(call.fields)
    if outcome != OK:
        retry_after = dict(call.fields).get(b"retry-after", b"")
        text = stranger_text(f"{outcome_name(outcome)}, {text}", target.secrets)
        return _Reply(outcome=outcome, text=text, retry_after=retry_after)
    answer, fault = getattr(service_pb2, f"{question.method}Response")(), call.fault_of_frame()
    try:
        answer.ParseFromString(bytes(call.answer)[PREFIX_BYTES:])
    except DecodeError:
        fault = fault or "the message is another one"
    if fault is not None:
        raise Unusable(fault)
    return _Reply(outcome=OK, text="", document=MessageToDict(answer, preserving_proto_field_name=True))


def http_answer(target: Target, request: bytes, patience_s: float | None = None) -> Answer:
    """Send a complete HTTP request; returns the response. Raises TargetUnreachable, TargetRefused."""
    unsent, reader = memoryview(request), AnswerReader(ReadBuffer(_BUFFER_BYTES), MAX_BYTES, whole=True)

    def step(stream: Stream) -> Answer | None:
        nonlocal unsent
        while unsent:
            unsent = unsent[stream.send(unsent) :]
        return reader.read(stream)

    return _conversation(target, step, patience_s)


def grpc_call(target: Target, path: str, message: bytes, patience_s: float | None = None) -> Call:
    """Make one call; returns it with its response. Raises TargetUnreachable, TargetRefused."""
    ended: list[Call] = []
    http2: Http2Connection | None = None

    def note(call: Call, reset: bool) -> None:
        if reset:
            raise ConnectionResetError("the server reset the call")
        if call.data_bytes > PREFIX_BYTES + MAX_BYTES:
            raise MalformedAnswer(f"a message of over {MAX_BYTES:,} bytes")
        ended.append(call)

    def step(stream: Stream) -> Call | None:
        nonlocal http2
        if http2 is None:
            http2 = Http2Connection(stream, grpc_head(target, path), ReadBuffer(), note, PREFIX_BYTES + MAX_BYTES)
            http2.start(0, grpc_message(message))
        http2.flush()
        http2.receive()
        return ended[0] if ended else None

    return _conversation(target, step, patience_s)


def _conversation(target: Target, step: Callable[[Stream], _T | None], patience_s: float | None = None) -> _T:
    """Connect, and let `step` send and receive until it returns something; if it would wait, wait for the server.

    Other greenlets run meanwhile. Raises TargetUnreachable, TargetRefused.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    ends_ns = time.monotonic_ns() + round(patience_s * 1e9)
    poller, stream = Poller(), None
    with _our_errors(target):
        try:
            stream = addresses_of(target)[0].open()
            poller.add(stream.fileno(), WRITE)
            while True:
                waits = True
                with suppress(BlockingIOError):
                    if stream.connected():
                        if (found := step(stream)) is not None:
                            return found
                        waits = False
                if waits:
                    poller.change(stream.fileno(), stream.wants())
                    poller.wait(min(GIVE_WAY_NS, ends_ns - time.monotonic_ns()))
                    give_way()
                if time.monotonic_ns() >= ends_ns:
                    raise TimeoutError(f"no whole answer within {patience_s:g} s")
        finally:
            poller.close()
            if stream is not None:
                stream.close()


@contextmanager
def _our_errors(target: Target) -> Iterator[None]:
    """Turn faults of the network or of the server into our errors."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise TargetUnreachable(
            f"the certificate of {target.url} is not accepted: {error.verify_message}.\n"
            "Give its authority as a CA file, or use the name it was made for, as the address or as --server-name."
        ) from error
    except ssl.SSLError as error:
        raise TargetUnreachable(f"the TLS handshake with {target.url} failed: {_tls_problem(error)}") from error
    except MalformedAnswer as error:
        why = stranger_text(str(error), target.secrets)
        raise TargetRefused(
            f"{target.url} answers, but not as a server of its protocol does: {why}.\n"
            "Check the address, its scheme and its port."
        ) from error
    except OSError as error:
        reason = stranger_text(str(error), target.secrets) or type(error).__name__
        fix = "Start the server, or correct the address; loadtest --wait-ready 2m waits for one that starts."
        if target.is_tls and isinstance(error, _CLOSED):
            fix = "If it asks for a client certificate, give one that it accepts: --client-cert. Else see its log."
        raise TargetUnreachable(f"{target.url} does not answer: {reason}.\n{fix}") from error


def _tls_problem(error: ssl.SSLError) -> str:
    """Return the reason and the advice; the server's alerts on certificates are about the client's."""
    reason = error.reason or str(error)
    words = reason.rpartition("_ALERT_")[2].replace("_", " ").lower()
    if "_ALERT_" in reason and ("certificate" in words or words == "unknown ca"):
        return f"{words}.\nGive a client certificate that it accepts: --client-cert and --client-key."
    if words.endswith("handshake failure"):
        return f"{words}.\nCheck its TLS settings; if it asks for a client certificate, give --client-cert."
    return f"{printable(words)}.\nCheck its address, scheme and TLS settings."
