"""Query a Triton server over gRPC, outside the load: metadata, configuration, statistics."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from loadgen.errors import LoadError, MalformedAnswer, TargetRefused
from loadgen.json_values import Unusable
from loadgen.spec.target import Target
from loadgen.status import OK, outcome_name
from loadgen.traffic.model_info import ModelInfo, model_info
from loadgen.wire.grpc import grpc_head, grpc_message, status_of
from loadgen.wire.http2 import Http2Connection
from loadgen.wire.http2_sending import PREFIX_BYTES, Call
from loadgen.wire.poller import READ, WRITE
from loadgen.wire.single_request import MAX_BYTES, line_to
from loadgen.wire.sockets import ReadBuffer

_NO_SHARED_MEMORY = ("does not take shared memory", "Send the inputs instead.")
_SERVICE = "/inference.GRPCInferenceService/"


def read_model_info(target: Target) -> ModelInfo:
    """Return the model's inputs and outputs. Raises TargetUnreachable, TargetRefused."""
    names = {"name": target.model_name, "version": target.model_version}
    metadata = _ask(target, "ModelMetadata", service_pb2.ModelMetadataRequest(**names))
    try:
        config = _ask(target, "ModelConfig", service_pb2.ModelConfigRequest(**names)).get("config")
    except TargetRefused:
        config = None
    try:
        return model_info(metadata, config)
    except Unusable as error:
        raise TargetRefused(
            f"{target.url} describes {target.model_name} as no model ({error}).\nCheck the address."
        ) from error


def read_statistics(target: Target) -> dict[str, Any] | None:
    """Return the model's counters, or None if the server has none. Raises TargetUnreachable, TargetRefused."""
    request = service_pb2.ModelStatisticsRequest(name=target.model_name, version=target.model_version)
    outcome, _, statistics = _answer(target, "ModelStatistics", request)
    return statistics if outcome == OK else None


def read_server_name(target: Target) -> str | None:
    """Return the server's own name; None if it sends none or does not respond in time."""
    try:
        return str(_ask(target, "ServerMetadata", service_pb2.ServerMetadataRequest()).get("name"))
    except LoadError:
        return None


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    request = service_pb2.SystemSharedMemoryRegisterRequest(name=region, key=key, offset=0, byte_size=size)
    _ask(target, "SystemSharedMemoryRegister", request, refused=_NO_SHARED_MEMORY)


def unregister_memory(target: Target, region: str) -> None:
    """Let the server unmap shared memory. Raises TargetUnreachable, TargetRefused."""
    request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region)
    _ask(target, "SystemSharedMemoryUnregister", request, refused=_NO_SHARED_MEMORY)


def _ask(
    target: Target, method: str, request: Message, *, refused: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Make a call that has to succeed, see `_answer`; returns the response.

    `refused` is the meaning of a refusal and the remedy; None: the model is not served.
    """
    outcome, text, document = _answer(target, method, request)
    if outcome != OK:
        happened, to_do = refused or (
            f"does not serve {target.model_name}",
            "Check the model's name and version, and that it is loaded.",
        )
        raise TargetRefused(f"{target.url} {happened}: {outcome_name(outcome)}, {text}.\n{to_do}")
    return document


def _answer(target: Target, method: str, request: Message) -> tuple[int, str, dict[str, Any]]:
    """Make one call on its own connection; returns outcome, text, and the response in its JSON form."""
    call = _ended_call(target, _SERVICE + method, request.SerializeToString())
    outcome, text = status_of(call.fields)
    if outcome != OK:
        return outcome, text, {}
    answer = getattr(service_pb2, f"{method}Response")()
    fault = call.fault_of_frame()
    try:
        answer.ParseFromString(bytes(call.answer[PREFIX_BYTES:]))
    except DecodeError:
        fault = "the message is another one"
    if fault is not None:
        raise TargetRefused(
            f"{target.url} answered, but not as a KServe v2 server does ({fault}).\nCheck the address."
        )
    document: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return OK, "", document


def _ended_call(target: Target, path: str, message: bytes) -> Call:
    ended: list[Call] = []

    def note(call: Call, reset: bool) -> None:
        if reset:
            raise ConnectionResetError("the server reset the call")
        if call.data_bytes > PREFIX_BYTES + MAX_BYTES:
            raise MalformedAnswer(f"a message of over {MAX_BYTES:,} bytes")
        ended.append(call)

    with line_to(target) as line:
        stream = line.stream
        http2 = Http2Connection(stream, grpc_head(target, path), ReadBuffer(), note, MAX_BYTES)
        http2.start(0, grpc_message(message))
        while not ended:
            line.hurry()
            try:
                http2.receive()
            except BlockingIOError:
                line.wait(stream.wants() | (WRITE if http2.wants_to_write else READ))
                http2.flush()
    return ended[0]
