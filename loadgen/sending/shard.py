"""The shard of a load that one process sends: prepare it against the server, then send it."""

from __future__ import annotations

import fcntl
import gc
import math
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import cast

from loadgen.errors import LoadError, TargetRefused, TargetUnreachable
from loadgen.measurement.addresses import Histogram, histograms_of
from loadgen.measurement.first_answers import Turn, turn_of
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending.backlog import BacklogRule
from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import Clock, ClosedLoop, LoopParts, SendLoop, Tick
from loadgen.sending.shared_memory import SharedInputs
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target, stranger_text
from loadgen.status import NOT_CONNECTED, OK, is_passing, outcome_name
from loadgen.traffic.arrivals import peak_rate_per_s
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import raw_inputs, request_tensors, settled
from loadgen.traffic.prompts import Prompts, way_out
from loadgen.wire.addresses import Addresses
from loadgen.wire.connections import AnyWire, wire_of
from loadgen.wire.poller import GIVE_WAY_NS, Poller, give_way
from loadgen.wire.questions import PAUSES_S, advice_on, pause, read_model_info
from loadgen.wire.stream_wire import StreamWire

_PATIENT_NS = 500_000_000
_CONNECT_S = 5.0
_LARGE_BYTES = 1 << 16  # of a request: only such ones can be slow to send
_OLDEST = 16
_CONNECTIONS_AHEAD_MAX = 256
_REFUSALS = ("http 3", "http 4", "no stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Rows `part`, `part + parts`, ... of a table, and the rules for them.

    `rate_per_s` is the highest rate of this shard. Without `limit_ms` no backlog stops the run. `concurrency` is
    the number of this shard's users in a closed loop of `duration_s`.
    """

    part: int
    parts: int
    timeout_s: float
    rate_per_s: float | None
    limit_ms: float | None
    duration_s: float
    max_in_flight: int | None = None
    concurrency: int | None = None

    @property
    def connections_ahead(self) -> int:
        """The connections to open before the load: 1.5 times as many as are in flight at the latency limit."""
        if self.concurrency is not None:
            return self.concurrency
        expected = 1.5 * (self.rate_per_s or 0.0) * (self.limit_ms or 50.0) / 1e3
        most = min(self.max_in_flight or _CONNECTIONS_AHEAD_MAX, _CONNECTIONS_AHEAD_MAX)
        return min(4 + math.ceil(expected), most)


def shard_of(plan: LoadPlan | ClosedLoopPlan, part: int, parts: int, *, limit_ms: float | None) -> Shard:
    """Return the shard `part` of `parts` of a plan."""
    rate_per_s = cap = concurrency = None
    if isinstance(plan, ClosedLoopPlan):
        concurrency = (plan.concurrency + part) // parts
    else:
        rate_per_s = peak_rate_per_s(plan) / parts
        cap = None if plan.max_in_flight is None else max(1, (plan.max_in_flight + part) // parts)
    return Shard(
        part=part,
        parts=parts,
        timeout_s=plan.timeout_s,
        rate_per_s=rate_per_s,
        limit_ms=limit_ms,
        duration_s=plan.duration_s,
        max_in_flight=cap,
        concurrency=concurrency,
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
                asked, places = payload.streamed, Addresses(target)
                self.wire = StreamWire(
                    asked,
                    target.model_name,
                    addresses=places,
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
            shared = SharedInputs.of(self._target, [raw_inputs(self.info, tensors) for tensors in pool])
            stack.callback(shared.close)
            places = shared.places
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
    began_s, poller = time.monotonic(), Poller()
    try:
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
    finally:
        poller.close()
    return None


def run_shard(
    shard: Shard,
    table: LogTable,
    prepared: PreparedTarget,
    poller: Poller,
    origin_ns: int,
    asked_to_stop: Callable[[], bool],
    clock: Clock = time,
) -> ShardResult:
    """Send a shard from `origin_ns` (monotonic clock) on. Return when every request has ended.

    `asked_to_stop` is called about every 50 ms and may use the process for a moment, which shows as send lag.
    """
    wire = prepared.wire
    before = (wire.bytes_sent, wire.bytes_received, wire.connections_opened, wire.connections_closed, wire.resent)
    rule = None
    if shard.limit_ms is not None and shard.rate_per_s is not None:
        rule = BacklogRule(rate_per_s=shard.rate_per_s, limit_ms=shard.limit_ms)
    overloaded = False
    looked = unsent = patient_until_ns = 0

    def tick(now_ns: int, in_flight: int) -> bool:
        nonlocal overloaded, looked, unsent, patient_until_ns
        if wire.bytes_sent - before[0] > _LARGE_BYTES * loop.rows_sent:
            found = _still_sending(wire)
            looked, unsent = looked + len(found), unsent + sum(found)
        rising = rule is not None and rule.overloaded(now_ns, in_flight)
        if rising and now_ns >= patient_until_ns:
            patient_until_ns = now_ns + _PATIENT_NS
            overloaded |= not prepared.turn.still_getting_faster(_log_of(shard, table, loop.rows_sent), now_ns)
        return asked_to_stop() or overloaded

    loop = _loop(shard, table, prepared, poller, tick, clock)
    wire.finished = loop.finished
    wire.error_example = None
    wire.in_front.clear()
    rows = len(table.scheduled_ns[shard.part :: shard.parts])
    if table.streams is not None:
        cast("StreamWire", wire).replied = table.notes_replies(shard.part, shard.parts, origin_ns)
    wire.places = bytearray(rows if wire.addresses.may_be_several else 0)
    with without_collections():
        wall, cpu = clock.monotonic_ns(), time.process_time_ns()
        loop.run(origin_ns)
        # A shard without requests ends before `origin_ns`.
        wall, cpu = max(0, clock.monotonic_ns() - max(wall, origin_ns)), time.process_time_ns() - cpu
    return ShardResult(
        rows=loop.rows_sent,
        overloaded=overloaded,
        wall_s=wall / 1e9,
        cpu_s=cpu / 1e9,
        bytes_sent=wire.bytes_sent - before[0],
        bytes_received=wire.bytes_received - before[1],
        connections_opened=wire.connections_opened - before[2],
        connections_closed=wire.connections_closed - before[3],
        resent=wire.resent - before[4],
        error_example=prepared.error_example,
        in_front=dict(wire.in_front),
        addresses=_by_address(shard, table, wire, loop.rows_sent),
        notes=prepared.notes,
        unsent_share=unsent / looked if looked else 0.0,
        cold=prepared.turn.cold(_log_of(shard, table, loop.rows_sent)),
    )


def _log_of(shard: Shard, table: LogTable, count: int) -> RequestLog:
    return table.rows_until(table.rows).part(slice(shard.part, None, shard.parts)).rows(0, count)


def _by_address(shard: Shard, table: LogTable, wire: AnyWire, count: int) -> dict[str, Histogram]:
    names = wire.addresses.names
    if len(names) < 2 or not wire.places:
        return {}
    log = _log_of(shard, table, count)
    return histograms_of(log.latency_ns, log.failed, wire.places, names)


def _still_sending(wire: AnyWire) -> list[bool]:
    """Return for the oldest requests in flight if the other side has not taken all bytes of their connection."""
    found = []
    for connection in islice(wire.in_flight.values(), _OLDEST):
        with suppress(OSError, AttributeError):  # it waits for a connection, or the system does not tell
            left = fcntl.ioctl(connection.fd, termios.TIOCOUTQ, bytes(4))  # type: ignore[union-attr]
            found.append(any(left))
    return found


def _loop(
    shard: Shard, table: LogTable, prepared: PreparedTarget, poller: Poller, tick: Tick, clock: Clock
) -> SendLoop:
    common: LoopParts = {
        "table": table,
        "part": shard.part,
        "parts": shard.parts,
        "wire": prepared.wire,
        "poller": poller,
        "timeout_ns": round(shard.timeout_s * 1e9),
        "tick": tick,
        "clock": clock,
    }
    if shard.concurrency is None:
        return SendLoop(**common, max_in_flight=shard.max_in_flight)
    return ClosedLoop(**common, concurrency=shard.concurrency, duration_ns=round(shard.duration_s * 1e9))


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage while the load runs: a full collection takes milliseconds, which would be send lag."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
