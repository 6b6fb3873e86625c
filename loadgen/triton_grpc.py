"""Questions to a Triton server over gRPC, outside the load: metadata, configuration, statistics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.grpc_wire import grpc_head, grpc_message, status_of
from loadgen.http2 import Call, Http2Connection
from loadgen.http_answer import ReadBuffer
from loadgen.model_info import ModelInfo, model_info
from loadgen.outcomes import OK, outcome_name
from loadgen.poller import GIVE_WAY_NS, READ, WRITE, Poller, give_way
from loadgen.streams import address_of

if TYPE_CHECKING:
    from loadgen.plan import Target

_TIMEOUT_S = 10.0
_NO_SHARED_MEMORY = ("does not take shared memory", "Send the inputs instead.")
_SERVICE = "/inference.GRPCInferenceService/"


def read_model_info(target: Target) -> ModelInfo:
    """What the model takes and gives. Raises TargetUnreachable, TargetRefused."""
    names = {"name": target.model_name, "version": target.model_version}
    metadata = _ask(target, "ModelMetadata", service_pb2.ModelMetadataRequest(**names))
    try:
        config = _ask(target, "ModelConfig", service_pb2.ModelConfigRequest(**names)).get("config")
    except TargetRefused:
        config = None
    return model_info(metadata, config)


def read_statistics(target: Target) -> dict[str, Any] | None:
    """The model's counters, or None where the server keeps none or does not answer in time."""
    request = service_pb2.ModelStatisticsRequest(name=target.model_name, version=target.model_version)
    try:
        return _ask(target, "ModelStatistics", request)
    except (TargetUnreachable, TargetRefused):
        return None


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    request = service_pb2.SystemSharedMemoryRegisterRequest(name=region, key=key, offset=0, byte_size=size)
    _ask(target, "SystemSharedMemoryRegister", request, refused=_NO_SHARED_MEMORY)


def unregister_memory(target: Target, region: str) -> None:
    """Let the server forget it. Raises TargetUnreachable, TargetRefused."""
    request = service_pb2.SystemSharedMemoryUnregisterRequest(name=region)
    _ask(target, "SystemSharedMemoryUnregister", request, refused=_NO_SHARED_MEMORY)


def _ask(
    target: Target, method: str, request: Message, *, refused: tuple[str, str] | None = None
) -> dict[str, Any]:
    """One call on a connection of its own; the answer as the JSON of the same name would be.

    `refused` is what a refusal means and what to do then; None: the model is not served.
    """
    poller = Poller()
    try:
        call = _finished_call(target, _SERVICE + method, request.SerializeToString(), poller)
    except OSError as error:
        raise TargetUnreachable(
            f"{target.url} does not answer: {error}.\nStart the server, or correct the address."
        ) from error
    finally:
        poller.close()
    outcome, text = status_of(call.fields)
    if outcome != OK:
        happened, to_do = refused or (
            f"does not serve {target.model_name}",
            "Check the model's name and version, and that it is loaded.",
        )
        raise TargetRefused(f"{target.url} {happened}: {outcome_name(outcome)}, {text}.\n{to_do}")
    answer = getattr(service_pb2, f"{method}Response")()
    try:
        answer.ParseFromString(bytes(call.answer or b"")[5:])
    except DecodeError as error:
        raise TargetRefused(
            f"{target.url} answered, but not as a KServe v2 server does.\nCheck the address."
        ) from error
    document: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return document


def _finished_call(target: Target, path: str, message: bytes, poller: Poller) -> Call:
    ended: list[Call] = []

    def note(call: Call, reset: bool) -> None:
        if reset:
            raise ConnectionResetError("the server reset the call")
        ended.append(call)

    stream = address_of(target).open()
    try:
        poller.add(stream.fileno(), WRITE)
        deadline = time.monotonic_ns() + round(_TIMEOUT_S * 1e9)
        while not stream.connected():
            _wait(poller, deadline)
            poller.change(stream.fileno(), stream.wants())
        http2 = Http2Connection(stream, grpc_head(target, path), ReadBuffer(), note)
        http2.start(0, grpc_message(message), keep_answer=True)
        while not ended:
            try:
                http2.receive()
            except BlockingIOError:
                poller.change(stream.fileno(), stream.wants() | (WRITE if http2.wants_to_write else READ))
                _wait(poller, deadline)
                http2.flush()
        return ended[0]
    finally:
        stream.close()


def _wait(poller: Poller, deadline_ns: int) -> None:
    left = deadline_ns - time.monotonic_ns()
    if left <= 0:
        raise TimeoutError(f"no answer within {_TIMEOUT_S:g} s")
    poller.wait(min(left, GIVE_WAY_NS))
    give_way()
