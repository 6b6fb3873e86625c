"""Whether the kernel has killed a process because memory ran out: the victim itself cannot say so."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")

WORDS = "The kernel has killed a process since: out of memory."


def count_memory_kills() -> int | None:
    """How many processes the kernel has killed for memory since it started; None where it does not say."""
    try:
        return kills_in(_COUNTERS.read_text())
    except OSError:
        return None


def kills_in(vmstat: str) -> int | None:
    """The count in the text of /proc/vmstat; None where it has none."""
    for line in vmstat.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
