"""Measure the stalls of this machine's processors, and refuse to measure latencies on one that stalls too long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.errors import ClientFailed
from loadgen.measurement.other_runs import and_others, other_runs
from loadgen.records.formats import format_ms, format_percent
from loadgen.spec.limits import LatencyLimit
from search.trials import events
from search.trials.events import OnEvent

PAUSE_S = 0.001
COUNTS_MS = 5.0
"""Delays of 5 ms or more count as stalls. On an idle processor, a waiting thread runs again within a fraction of a
millisecond."""

MAX_WATCHED = 8

PROBE_S = 2.0
MAX_SHARE = 0.01
"""Before a run, the processors are watched for 2 s. Stalls of over 1 % of that are reported; if they are longer
than the latency limit, no p99 can be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingStalls:
    """Delays of a waiting thread, in ms, of each watched processor during `seconds`."""

    seconds: float
    delays_ms: tuple[tuple[float, ...], ...]

    @property
    def worst_ms(self) -> float:
        """The longest delay on any processor."""
        return max(max(delays) for delays in self.delays_ms)

    def share(self, at_least_ms: float = COUNTS_MS) -> float:
        """Return the part of the time, 0 to 1, that the worst processor was in stalls of this length or longer."""
        lost_ms = max(sum(delay for delay in delays if delay >= at_least_ms) for delays in self.delays_ms)
        return lost_ms / 1e3 / self.seconds


def measure_stalls(seconds: float) -> SchedulingStalls:
    """Watch the processors that this process may use, at most `MAX_WATCHED`, for `seconds`; takes little CPU."""
    processors = sorted(os.sched_getaffinity(0))[:MAX_WATCHED]
    delays_ms: dict[int, list[float]] = {processor: [] for processor in processors}
    threads = [
        threading.Thread(target=_watch, args=(processor, seconds, delays_ms[processor]))
        for processor in processors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return SchedulingStalls(seconds=seconds, delays_ms=tuple(map(tuple, delays_ms.values())))


def _watch(processor: int, seconds: float, delays_ms: list[float]) -> None:
    os.sched_setaffinity(0, {processor})  # 0: only this thread
    end = time.monotonic() + seconds
    while (slept := time.monotonic()) < end or not delays_ms:
        time.sleep(PAUSE_S)
        delays_ms.append(1e3 * max(0.0, time.monotonic() - slept - PAUSE_S))


class MachineStalls(ClientFailed):
    """This machine stalls for longer than the latency limit, so that no latency measured on it means anything."""


def check_quiet(
    limit: LatencyLimit,
    *,
    despite_noise: bool,
    on_event: OnEvent = events.ignore,
    measure: Callable[[float], SchedulingStalls] = measure_stalls,
) -> None:
    """Watch the processors before any load, and warn of stalls.

    Raises MachineStalls if those longer than the limit covered over 1 % of the time, unless `despite_noise`. Below
    5 ms a delay is no stall: any timer is late by some tenths of a millisecond.
    """
    seen, least_ms = measure(PROBE_S), max(limit.limit_ms, COUNTS_MS)
    too_long, long = seen.share(least_ms), seen.share()
    found = f"before any load, a waiting thread ran up to {format_ms(seen.worst_ms)} ms late"
    if too_long > MAX_SHARE and not despite_noise:
        over = f"the limit of {limit.limit_ms:g} ms" if least_ms == limit.limit_ms else f"{least_ms:g} ms"
        raise MachineStalls(
            f"This machine's processors stall: {found}, and delays over {over} took "
            f"{format_percent(too_long)} of {PROBE_S:g} s{and_others(other_runs(os.getpid()))}.",
            "Stop what else runs here, or use a machine of its own; --despite-noise measures anyway.",
        )
    if long > MAX_SHARE:
        text = f"This machine is not quiet: {found}, and stalls took {format_percent(long)} of {PROBE_S:g} s"
        on_event(events.Note(text=f"{text}{and_others(other_runs(os.getpid()))}.", warning=True))
