"""Run a load process over a wire that responds at once, and record the longest gaps between two sends."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Mapping
from typing import Any

from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import SendLoop, Shard
from loadgen.wire.poller import Poller, precise_timers

TIMEOUT_S = 5.0
WINDOW = 256  # sends between two readings of the scheduler's statistics
GAP_NS = 1_000_000


class InstantWire:
    """Responds to every request as it leaves, and records the longest times between two of them."""

    def __init__(self) -> None:
        self.in_flight: Mapping[int, object] = {}
        self.answers_may_wait = False
        self.loop: SendLoop | None = None
        self.gaps: list[tuple[int, int]] = []  # ns between two sends, and ns of waiting for a core in them
        self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY)
        self._left = WINDOW
        self._last_ns = self._longest_ns = 0
        self._waited_ns = self._run_delay_ns()

    def send(self, row: int) -> bool:
        assert self.loop is not None
        self.loop.finished(row, 0, 0)
        now_ns = time.monotonic_ns()
        gap_ns = now_ns - self._last_ns
        if gap_ns > self._longest_ns and self._last_ns:
            self._longest_ns = gap_ns
        self._left -= 1
        if not self._left:
            self._left = WINDOW
            waited_ns = self._run_delay_ns()
            if self._longest_ns > GAP_NS:
                self.gaps.append((self._longest_ns, max(0, self._longest_ns - (waited_ns - self._waited_ns))))
            self._waited_ns, self._longest_ns = waited_ns, 0
            now_ns = time.monotonic_ns()
        self._last_ns = now_ns
        return True

    def handle(self, fd: int, events: int) -> None:
        """Do nothing: no events arrive."""

    def give_up(self, row: int) -> None:
        """Do nothing: no request is in flight."""

    def _run_delay_ns(self) -> int:
        return int(os.pread(self._schedstat, 64, 0).split()[1])


def send(channel: Any, fd: int, rows: int, part: int, parts: int) -> None:
    """Run a load process: announce it, wait for the start, send, report."""
    precise_timers()
    table, wire = LogTable(fd, rows), InstantWire()
    shard = Shard(
        part=part, parts=parts, timeout_s=TIMEOUT_S, rate_per_s=None, limit_ms=None, duration_s=TIMEOUT_S
    )
    wire.loop = SendLoop(shard, table, wire, Poller(), lambda _now, _in_flight: False)
    channel.send("ready")
    origin_ns = channel.recv()
    gc.collect()
    gc.freeze()
    gc.disable()
    before = resource.getrusage(resource.RUSAGE_SELF)
    wire.loop.run(origin_ns)
    after = resource.getrusage(resource.RUSAGE_SELF)
    gaps = sorted(wire.gaps, reverse=True)
    channel.send({
        "sent": wire.loop.rows_sent,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "page_faults": after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt,
        "gaps_over_1_ms": len(gaps),
        "longest_gap_ms": gaps[0][0] / 1e6 if gaps else 0.0,
        "longest_gap_not_for_a_core_ms": max((own for _, own in gaps), default=0) / 1e6,
        "gaps_over_1_ms_not_for_a_core": sum(own > GAP_NS for _, own in gaps),
    })  # fmt: skip
