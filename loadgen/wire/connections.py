"""Open connections for a load, in the protocol of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.spec.plan import Payload, TensorFormat
from loadgen.spec.target import Target
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import Place, Tensors, grpc_request, http_request
from loadgen.traffic.prompts import Prompts
from loadgen.wire.addresses import Addresses
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.grpc import GrpcWire
from loadgen.wire.grpc_call import INFER, grpc_head, grpc_message
from loadgen.wire.http1 import HttpWire
from loadgen.wire.load_wire import Finished
from loadgen.wire.poller import Poller
from loadgen.wire.stream_wire import StreamWire

AnyWire = HttpWire | GrpcWire


def wire_of(
    target: Target,
    info: ModelInfo,
    pool: list[Tensors],
    poller: Poller,
    finished: Finished,
    places: Sequence[Mapping[str, Place]] | None = None,
    tensors_as: TensorFormat = "binary",
) -> AnyWire:
    """Return connections to the target that send these requests in turn, with their inputs or at these places.

    Raises TargetUnreachable for an unknown name, PayloadError for values that cannot be sent.
    """
    addresses = Addresses(target)
    first = next(iter(pool[0].values()), None) if pool else None
    rows = len(first) if info.batched and first is not None else 1
    expected = ExpectedAnswer(info, rows, target.model_version)
    where: Sequence[Mapping[str, Place] | None] = places or [None] * len(pool)
    if target.is_http:
        requests = [http_request(target, info, *one, tensors_as) for one in zip(pool, where, strict=True)]
        return HttpWire(
            addresses=addresses, requests=requests, expected=expected, poller=poller, finished=finished
        )
    messages = [grpc_message(grpc_request(target, info, *one)) for one in zip(pool, where, strict=True)]
    head = grpc_head(target, INFER)
    return GrpcWire(
        addresses=addresses, head=head, requests=messages, expected=expected, poller=poller, finished=finished
    )


def stream_wire_of(target: Target, payload: Payload, poller: Poller, finished: Finished) -> StreamWire:
    """Return connections to an endpoint that streams tokens.

    Raises TargetUnreachable for an unknown name, PayloadError for prompts that cannot be read.
    """
    assert payload.streamed is not None
    asked, addresses, requests = payload.streamed, Addresses(target), Prompts(target, payload)
    model = target.model_name
    return StreamWire(asked, model, addresses=addresses, requests=requests, poller=poller, finished=finished)
