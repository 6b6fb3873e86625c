"""One process's share of a load: prepared against the server first, then carried out."""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.backlog import BacklogRule
from loadgen.closed_loop import ClosedLoop
from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.lap_loop import LapLoop
from loadgen.outcomes import MALFORMED, NOT_CONNECTED, OK
from loadgen.payloads import raw_inputs, request_tensors
from loadgen.poller import GIVE_WAY_NS, give_way
from loadgen.send_loop import LoopParts, SendLoop, Tick
from loadgen.shared_inputs import SharedInputs
from loadgen.triton import LoadWire, read_model_info, wire_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loadgen.model_info import ModelInfo
    from loadgen.plan import Payload, Target
    from loadgen.poller import Poller
    from loadgen.shared_log import LogTable

_CONNECT_S = 5.0
_MOST_CONNECTIONS_AHEAD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rows `part`, `part + parts`, ... of a table, and the rules for them. `rate_per_s` is the highest of it.

    `laps`: the table is circular, see `loadgen.laps`.

    `limit_ms` None: no backlog is a verdict. `concurrency`: closed loop for `duration_s`, this share's users.
    """

    part: int
    parts: int
    timeout_s: float
    rate_per_s: float | None
    limit_ms: float | None
    duration_s: float
    max_in_flight: int | None = None
    concurrency: int | None = None
    laps: bool = False

    @property
    def connections_ahead(self) -> int:
        """How many connections to open before the load: half as many again as the limit lets be in flight."""
        if self.concurrency is not None:
            return self.concurrency
        expected = 1.5 * (self.rate_per_s or 0.0) * (self.limit_ms or 50.0) / 1e3
        most = min(self.max_in_flight or _MOST_CONNECTIONS_AHEAD, _MOST_CONNECTIONS_AHEAD)
        return min(4 + math.ceil(expected), most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    """What a process knows of its share beside the rows of the table. `wall_s` and `cpu_s` of the loop alone."""

    rows: int
    overloaded: bool
    wall_s: float
    cpu_s: float
    bytes_sent: int
    bytes_received: int
    connections_opened: int
    error_example: str | None


class PreparedTarget:
    """Connections and request bodies for one target, tried with one request.

    Raises TargetUnreachable, TargetRefused or PayloadError on construction; close it when done.
    """

    def __init__(self, target: Target, payload: Payload, poller: Poller, timeout_s: float) -> None:
        self._target = target
        self._poller = poller
        self.info: ModelInfo = read_model_info(target)
        pool = request_tensors(self.info, payload)
        self._outcomes: dict[int, int] = {}
        with ExitStack() as stack:
            places = None
            if payload.shared_memory == "system":
                shared = SharedInputs.of(target, [raw_inputs(self.info, tensors) for tensors in pool])
                stack.callback(shared.close)
                places = shared.places
            self.wire: LoadWire = wire_of(target, self.info, pool, poller, self._note, places)
            stack.callback(self.wire.close)
            self._try_one(timeout_s)
            self._opened = stack.pop_all()

    def connect(self, count: int) -> None:
        """Open connections ahead of the load. Those that fail now are opened when they are needed."""
        try:
            self.wire.open(count)
        except OSError:
            return
        self._pump(_CONNECT_S, lambda: self.wire.connecting == 0)

    def close(self) -> None:
        """Close the connections, and share no memory any more."""
        self._opened.close()

    def _try_one(self, timeout_s: float) -> None:
        """Send one request; an answer that is no inference is an error now, not a thousand errors later.

        A server that does not answer at all gets its load: every request of it will count as failed.
        """
        self.wire.send(0)
        if not self._pump(timeout_s, lambda: 0 in self._outcomes):
            self.wire.give_up(0)
            return
        outcome = self._outcomes.pop(0)
        if outcome == NOT_CONNECTED:
            raise TargetUnreachable(
                f"{self._target.url} refuses connections: {self.wire.error_example}.\n"
                "Start the server, or correct the address."
            )
        if outcome == OK:
            return
        advice = "Check the shapes and the data; the server's log may say more."
        if outcome == MALFORMED:
            advice = (
                "Look at one answer, and at the address. Triton's Python backend sends empty outputs with some "
                "versions of numpy."
            )
        raise TargetRefused(
            f"{self._target.model_name} on {self._target.url} did not answer a first request: "
            f"{self.wire.error_example}.\n{advice}"
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

    def _note(self, row: int, outcome: int, arrived_ns: int) -> None:  # noqa: ARG002 - nobody times this one
        self._outcomes[row] = outcome


def carry_out(
    share: Share,
    table: LogTable,
    prepared: PreparedTarget,
    poller: Poller,
    origin_ns: int,
    asked_to_stop: Callable[[], bool],
) -> ShareResult:
    """Send a share from `origin_ns` (monotonic clock) on; returns when every request has ended.

    `asked_to_stop` is called about every 50 ms and may use the process for a moment, which shows as send lag.
    """
    wire = prepared.wire
    before = (wire.bytes_sent, wire.bytes_received, wire.connections_opened)
    rule = None
    if share.limit_ms is not None and share.rate_per_s is not None:
        rule = BacklogRule(rate_per_s=share.rate_per_s, limit_ms=share.limit_ms)
    overloaded = False

    def tick(now_ns: int, in_flight: int) -> bool:
        nonlocal overloaded
        overloaded = overloaded or (rule is not None and rule.overloaded(now_ns, in_flight))
        return asked_to_stop() or overloaded

    loop = _loop(share, table, prepared, poller, tick)
    wire.finished = loop.finished
    wire.error_example = None
    with _no_collections():
        wall, cpu = time.monotonic_ns(), time.process_time_ns()
        loop.run(origin_ns)
        # A share without a request ends before it begins.
        wall, cpu = max(0, time.monotonic_ns() - max(wall, origin_ns)), time.process_time_ns() - cpu
    return ShareResult(
        rows=loop.rows_sent,
        overloaded=overloaded,
        wall_s=wall / 1e9,
        cpu_s=cpu / 1e9,
        bytes_sent=wire.bytes_sent - before[0],
        bytes_received=wire.bytes_received - before[1],
        connections_opened=wire.connections_opened - before[2],
        error_example=wire.error_example,
    )


def _loop(share: Share, table: LogTable, prepared: PreparedTarget, poller: Poller, tick: Tick) -> SendLoop:
    common: LoopParts = {
        "table": table,
        "part": share.part,
        "parts": share.parts,
        "wire": prepared.wire,
        "poller": poller,
        "timeout_ns": round(share.timeout_s * 1e9),
        "tick": tick,
    }
    if share.concurrency is None:
        kind = LapLoop if share.laps else SendLoop
        return kind(**common, max_in_flight=share.max_in_flight)
    return ClosedLoop(**common, concurrency=share.concurrency, duration_ns=round(share.duration_s * 1e9))


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collection while the load runs: a full one takes milliseconds, which would be send lag."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
