"""Prepare a load against its server: connections in its protocol, the requests, and a first one that is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing

from loadgen.errors import LoadError, TargetRefused, TargetUnreachable
from loadgen.measurement.first_answers import Turn, turn_of
from loadgen.sending.shared_memory import shared_inputs
from loadgen.spec.plan import Payload, TensorFormat
from loadgen.spec.target import Target, stranger_text
from loadgen.status import NOT_CONNECTED, OK, is_passing, outcome_name
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import (
    Place,
    Tensors,
    grpc_request,
    http_request,
    raw_inputs,
    request_tensors,
    settled,
)
from loadgen.traffic.prompts import Prompts, way_out
from loadgen.wire.addresses import Addresses
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.grpc import GrpcWire
from loadgen.wire.http1 import HttpWire
from loadgen.wire.http2_sending import INFER, grpc_head, grpc_message
from loadgen.wire.load_wire import Finished
from loadgen.wire.poller import GIVE_WAY_NS, Poller, give_way
from loadgen.wire.questions import PAUSES_S, advice_on, pause, read_model_info
from loadgen.wire.stream_wire import StreamWire

_CONNECT_S = 5.0
_REFUSALS = ("http 3", "http 4", "no stream")

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


class PreparedTarget:
    """Connections and request bodies for one target, checked with one request.

    `answered` is False if no response to it came in time; `notes` say what had to be guessed.
    Construction raises TargetUnreachable, TargetRefused or PayloadError. Close it after use.
    """

    def __init__(self, target: Target, payload: Payload, poller: Poller, timeout_s: float) -> None:
        self._target = target
        self._poller = poller
        self.info: ModelInfo | None = None
        self.notes: tuple[str, ...] = ()
        self.turn = Turn()
        self._outcomes: dict[int, int] = {}
        self._prompts: Prompts | None = None
        with ExitStack() as stack:
            self.wire: AnyWire
            if payload.streamed is None:
                self.wire = self._inferring(payload, stack)
            else:
                self._prompts = Prompts(target, payload)
                self.wire = StreamWire(
                    asked=payload.streamed,
                    model=target.model_name,
                    addresses=Addresses(target),
                    requests=self._prompts,
                    poller=poller,
                    finished=self._note,
                )
            stack.callback(self.wire.close)
            self.answered = self._try_one(timeout_s, payload)
            self._opened = stack.pop_all()

    @property
    def error_example(self) -> str | None:
        """The first failure in words that may be shown; None without one."""
        text = self.wire.error_example
        return None if text is None else stranger_text(text, self._target.secrets)

    def _inferring(self, payload: Payload, stack: ExitStack) -> AnyWire:
        """Return connections that send inferences, as the server's metadata describes them."""
        self.info, self.notes = settled(read_model_info(self._target), payload)
        pool = request_tensors(self.info, payload)
        self.turn = turn_of([[values.shape for values in one.values()] for one in pool], self.info.instances)
        places = None
        if payload.shared_memory == "system":
            inputs = [raw_inputs(self.info, tensors) for tensors in pool]
            places = stack.enter_context(shared_inputs(self._target, inputs))
        return wire_of(self._target, self.info, pool, self._poller, self._note, places, payload.format)

    def connect(self, count: int) -> None:
        """Open connections ahead of the load. Those that fail now are opened when they are needed."""
        try:
            self.wire.open(count)
        except OSError:
            return
        self._pump(_CONNECT_S, lambda: self.wire.connecting == 0)

    def close(self) -> None:
        """Close the connections, and end the shared memory."""
        self._opened.close()

    def _try_one(self, timeout_s: float, payload: Payload) -> bool:
        """Send one request. A response that is no inference raises an error now, instead of a thousand failures.

        A failure that may pass, or a field that need not be sent, gets two more tries. A server that does not
        respond at all gets its load: every request of it counts as failed. False for such a server.
        """
        for default_s in (*PAUSES_S, None):
            self.wire.send(0)
            if not self._pump(timeout_s, lambda: 0 in self._outcomes):
                self.wire.give_up(0)
                return False
            outcome = self._outcomes.pop(0)
            changes = [] if self._prompts is None else self._prompts.go_without(self.wire.error_example or "")
            self.notes += tuple(changes)
            if default_s is None or not (changes or is_passing(outcome)):
                break
            pause(default_s, self.wire.retry_after)
            self.wire.error_example = None
        if outcome == NOT_CONNECTED:
            raise TargetUnreachable(
                f"{self._target.url} refuses connections: {self.error_example}.\n"
                "Start the server, or correct the address."
            )
        if outcome == OK or (payload.streamed is not None and not outcome_name(outcome).startswith(_REFUSALS)):
            return True  # streams fail in many ways, which the load counts
        advice = way_out(self.wire.error_example or "") if payload.streamed is not None else ""
        raise TargetRefused(
            f"{self._target.model_name} on {self._target.url} did not answer a first request: "
            f"{str(self.error_example).rstrip('.')}.\n{advice or advice_on(outcome, self.info, payload)}"
        )

    def _pump(self, timeout_s: float, until: Callable[[], bool]) -> bool:
        deadline = time.monotonic_ns() + round(timeout_s * 1e9)
        while not until():
            left = deadline - time.monotonic_ns()
            if left <= 0:
                return False
            for fd, events in self._poller.wait(min(left, GIVE_WAY_NS)):
                self.wire.handle(fd, events)
            give_way()
        return True

    def _note(self, row: int, outcome: int, arrived_ns: int) -> None:  # noqa: ARG002 - its time does not count
        self._outcomes[row] = outcome


def wait_ready(
    target: Target, payload: Payload, *, patience_s: float, timeout_s: float, stop: Callable[[], bool]
) -> float | None:
    """Return the seconds until the server answered an inference; None if `stop` returned True before.

    Raises PayloadError at once, TargetUnreachable and TargetRefused if it does not within `patience_s`.
    """
    began_s = time.monotonic()
    with closing(Poller()) as poller:
        while not stop():
            failure: LoadError = TargetUnreachable(f"{target.url} does not answer.\nSee the server's log.")
            try:
                prepared = PreparedTarget(target, payload, poller, timeout_s)
                prepared.close()
                if prepared.answered:
                    return time.monotonic() - began_s
            except (TargetUnreachable, TargetRefused) as error:
                failure = error
            if time.monotonic() >= began_s + patience_s:
                what, _, fix = str(failure).partition("\n")
                raise type(failure)(f"{what.rstrip('.')}, for {patience_s:g} s now.\n{fix}")
            pause(PAUSES_S[0])
    return None
