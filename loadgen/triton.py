"""Questions to a server, and connections for its load, in whichever protocol the target speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from loadgen import triton_http
from loadgen.errors import LoadError
from loadgen.expected_answer import ExpectedAnswer
from loadgen.http_wire import HttpWire
from loadgen.payloads import Tensors, grpc_request, http_request
from loadgen.printable import printable
from loadgen.send_loop import Wire
from loadgen.server_stats import counters_of, unreadable
from loadgen.streams import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadgen.model_info import ModelInfo
    from loadgen.plan import Target
    from loadgen.poller import Poller
    from loadgen.send_loop import Finished
    from loadgen.shared_inputs import Place


class LoadWire(Wire, Protocol):
    """A wire with what belongs to a whole run: opening, closing, and what went over it."""

    finished: Finished
    error_example: str | None
    connections_opened: int

    @property
    def connecting(self) -> int:
        """How many connections are not ready yet."""

    @property
    def bytes_sent(self) -> int:
        """All bytes so far."""

    @property
    def bytes_received(self) -> int:
        """All bytes so far."""

    def open(self, count: int) -> None:
        """Begin to open connections, up to so many. Raises OSError when one is refused at once."""

    def close(self) -> None:
        """Close all connections; what is in flight is forgotten."""


def read_model_info(target: Target) -> ModelInfo:
    """What the model takes and gives. Raises TargetUnreachable, TargetRefused."""
    if target.is_http:
        return triton_http.read_model_info(target)
    from loadgen import triton_grpc  # brings all of gRPC, a quarter of a second

    return triton_grpc.read_model_info(target)


def read_statistics(target: Target) -> dict[str, Any] | None:
    """The model's counters for `timings_between`; None where the server keeps none. Raises nothing.

    They are optional: a server that answers badly, or not in time, has its reason for `statistics_remarks` there.
    """
    try:
        if target.is_http:
            document = triton_http.read_statistics(target)
        else:
            from loadgen import triton_grpc

            document = triton_grpc.read_statistics(target)
        return None if document is None else counters_of(document)
    except LoadError as error:
        return unreadable(str(error).partition("\n")[0])
    except (ValueError, RecursionError) as error:
        return unreadable(
            f"{target.url} answered with statistics that cannot be read ({printable(str(error), most=300)})"
        )


def read_server_name(target: Target) -> str | None:
    """The name that the server gives itself; None where it gives none or does not answer in time."""
    if target.is_http:
        return triton_http.read_server_name(target)
    from loadgen import triton_grpc

    return triton_grpc.read_server_name(target)


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    if target.is_http:
        triton_http.register_memory(target, region, key=key, size=size)
        return
    from loadgen import triton_grpc

    triton_grpc.register_memory(target, region, key=key, size=size)


def unregister_memory(target: Target, region: str) -> None:
    """Let the server forget it. Raises TargetUnreachable, TargetRefused."""
    if target.is_http:
        triton_http.unregister_memory(target, region)
        return
    from loadgen import triton_grpc

    triton_grpc.unregister_memory(target, region)


def wire_of(
    target: Target,
    info: ModelInfo,
    pool: list[Tensors],
    poller: Poller,
    finished: Finished,
    places: Sequence[Mapping[str, Place]] | None = None,
) -> LoadWire:
    """Connections to the target that send these requests in turn, their inputs with them or at these places.

    Raises TargetUnreachable for an unknown name.
    """
    address = address_of(target)
    expected = ExpectedAnswer(info)
    where: Sequence[Mapping[str, Place] | None] = places or [None] * len(pool)
    if target.is_http:
        requests = [http_request(target, info, *one) for one in zip(pool, where, strict=True)]
        return HttpWire(address=address, requests=requests, expected=expected, poller=poller, finished=finished)
    from loadgen.grpc_wire import INFER, GrpcWire, grpc_head, grpc_message

    messages = [grpc_message(grpc_request(target, info, *one)) for one in zip(pool, where, strict=True)]
    head = grpc_head(target, INFER)
    return GrpcWire(
        address=address, head=head, requests=messages, expected=expected, poller=poller, finished=finished
    )
