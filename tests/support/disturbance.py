"""Watch how the machine disturbs a test: processors that stood still, were stolen, or were taken by others.

`python disturbance.py PID` watches the test of that process until its stdin closes, and prints the disturbance. A
thread of the test would not do: it would count waits for the test's interpreter as stalls.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

PAUSE_S = 0.001
SHORTEST_STALL_MS = 1.0
"""Shorter stalls are not recorded."""

STALL_MS = 20.0
"""A stall of at least so long is a reason to repeat a test."""

LOOK_EVERY_S = 0.5
STOLEN_EVERY_S = 0.05
"""The time stolen by other guests of the host is read this often: the kernel counts hundredths of a second."""

COUNTS_CORES = 0.25
"""Contention below this is ignored, as in the product: a machine's own services take that much."""

COUNTS_SHARE = 0.02
"""Contention or stalls are a reason if they last longer than this fraction of the test's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """The seconds of `watched_s` in which the host gave our processors to other guests, and in which processes
    outside the test's family took them.

    `stalls_ns` are the starts and ends, on the monotonic clock, of times in which a processor ran none of its
    waiting threads: not even one of higher priority than load processes, if the watcher may have it.
    `stolen_ns` are those of the readings in which the host gave processor time to other guests.
    """

    watched_s: float
    stolen_s: float
    others_s: float
    stalls_ns: tuple[tuple[int, int], ...] = ()
    stolen_ns: tuple[tuple[int, int], ...] = ()

    @property
    def stalled_s(self) -> float:
        """Seconds in stalls that are a reason to repeat."""
        return sum(stall for stall in self._stalls_ms if stall >= STALL_MS) / 1e3

    @property
    def worst_stall_ms(self) -> float:
        return max(self._stalls_ms, default=0.0)

    @property
    def _stalls_ms(self) -> list[float]:
        return [(end - begin) / 1e6 for begin, end in self.stalls_ns]

    @property
    def reason(self) -> str | None:
        """Return why a measurement meanwhile may be wrong; None if no disturbance counts."""
        parts = []
        least_s = COUNTS_SHARE * self.watched_s
        if self.stalled_s > least_s:
            worst = f"{self.worst_stall_ms:.0f} ms at the worst"
            parts.append(f"a processor stood still for {self.stalled_s:.1f} s ({worst})")
        if self.stolen_s > least_s:
            parts.append(f"other guests of the host took processors for {self.stolen_s:.1f} s")
        if self.others_s > least_s:
            parts.append(f"other processes took processors for {self.others_s:.1f} s")
        return f"{', '.join(parts)} of {self.watched_s:.1f} s" if parts else None


class Watch:
    """Watches while its `with` block lasts; `seen` is complete afterwards."""

    def __init__(self) -> None:
        self.seen = Disturbance(watched_s=0, stolen_s=0, others_s=0)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # from now on it watches
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        out, _ = self._process.communicate()
        found: dict[str, Any] = json.loads(out)
        times_ns: dict[str, Any] = {
            name: tuple(map(tuple, found.pop(name))) for name in ("stalls_ns", "stolen_ns")
        }
        self.seen = Disturbance(**times_ns, **found)


def watch(pid: int) -> Disturbance:
    """Watch the processors and the family of the test's process `pid`, until stdin closes."""
    stalls_ns: list[tuple[int, int]] = []
    stolen_ns: list[tuple[int, int]] = []
    processors = sorted(os.sched_getaffinity(0))
    for processor in processors:
        threading.Thread(target=_feel_stalls, args=(processor, stalls_ns), daemon=True).start()
    threading.Thread(target=_see_theft, args=(processors, stolen_ns), daemon=True).start()
    print(flush=True)
    began = before = time.monotonic()
    last = ticks(processors, pid)
    stolen_s = others_s = 0.0
    ended = False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], LOOK_EVERY_S)[0])
        now, counted = time.monotonic(), ticks(processors, pid)
        busy, idle, stolen, ours = (
            (new - old) / os.sysconf("SC_CLK_TCK") for new, old in zip(counted, last, strict=True)
        )
        if stolen >= COUNTS_CORES * (now - before):
            stolen_s += now - before
        if busy - ours >= max(COUNTS_CORES * (now - before), idle):
            others_s += now - before
        before, last = now, counted
    return Disturbance(
        watched_s=before - began,
        stolen_s=stolen_s,
        others_s=others_s,
        stalls_ns=tuple(sorted(stalls_ns)),
        stolen_ns=tuple(stolen_ns),
    )


def _feel_stalls(processor: int, stalls_ns: list[tuple[int, int]]) -> None:
    os.sched_setaffinity(0, {processor})
    with contextlib.suppress(PermissionError):  # load processes have priority 1 if permitted
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
    while True:
        due_ns = time.monotonic_ns() + round(PAUSE_S * 1e9)
        time.sleep(PAUSE_S)
        now_ns = time.monotonic_ns()
        if now_ns - due_ns >= SHORTEST_STALL_MS * 1e6:
            stalls_ns.append((due_ns, now_ns))


def _see_theft(processors: list[int], stolen_ns: list[tuple[int, int]]) -> None:
    last, before_ns = of_processors(processors)[2], time.monotonic_ns()
    while True:
        time.sleep(STOLEN_EVERY_S)
        stolen, now_ns = of_processors(processors)[2], time.monotonic_ns()
        if stolen > last:
            stolen_ns.append((before_ns, now_ns))
        last, before_ns = stolen, now_ns


class Ticks(NamedTuple):
    """Sums over the processors, in the kernel's clock ticks; `ours` are those of a process and its family."""

    busy: int
    idle: int
    stolen: int
    ours: int


def of_processors(processors: list[int]) -> tuple[int, int, int]:
    """Return the busy, idle and stolen ticks of these processors."""
    busy = idle = stolen = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *rest = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in processors:
            user, nice, system, unused, waiting, _, _, steal = (int(field) for field in rest[:8])
            busy, idle, stolen = busy + user + nice + system, idle + unused + waiting, stolen + steal
    return busy, idle, stolen


def ticks(processors: list[int], pid: int) -> Ticks:
    """Read the kernel's counters of the processors, and of the family of the process `pid`."""
    busy, idle, stolen = of_processors(processors)
    parents, taken = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has ended
                continue
            fields = stat[stat.rindex(")") + 2 :].split()
            parents[int(folder.name)] = int(fields[1])
            taken[int(folder.name)] = sum(int(field) for field in fields[11:15])
    ours = sum(count for one, count in taken.items() if _descends(one, pid, parents))
    return Ticks(busy, idle, stolen, ours)


def _descends(one: int, ancestor: int, parents: dict[int, int]) -> bool:
    while one > 1 and one != ancestor:
        one = parents.get(one, 0)
    return one == ancestor


if __name__ == "__main__":
    import dataclasses

    print(json.dumps(dataclasses.asdict(watch(int(sys.argv[1])))))
