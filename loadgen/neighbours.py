"""What other processes and other guests of the host take of our processors while load is sent."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import TracebackType

EVERY_S = 1.0
"""The kernel counts in hundredths of a second: over a second, a few per cent of a processor can be told."""

COUNTS_CORES = 0.25
"""How much of a processor others have to take to count. A machine's own services stay below it. So does the error
of the kernel's two ways of counting: over two seconds of a loaded machine with two cores, what it charged to the
processors and to all processes differed by 0.05 cores at most."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What others took of our processors in the time that was watched. All in seconds, and sums of parts add up.

    `disturbed_s` is the part of `watched_s` in which they took what counts. Of it, `others_cpu_s` is the processor
    time that processes took which are not ours, and `stolen_cpu_s` what the host gave to other guests.
    """

    watched_s: float = 0.0
    disturbed_s: float = 0.0
    others_cpu_s: float = 0.0
    stolen_cpu_s: float = 0.0

    def __add__(self, other: Neighbours) -> Neighbours:
        return self._with(other, 1.0)

    def __sub__(self, other: Neighbours) -> Neighbours:
        return self._with(other, -1.0)

    def _with(self, other: Neighbours, sign: float) -> Neighbours:
        return Neighbours(
            watched_s=self.watched_s + sign * other.watched_s,
            disturbed_s=self.disturbed_s + sign * other.disturbed_s,
            others_cpu_s=self.others_cpu_s + sign * other.others_cpu_s,
            stolen_cpu_s=self.stolen_cpu_s + sign * other.stolen_cpu_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The kernel's counters at one moment, in seconds: of the clock, and of our processors together.

    `busy_s` is what any process took of them, `ours_s` what our own ones took.
    """

    at_s: float
    busy_s: float
    idle_s: float
    stolen_s: float
    ours_s: float


def neighbours_between(before: Reading, now: Reading) -> Neighbours:
    """What others took between two readings.

    Other processes count where they took more than was left idle: on a machine that has more to spare than they
    take, ours found a processor whenever they wanted one.
    """
    seconds = now.at_s - before.at_s
    others_s = (now.busy_s - before.busy_s) - (now.ours_s - before.ours_s)
    if others_s < now.idle_s - before.idle_s:
        others_s = 0.0
    stolen_s = max(0.0, now.stolen_s - before.stolen_s)
    if not others_s + stolen_s >= COUNTS_CORES * seconds:
        return Neighbours(watched_s=seconds)
    return Neighbours(watched_s=seconds, disturbed_s=seconds, others_cpu_s=others_s, stolen_cpu_s=stolen_s)


class NeighbourSampler:
    """Looks once a second while its `with` block lasts; `seen` tells what others took, from its start to its end.

    `read` is asked for the counters; None, or one that raises OSError, sees nothing: `watched_s` stays short.
    """

    def __init__(self, read: Callable[[], Reading] | None) -> None:
        self.seen = Neighbours()
        self._read = read
        self._last: Reading | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="neighbours", daemon=True)

    def __enter__(self) -> Self:
        if self._look():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._look()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S) and self._look():
            pass

    def _look(self) -> bool:
        """Whether the counters could be read."""
        try:
            now = None if self._read is None else self._read()
        except OSError:
            now = None
        if now is not None and self._last is not None:
            self.seen += neighbours_between(self._last, now)
        self._last = now
        return now is not None


def counters_of_family() -> Callable[[], Reading]:
    """Reads the kernel's counters; ours are this process and all that descend from it now.

    The reader raises OSError where there is no /proc.
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
    """Busy, idle and stolen ticks of these processors, from the text of /proc/stat.

    Interrupts count as neither: they serve our requests as well as anybody's.
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
    """Of a process and its ended children; 0 for one that is gone, as its parent has its ticks then."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold anything
    return sum(int(field) for field in fields[11:15])
