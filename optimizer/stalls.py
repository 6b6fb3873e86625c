"""How long this machine stands still for who waits for a processor: neighbours, other guests of its host."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

PAUSE_S = 0.001
COUNTS_MS = 5.0
"""A waiting thread runs again within a fraction of a millisecond where nothing else wants its processor."""

MOST_WATCHED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """`share`: part of the time, 0 to 1, that the worst processor was in stalls of `COUNTS_MS` or more.

    `worst_ms`: the longest stall of any, however short.
    """

    share: float
    worst_ms: float


def measure_stalls(seconds: float) -> Stalls:
    """Watch the processors that this process may use, `MOST_WATCHED` at most, for so long; takes little CPU."""
    processors = sorted(os.sched_getaffinity(0))[:MOST_WATCHED]
    stalls_ms: dict[int, list[float]] = {processor: [] for processor in processors}
    threads = [
        threading.Thread(target=_watch, args=(processor, seconds, stalls_ms[processor]))
        for processor in processors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost_ms = max(sum(stall for stall in stalls if stall >= COUNTS_MS) for stalls in stalls_ms.values())
    return Stalls(share=lost_ms / 1e3 / seconds, worst_ms=max(max(stalls) for stalls in stalls_ms.values()))


def _watch(processor: int, seconds: float, stalls_ms: list[float]) -> None:
    os.sched_setaffinity(0, {processor})  # 0: this thread alone
    end = time.monotonic() + seconds
    while (slept := time.monotonic()) < end or not stalls_ms:
        time.sleep(PAUSE_S)
        stalls_ms.append(1e3 * max(0.0, time.monotonic() - slept - PAUSE_S))
