"""Measure the CPU time that other processes and other guests of the host take from us while load is sent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

EVERY_S = 1.0
"""The counters are read once per second: the kernel counts hundredths of a second, so that a few per cent show."""

COUNTS_CORES = 0.25
"""Contention counts from this many cores on. A machine's own services stay below it. So does the error of the
kernel's two ways of counting: over two seconds of a loaded machine with two cores, the time it charged to the
processors and the time it charged to all processes differed by 0.05 cores at most."""

MARKED_SHARE, MARKED_S = 0.1, 1.0
"""CPU contention is reported from 10 % of the load time and 1 s on: samples are about a second long, and a single
one may have met a cron job."""

_SHOWN_CORES = 0.05
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuContention:
    """CPU time that others took from server and client under load. All in seconds, and sums of parts add up.

    `watched_s` is the time in which the CPU counters were read, `disturbed_s` the part of it with contention. In
    that part, other processes took `others_cpu_s` of CPU time, and the host gave `stolen_cpu_s` to other guests.
    """

    watched_s: float = 0.0
    disturbed_s: float = 0.0
    others_cpu_s: float = 0.0
    stolen_cpu_s: float = 0.0

    @property
    def marked(self) -> bool:
        """True if it is enough to be reported."""
        return self.disturbed_s >= max(MARKED_S, MARKED_SHARE * self.watched_s)

    @property
    def text(self) -> str:
        """The sentence for users, such as `other processes took 0.9 cores for 34 of 120 s of load`."""
        seconds = max(self.disturbed_s, 1e-9)
        others, stolen = self.others_cpu_s / seconds, self.stolen_cpu_s / seconds
        who = [f"other processes took {_cores(others)}"] if others >= _SHOWN_CORES or not stolen else []
        who += [f"other guests of the host took {_cores(stolen)}"] if stolen >= _SHOWN_CORES else []
        return f"{' and '.join(who)} for {self.disturbed_s:.0f} of {self.watched_s:.0f} s of load"

    def __add__(self, other: CpuContention) -> CpuContention:
        return CpuContention(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def __sub__(self, other: CpuContention) -> CpuContention:
        return CpuContention(**{name: value - getattr(other, name) for name, value in asdict(self).items()})


def _cores(cores: float) -> str:
    return f"{cores:.1f} cores" if f"{cores:.1f}" != "1.0" else "1 core"


def none_if_not_watched(seen: CpuContention) -> CpuContention | None:
    """Return the contention; None if it could not be measured."""
    return seen if seen.watched_s > 0 else None


def merge_contention(first: CpuContention | None, second: CpuContention | None) -> CpuContention | None:
    """Return the sum of two runs; a run without a measurement does not count."""
    return first + second if first is not None and second is not None else first or second


def mark_of(seen: CpuContention | None) -> str | None:
    """Return the sentence about the contention of a measurement; None if there is nothing to report."""
    return None if seen is None or not seen.marked else seen.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The kernel's counters at one moment, in seconds: of the clock, and of our processors together.

    `busy_s` is the CPU time of all processes, `ours_s` that of our own.
    """

    at_s: float
    busy_s: float
    idle_s: float
    stolen_s: float
    ours_s: float


def contention_between(before: Reading, now: Reading) -> CpuContention:
    """Return the CPU time that others took between two readings.

    Other processes count if they took more than was left idle. On a machine that had at least as much to spare,
    our processes found a processor whenever they needed one.
    """
    seconds = now.at_s - before.at_s
    others_s = (now.busy_s - before.busy_s) - (now.ours_s - before.ours_s)
    if others_s < now.idle_s - before.idle_s:
        others_s = 0.0
    stolen_s = max(0.0, now.stolen_s - before.stolen_s)
    if not others_s + stolen_s >= COUNTS_CORES * seconds:
        return CpuContention(watched_s=seconds)
    return CpuContention(watched_s=seconds, disturbed_s=seconds, others_cpu_s=others_s, stolen_cpu_s=stolen_s)


class NeighbourSampler:
    """Reads the counters once per second; `seen` is the contention from the start of the `with` block to its end.

    If `read` is None or raises OSError, nothing more is watched: `watched_s` stays short.
    """

    def __init__(self, read: Callable[[], Reading] | None) -> None:
        self.seen = CpuContention()
        self._read = read
        self._last: Reading | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="neighbours", daemon=True)

    def __enter__(self) -> Self:
        if self._look():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._look()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S) and self._look():
            pass

    def _look(self) -> bool:
        """Add the contention since the last look; True if the counters could be read."""
        try:
            now = None if self._read is None else self._read()
        except OSError:
            now = None
        if now is not None and self._last is not None:
            self.seen += contention_between(self._last, now)
        self._last = now
        return now is not None


def counters_of_family() -> Callable[[], Reading]:
    """Return a reader of the kernel's counters; our processes are this one and its present descendants.

    The reader raises OSError if there is no /proc.
    """
    import psutil

    family = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    processors = os.sched_getaffinity(0)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")

    def read() -> Reading:
        busy, idle, stolen = processor_ticks((_PROC / "stat").read_text(), processors)
        ours = sum(_process_ticks(pid) for pid in family)
        return Reading(
            at_s=time.monotonic(),
            busy_s=busy * tick_s,
            idle_s=idle * tick_s,
            stolen_s=stolen * tick_s,
            ours_s=ours * tick_s,
        )

    return read


def processor_ticks(stat: str, processors: Collection[int]) -> tuple[int, int, int]:
    """Return the busy, idle and stolen ticks of these processors, from the text of /proc/stat.

    Interrupts count as none of them: they serve our requests as well as those of others.
    """
    busy = idle = stolen = 0
    for line in stat.splitlines():
        name, *rest = line.split()
        if not name.startswith("cpu") or not name[3:].isdigit() or int(name[3:]) not in processors:
            continue
        user, nice, system, unused, waiting, _, _, steal = (int(field) for field in rest[:8])
        busy += user + nice + system
        idle += unused + waiting
        stolen += steal
    return busy, idle, stolen


def _process_ticks(pid: int) -> int:
    """Return the ticks of a process and its ended children; 0 if it is gone, as its parent has its ticks then."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may contain any characters
    return sum(int(field) for field in fields[11:15])
