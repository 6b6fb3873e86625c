"""Query a server, and open connections for its load, in the protocol of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.spec.target import Target
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import Place, Tensors, grpc_request, http_request
from loadgen.wire import triton_http
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.http1 import HttpWire
from loadgen.wire.load_wire import Finished, LoadWire
from loadgen.wire.poller import Poller
from loadgen.wire.sockets import address_of


def statistics_of(target: Target) -> Any:
    """Return the response with the model's counters; None if the server has none.

    Raises LoadError, ValueError, RecursionError.
    """
    return _client(target).read_statistics(target)


def _client(target: Target) -> Any:
    """Return the module for the target's protocol; that of gRPC takes 0.25 s to import."""
    if target.is_http:
        return triton_http
    from loadgen.wire import triton_grpc

    return triton_grpc


def read_model_info(target: Target) -> ModelInfo:
    """Return the model's inputs and outputs. Raises TargetUnreachable, TargetRefused."""
    info: ModelInfo = _client(target).read_model_info(target)
    return info


def read_server_name(target: Target) -> str | None:
    """Return the server's own name; None if it sends none or does not respond in time."""
    name: str | None = _client(target).read_server_name(target)
    return name


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    _client(target).register_memory(target, region, key=key, size=size)


def unregister_memory(target: Target, region: str) -> None:
    """Let the server unmap shared memory. Raises TargetUnreachable, TargetRefused."""
    _client(target).unregister_memory(target, region)


def wire_of(
    target: Target,
    info: ModelInfo,
    pool: list[Tensors],
    poller: Poller,
    finished: Finished,
    places: Sequence[Mapping[str, Place]] | None = None,
) -> LoadWire:
    """Return connections to the target that send these requests in turn, with their inputs or at these places.

    Raises TargetUnreachable for an unknown name.
    """
    address = address_of(target)
    first = next(iter(pool[0].values()), None) if pool else None
    expected = ExpectedAnswer(info, rows=len(first) if info.batched and first is not None else 1)
    where: Sequence[Mapping[str, Place] | None] = places or [None] * len(pool)
    if target.is_http:
        requests = [http_request(target, info, *one) for one in zip(pool, where, strict=True)]
        return HttpWire(address=address, requests=requests, expected=expected, poller=poller, finished=finished)
    from loadgen.wire.grpc import INFER, GrpcWire, grpc_head, grpc_message

    messages = [grpc_message(grpc_request(target, info, *one)) for one in zip(pool, where, strict=True)]
    head = grpc_head(target, INFER)
    return GrpcWire(
        address=address, head=head, requests=messages, expected=expected, poller=poller, finished=finished
    )
