"""The load process: receive plans from the parent, send their load, and return the results."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import logging
import os
import resource
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from statistics import fmean
from typing import cast

from loadgen import errors
from loadgen.measurement.addresses import histograms_of
from loadgen.measurement.other_runs import other_runs
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import COUNTED, ShardResult
from loadgen.sending.children import PAYLOAD, TARGET, Channel, Message, channel_to_parent
from loadgen.sending.prepared import AnyWire, PreparedTarget
from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import Clock, ClosedLoop, SendLoop, Shard
from loadgen.wire.poller import Poller, precise_timers
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
        counts = [count for _, count in seen]
        if min(counts) <= self._threshold or now_ns - seen[0][0] < 0.9 * _RISE_NS or len(counts) < 6:
            return False
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
    before = {name: getattr(wire, name) for name in COUNTED}
    rule = None
    if shard.limit_ms is not None and shard.rate_per_s is not None:
        rule = BacklogRule(rate_per_s=shard.rate_per_s, limit_ms=shard.limit_ms)
    overloaded = False
    looked = unsent = patient_until_ns = 0

    def tick(now_ns: int, in_flight: int) -> bool:
        nonlocal overloaded, looked, unsent, patient_until_ns
        if wire.bytes_sent - before["bytes_sent"] > _LARGE_BYTES * loop.rows_sent:
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
    log, names = _log_of(shard, table, loop.rows_sent), wire.addresses.names
    several = bool(wire.places) and len(names) > 1
    return ShardResult(
        rows=loop.rows_sent,
        overloaded=overloaded,
        wall_s=wall / 1e9,
        cpu_s=cpu / 1e9,
        **{name: getattr(wire, name) - before[name] for name in COUNTED},
        error_example=prepared.error_example,
        in_front=dict(wire.in_front),
        addresses=histograms_of(log.latency_ns, log.failed, wire.places, names) if several else {},
        notes=prepared.notes,
        unsent_share=unsent / looked if looked else 0.0,
        cold=prepared.turn.cold(log),
    )


def _log_of(shard: Shard, table: LogTable, count: int) -> RequestLog:
    return table.rows_until(table.rows).part(slice(shard.part, None, shard.parts)).rows(0, count)


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


_NICE = -15


def go_first(*, alone: bool) -> str:
    """Ask the kernel to run this process before others; return "real-time", "raised" or "normal".

    Real-time only if no other run sends load (`alone`), and two processors are left: else those would stall.

    A client that waits for a core behind the server's threads measures its own waiting, which a client on another
    machine would not have. Real-time scheduling and a negative niceness both need CAP_SYS_NICE. Without it nothing
    changes, and send lag shows if that matters. The client takes its time from the server, so a certified rate
    stays safe.
    """
    real_time = alone and len(os.sched_getaffinity(0)) > 2
    policy = os.SCHED_RR if real_time else os.SCHED_OTHER
    with suppress(OSError):
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(int(real_time)))
        if real_time:
            return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        return "normal"
    return "raised"


def serve(channel: Channel) -> None:
    """Handle messages until the parent closes its end or has ended; `prepare` and `start` belong together."""
    poller = Poller()
    while True:
        message, fd = channel.receive()
        if message["do"] == "stop":  # it came after the end of the run
            continue
        try:
            answer = _prepare_and_run(message, fd, channel, poller)
        except errors.LoadError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        channel.send(answer)


def _prepare_and_run(message: Message, fd: int | None, channel: Channel, poller: Poller) -> Message:
    assert fd is not None  # it comes with "prepare"
    table = LogTable(fd, message["rows"], streamed=message["streamed"])
    os.close(fd)
    shard = Shard(**message["shard"])
    target = TARGET.validate_python(message["target"])
    payload = PAYLOAD.validate_python(message["payload"])
    beside = other_runs(os.getppid())
    go_first(alone=not beside)
    prepared = PreparedTarget(target, payload, poller, shard.timeout_s)

    def must_stop() -> bool:
        return channel.waits(0) and bool(channel.receive()[0]["do"] == "stop")

    with closing(prepared):
        prepared.connect(shard.connections_ahead)
        channel.send({"prepared": True})
        start, _ = channel.receive()
        if start["do"] == "cancel":
            return {"cancelled": True}
        result = run_shard(shard, table, prepared, poller, start["origin_ns"], must_stop)
        return dataclasses.asdict(result) | {"beside": [*beside, *other_runs(os.getppid())]}


def main() -> None:
    """`python -m loadgen.sending.worker PARENT_PID`, with one end of a socket pair as stdin."""
    channel = channel_to_parent()
    logging.basicConfig(level=logging.WARNING)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for as many connections
    precise_timers()
    try:
        serve(channel)
    except (EOFError, ConnectionError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
