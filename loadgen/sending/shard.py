"""Send the shard of a load that is one process's, and stop it if the server falls behind."""

from __future__ import annotations

import fcntl
import gc
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from statistics import fmean
from typing import cast

from loadgen.measurement.addresses import Histogram, histograms_of
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending.prepared import AnyWire, PreparedTarget
from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import Clock, ClosedLoop, SendLoop, Shard
from loadgen.wire.poller import Poller
from loadgen.wire.stream_wire import StreamWire

_RISE_NS = 1_000_000_000
_BACKLOG_MIN = 8
_PATIENT_NS = 500_000_000
_LARGE_BYTES = 1 << 16  # of a request: only such ones can be slow to send
_OLDEST = 16


class BacklogRule:
    """The server is overloaded if over 3 x rate x limit are in flight, and rising for a second.

    A queue that grows without end passes 3 x rate x limit; a burst passes it too, but falls again. "Rising"
    means that each third of the last second saw more in flight, on average, than the third before.
    """

    def __init__(self, *, rate_per_s: float, limit_ms: float) -> None:
        self._threshold = max(_BACKLOG_MIN, 3.0 * rate_per_s * limit_ms / 1e3)
        self._seen: deque[tuple[int, int]] = deque()

    def overloaded(self, now_ns: int, in_flight: int) -> bool:
        """Take the number in flight now. True if the server is overloaded. Call about every 50 ms."""
        seen = self._seen
        seen.append((now_ns, in_flight))
        while seen[0][0] < now_ns - _RISE_NS:
            seen.popleft()
        if in_flight <= self._threshold or now_ns - seen[0][0] < 0.9 * _RISE_NS or len(seen) < 6:
            return False
        if min(count for _, count in seen) <= self._threshold:
            return False
        counts = [count for _, count in seen]
        third = len(counts) // 3
        return fmean(counts[:third]) < fmean(counts[third:-third]) < fmean(counts[-third:])


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

    loop = (SendLoop if shard.concurrency is None else ClosedLoop)(shard, table, wire, poller, tick, clock)
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
